"""The folder of a run: files that driver and ranks leave for each other, with the call.

payload            the function and its arguments (cloudpickle)
store              where the ranks meet (torch's FileStore)
rank-2.journal     what rank 2 did on its groups; rank-2.names goes with it
rank-2.stack       rank 2's stack when it was asked (faulthandler)
rank-2.recorder    what torch itself had recorded of rank 2 when it was asked (recorder.py)
rank-2.value       what rank 2 returned (cloudpickle)
world.calls.0      hashes of each rank's collectives, which the others compare, and world.0-1.0,
                   of messages: a few of each for every group (comm/mismatch_detector.py)
links              with a topology, when each link is free; links.* go with it (comm/throttle.py)
labkit-fifos-*     while ranks meet in shared memory (comm/shared_memory)

rank-2.spec        with engine="torchrun": how rank 2 is to begin (pickle)
torchrun.log       and what torchrun printed; its own logs are in torchrun/
rank-2.clock       on several hosts: what rank 2's clock read when it had joined the world

cloudpickle takes functions and closures defined in a notebook cell by value; those of importable
modules travel by name and are imported by the rank, so an edited file is read again on every run.

`python -m labkit.launch.payload FILE`, under torchrun, is how a rank on another host begins: see
hosts/hosted_job.py.
"""

from __future__ import annotations

import copyreg
import ctypes
import functools
import importlib
import inspect
import io
import os
import pickle
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle
import torch
from torch.storage import TypedStorage

from labkit.comm import owned_folder
from labkit.doctor import sources
from labkit.launch.request import check_args, check_function


