"""What FILE means in `python -m labkit.launch.payload FILE`.

train.py          the function `main(world)` of that file
train.py:warm     its function `warm(world)`
sums.payload      a function that `labkit.save_payload` stored, with its arguments
"""

import importlib.util
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import CodeType
from typing import Any

from labkit.launch import payload
from labkit.launch.request import check_function


def read_program(file: str) -> tuple[Callable[..., Any], Sequence[Any]]:
    """The function and its arguments after `world`.

    Raises FileNotFoundError, ValueError for a file without that function or that is no payload,
    TypeError for a function that would only be begun, and whatever the file itself raises.
    """
    path, name = _parts(file)
    if path.is_dir():
        raise ValueError(
            f"{path} is a folder: name a file in it, such as {path / 'train.py'}, or what "
            "labkit.save_payload wrote"
        )
    if not path.exists():
        raise FileNotFoundError(
            f"there is no {path} on this host (in {Path.cwd()}). Every host needs it under the "
            "same name: use a shared folder, or copy it"
        )
    fn, args = payload.read_elsewhere(path) if path.suffix != ".py" else _function(path, name)
    check_function(fn)
    return fn, args


def _function(path: Path, name: str) -> tuple[Callable[..., Any], Sequence[Any]]:
    """A function of a Python file, which takes the world and nothing else."""
    if not name.isidentifier():
        raise ValueError(
            f"{path}:{name}: no function is called {name!r}; write {path} for its main(world), or "
            f"{path}:function"
        )
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
    assert specification is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[path.stem] = module
    # Not by the loader: an error in the file would be said to be raised in Python's importlib.
    exec(_code(path), module.__dict__)
    return module


def _code(path: Path) -> CodeType:
    try:
        return compile(path.read_bytes(), path.resolve(), "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError) as error:
        if isinstance(error, SyntaxError) and error.filename:
            raise
        # Null bytes, or a sum of thousands of terms: Python does not say where.
        raise ValueError(f"{path} is no file that Python can read: {error}") from None
