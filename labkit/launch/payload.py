"""How a function travels to fresh processes, and its value back.

cloudpickle takes functions and closures defined in a notebook cell by value; those of importable
modules travel by name and are imported by the rank, so an edited file is read anew on every run.
"""

import io
import os
import pickle
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cloudpickle
import torch

from labkit.launch import sources


@dataclass(frozen=True)
class _Setting:
    """What a rank must have before it can unpickle the function itself."""

    environment: dict[str, str]
    working_directory: str
    import_path: list[str]
    cells: dict[str, list[str]]
    call: bytes


def write(path: Path, fn: Callable[..., Any], args_by_rank: Sequence[Sequence[Any]]) -> None:
    """Store the call for the ranks.

    Raises TypeError naming what cannot travel.
    """
    try:
        # One dump for all ranks: what they share is stored once.
        call = cloudpickle.dumps((fn, args_by_rank))
    except Exception as error:
        name = getattr(fn, "__qualname__", repr(fn))
        raise TypeError(
            f"{name} and its arguments cannot travel to the ranks: {error}. Open files, locks, "
            "sockets and generators stay behind: make them inside the function, or pass the data "
            "that they stand for"
        ) from error
    setting = _Setting(
        dict(os.environ), os.getcwd(), list(sys.path), sources.texts_of_cells(), call
    )
    path.write_bytes(pickle.dumps(setting))


def read(path: Path, rank: int) -> tuple[Callable[..., Any], Sequence[Any]]:
    """The function and this rank's arguments; makes the rank's surroundings the driver's."""
    setting: _Setting = pickle.loads(path.read_bytes())
    os.environ.clear()
    os.environ.update(setting.environment)
    os.chdir(setting.working_directory)
    sys.path[:] = setting.import_path
    sources.remember(setting.cells)
    fn, args_by_rank = pickle.loads(setting.call)
    return fn, args_by_rank[rank % len(args_by_rank)]


class _ValuePickler(cloudpickle.Pickler):
    """Tensors travel on the CPU, without autograd's history, and without the rest of a storage
    that they are a small view of. (Parameters and other subclasses travel as torch pickles them.)
    """

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is torch.Tensor and obj.layout is torch.strided:
            is_part = obj.untyped_storage().nbytes() > obj.nbytes
            if obj.device.type != "cpu" or obj.grad_fn is not None or is_part:
                return obj.detach().cpu().clone().__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        return super().reducer_override(obj)


def dump_value(value: Any) -> bytes:
    """A rank's value for the driver. Raises what pickling raises."""
    buffer = io.BytesIO()
    _ValuePickler(buffer).dump(value)
    return buffer.getvalue()