class RunDirectory:
    """A folder for one run, readable by this user only, and removed when the run ends."""

    def __init__(self) -> None:
        """Make the folder; remove those of drivers that are no longer alive."""
        try:
            self.path = owned_folder.make(Path(tempfile.gettempdir()), "run")
        except OSError as error:
            raise RuntimeError(
                f"a run needs a folder for temporary files, and none can be made: {error}. Make "
                "room there, or name another one in the environment variable TMPDIR"
            ) from error

    @classmethod
    def at(cls, path: str | Path) -> RunDirectory:
        """A folder that another process of the run has made."""
        directory = cls.__new__(cls)
        directory.path = Path(path)
        return directory

    @property
    def payload(self) -> Path:
        """The function and what it is called with."""
        return self.path / "payload"

    @property
    def store(self) -> Path:
        """Where the ranks meet."""
        return self.path / "store"

    def of_rank(self, rank: int, kind: str) -> Path:
        """The file of one rank. `kind`: its ending, such as journal, stack or value."""
        return self.path / f"rank-{rank}.{kind}"

    def remove(self) -> None:
        """Delete the folder and all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)


@functools.lru_cache(maxsize=1)
def _pickle_torch_by_name(num_modules: int) -> None:
    """Pickle torch's modules and operators that a function mentions by name, as other modules are.

    num_modules: how many are imported; new ones may be torch's, so this runs again.

    torch.ops, torch._dynamo.config and torch.ops.aten.relu are of types that pickle refuses.
    """
    for name, module in list(sys.modules.items()):
        kind = type(module)
        if name.startswith("torch.") and issubclass(kind, ModuleType) and kind is not ModuleType:
            copyreg.pickle(kind, _by_name)
    aten = torch.ops.aten
    copyreg.pickle(type(aten), lambda space: (_operator, (space.name,)))
    for operators in (type(aten.relu), type(aten.relu.default)):
        copyreg.pickle(operators, lambda each: (_operator, tuple(str(each).split("."))))


def _operator(*names: str) -> Any:
    """Return what torch.ops has by these names: aten, relu, default."""
    return functools.reduce(getattr, names, torch.ops)


def _by_name(module: ModuleType) -> tuple[Any, ...]:
    return importlib.import_module, (module.__name__,)


@dataclass(frozen=True)
class _Setting:
    """Everything that a rank needs before it can unpickle the function itself."""

    environment: dict[str, str]
    working_directory: str
    import_path: list[str]
    cells: dict[str, list[str]]
    call: bytes
    python: tuple[int, int] = (sys.version_info.major, sys.version_info.minor)


# A process's rank is in its own environment, not in the driver's.
_TORCHRUN_VARIABLES = re.compile(
    "(LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)|ROLE_NAME|MASTER_(ADDR|PORT)|TORCHELASTIC_.*"
)


def write(
    path: Path,
    fn: Callable[..., Any],
    args_by_rank: Sequence[Sequence[Any]],
    *,
    with_environment: bool = True,
) -> None:
    """Store the call for the ranks.

    with_environment: the driver's variables and working directory too, for ranks on its own host.
    Raises TypeError naming what cannot travel.
    """
    _pickle_torch_by_name(len(sys.modules))
    try:
        # One dump for all ranks: what they share is stored once.
        call = dumps((fn, args_by_rank))
    except Exception as error:
        name = getattr(fn, "__qualname__", repr(fn))
        raise TypeError(
            f"{name} and its arguments cannot travel to the ranks: {error}. Open files, locks, "
            "sockets, generators and what torch.compile returns stay behind: make them inside the "
            "function, or pass the data that they stand for"
        ) from error
    environment = dict(os.environ) if with_environment else {}
    setting = _Setting(environment, os.getcwd(), list(sys.path), sources.texts_of_cells(), call)
    path.write_bytes(pickle.dumps(setting))


def read(path: Path, rank: int) -> tuple[Callable[..., Any], Sequence[Any]]:
    """Return the function and this rank's arguments. Takes over the driver's environment."""
    setting: _Setting = pickle.loads(path.read_bytes())
    current = dict(os.environ)
    own = {name: value for name, value in current.items() if _TORCHRUN_VARIABLES.fullmatch(name)}
    if current != (wanted := {**setting.environment, **own}):
        os.environ.clear()
        os.environ.update(wanted)
    os.chdir(setting.working_directory)
    sys.path[:] = setting.import_path
    sources.remember(setting.cells)
    fn, args_by_rank = _unpickled(setting.call)
    return fn, args_by_rank[rank % len(args_by_rank)]


def _unpickled(call: bytes) -> tuple[Callable[..., Any], Sequence[Sequence[Any]]]:
    """Return the function and its arguments. Its cell or script becomes this process's `__main__`.

    pickle looks there for classes and functions, when the program sends an object of its own to
    another rank, or saves a whole model.
    """
    fn, args_by_rank = pickle.loads(call)
    main = sys.modules["__main__"] = ModuleType("__main__")
    for each in (fn, *(argument for args in args_by_rank for argument in args)):
        function = inspect.unwrap(each.func) if isinstance(each, functools.partial) else each
        function = inspect.unwrap(function) if callable(function) else function
        if getattr(function, "__module__", None) == "__main__":
            for name, value in getattr(function, "__globals__", {}).items():
                main.__dict__.setdefault(name, value)
    # A class may be in arguments only, such as Config in `args=[Config()]`. A cloudpickle without
    # such a list leaves these out.
    for each in list(getattr(cloudpickle.cloudpickle, "_DYNAMIC_CLASS_TRACKER_BY_CLASS", ())):
        if each.__module__ == "__main__":
            main.__dict__.setdefault(each.__qualname__, each)
    return fn, args_by_rank


def read_elsewhere(path: Path) -> tuple[Callable[..., Any], Sequence[Any]]:
    """Return the function and its arguments, on a host that keeps its own environment.

    Entries of the driver's import path that exist here are added at the end. Raises ValueError for
    a file that is no payload, or one of another Python. Reading a payload runs code in it, as
    running a script does.
    """
    try:
        setting: _Setting = pickle.loads(path.read_bytes())
        written_by, call = setting.python, setting.call
    except Exception as error:  # bytes that are no pickle raise all sorts of things
        raise ValueError(
            f"{path} is no payload: {error!r}. Make one with labkit.save_payload(path, fn, args), "
            "or name a Python file, train.py"
        ) from error
    if written_by != sys.version_info[:2]:
        raise ValueError(
            f"{path} was written by Python {'.'.join(map(str, written_by))}, and functions travel "
            f"only within one version; this is {sys.version_info[0]}.{sys.version_info[1]}. "
            "Name a Python file instead, train.py, which any version reads"
        )
    sys.path += [
        entry for entry in setting.import_path if entry not in sys.path and os.path.exists(entry)
    ]
    sources.remember(setting.cells)
    fn, args_by_rank = _unpickled(call)
    return fn, args_by_rank[0]


def save_payload(path: str | Path, fn: Callable[..., Any], args: Sequence[Any] = ()) -> Path:
    """Store the call `fn(world, *args)` in a file, to be run on other hosts by torchrun:

        torchrun --nnodes=2 --nproc-per-node=4 ... -m labkit.launch.payload PATH

    The file holds the function and its arguments, but no environment variables. It is read by the
    same version of Python only. Raises TypeError naming what cannot travel, or what is no function
    or no list of arguments, and FileNotFoundError for a folder that is not there.
    """
    check_function(fn)
    check_args(args)
    path = Path(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path}: there is no folder {path.parent}; make it first")
    write(path, fn, [args], with_environment=False)
    return path


class _Pickler(cloudpickle.Pickler):
    """cloudpickle's pickler, which stores a tensor's numbers as bytes.

    torch writes a file for each tensor: 450 us for a small one, both ways. This takes 150 us.
    """

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is TypedStorage:
            whole = obj._untyped_storage
            if whole.device.type == "cpu":
                return _storage, (obj.dtype, ctypes.string_at(whole.data_ptr(), whole.nbytes()))
        return super().reducer_override(obj)


def _storage(dtype: torch.dtype, data: bytes) -> TypedStorage:
    storage = torch.UntypedStorage(len(data))
    ctypes.memmove(storage.data_ptr(), data, len(data))
    return TypedStorage(wrap_storage=storage, dtype=dtype, _internal=True)


def dumps(value: Any) -> bytes:
    """Pickle a value as cloudpickle does, with tensors as bytes."""
    return _dumped(value, _Pickler)


def _dumped(value: Any, pickler: type[_Pickler]) -> bytes:
    buffer = io.BytesIO()
    pickler(buffer).dump(value)
    return buffer.getvalue()


class _ValuePickler(_Pickler):
    """Moves tensors to the CPU, without autograd's history, and without the rest of their storage
    if they are a view of a part. (Parameters and other subclasses travel as torch pickles them.)
    """

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is torch.Tensor and obj.layout is torch.strided:
            is_part = obj.untyped_storage().nbytes() > obj.nbytes
            if obj.device.type != "cpu" or obj.grad_fn is not None or is_part:
                return obj.detach().cpu().clone().__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        return super().reducer_override(obj)


def dump_value(value: Any) -> bytes:
    """Pickle a rank's value for the driver. Raises what pickling raises."""
    return _dumped(value, _ValuePickler)
