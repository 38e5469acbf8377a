"""What FILE means in `python -m labkit.launch.payload FILE`.

train.py          the function `main(world)` of that file
train.py:warm     its function `warm(world)`
sums.payload      a function that `labkit.save_payload` stored, with its arguments
"""

import importlib.util
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from labkit.launch import payload


def read_program(file: str) -> tuple[Callable[..., Any], Sequence[Any]]:
    """The function and its arguments after `world`.

    Raises FileNotFoundError, ValueError for a file without that function or that is no payload,
    and whatever the file itself raises.
    """
    path, name = _parts(file)
    if not path.exists():
        raise FileNotFoundError(
            f"there is no {path} on this host (in {Path.cwd()}). Every host needs it under the "
            "same name: use a shared folder, or copy it"
        )
    if path.suffix != ".py":
        return payload.read_elsewhere(path)
    fn = getattr(_imported(path), name, None)
    if not callable(fn):
        raise ValueError(
            f"{path} has no function {name}: define `def {name}(world): ...` at its top level, or "
            f"name another one, {path}:function"
        )
    return fn, ()


def _parts(file: str) -> tuple[Path, str]:
    stem, colon, name = file.rpartition(":")
    if colon and stem.endswith(".py"):
        return Path(stem), name
    return Path(file), "main"


def _imported(path: Path) -> Any:
    """The file as a module of its own name, found by those who pickle its classes."""
    sys.path.insert(0, str(path.resolve().parent))  # what it imports lies beside it
    specification = importlib.util.spec_from_file_location(path.stem, path.resolve())
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[path.stem] = module
    specification.loader.exec_module(module)
    return module
