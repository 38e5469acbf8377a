"""A script of examples/ as a module, whose functions also run on ranks."""

import importlib.util
import sys
from pathlib import Path

import cloudpickle

EXAMPLES = Path(__file__).parents[1] / "examples"


def load_example(name):
    """The module of examples/NAME.py; loaded once."""
    if str(EXAMPLES) not in sys.path:
        sys.path.append(str(EXAMPLES))  # as for a script: one imports another
    if name not in sys.modules:
        path = EXAMPLES / f"{name}.py"
        spec = importlib.util.spec_from_file_location(name, path)
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        cloudpickle.register_pickle_by_value(module)
    return sys.modules[name]
