"""Names of a package that load when they are first used, and are listed once.

    if TYPE_CHECKING:
        from labkit.viz.rings import ring_steps
        from labkit.viz.timelines import timeline

    __getattr__, __dir__, __all__ = lazy(__name__)

Type checkers and editors execute these imports. Python does not: `lazy` reads them in the package's
source, and makes each when its name is first used. So a package opens without torch, matplotlib or
a web server if only some of its modules need them.

A module of the package must not have the name of a function that the package offers: importing
labkit.viz.timeline sets `timeline` on labkit.viz, and the module would stand there instead of the
function. tests/unit/test_rooms.py finds such names.
"""

import ast
import importlib
import sys
from collections.abc import Callable
from typing import Any


def lazy(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of the calling package, by its imports."""
    home_of = homes(package)

    def get(name: str) -> Any:
        home = home_of.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if home == package:  # `from labkit.viz import chrome_trace`: a module
            return importlib.import_module(f"{package}.{name}")
        return getattr(importlib.import_module(home), name)

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *home_of})

    return get, names, sorted(home_of)


def homes(package: str) -> dict[str, str]:
    """Return the module of each name that the package imports under `if TYPE_CHECKING:`."""
    spec = sys.modules[package].__spec__
    assert spec is not None and spec.loader is not None
    return {
        name.asname or name.name: statement.module or ""
        for block in ast.parse(spec.loader.get_source(package)).body  # type: ignore[attr-defined]
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for statement in block.body
        if isinstance(statement, ast.ImportFrom)
        for name in statement.names
    }
