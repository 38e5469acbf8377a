"""What a run and a session may ask for: checked before anything starts."""

import inspect
from collections.abc import Iterable, Sequence

import torch

from labkit.comm import Topology
from labkit.comm.placement import shares_gpus
from labkit.launch import devices
from labkit.launch.machine import machine

LONGEST_TIMEOUT_S = 7 * 24 * 3600


def check_function(fn: object) -> None:
    """Raises TypeError for what a rank cannot call to its end."""
    if not callable(fn):
        raise TypeError(f"run() calls a function on every rank; {fn!r} is not one")
    if inspect.iscoroutinefunction(fn) or inspect.isgeneratorfunction(fn):
        raise TypeError(
            f"{fn!r} would only be begun: a rank calls a plain function, to its end. Make it one "
            "without async and yield"
        )


def check_args(args: object) -> None:
    """Raises TypeError for what is no list of arguments."""
    if not isinstance(args, Sequence) or isinstance(args, (str, bytes)):
        raise TypeError(f"args={args!r}: give the arguments after `world` as a tuple, ({args!r},)")


def checked_device(world_size: object, timeout: object, device: str | None) -> str:
    """The device to use, "cpu" or "cuda". Raises ValueError for ranks that cannot be started."""
    if not isinstance(world_size, int) or isinstance(world_size, bool) or world_size < 1:
        raise ValueError(f"world_size={world_size!r}: give the number of ranks, 1 or more")
    timeout_s = checked_timeout(timeout)
    devices.check_number(world_size, timeout_s, machine.look())
    return devices.chosen(device, world_size, torch.cuda.device_count())


def checked_topology(topology: object, world_size: int, device: str | None) -> str | None:
    """The device to ask for, given the topology: without one, `device`.

    Raises TypeError and ValueError for a topology that is none or has other ranks, and for nccl.
    """
    if topology is None:
        return device
    if not isinstance(topology, Topology):
        raise TypeError(
            f"topology={topology!r}: give a labkit.Topology(hosts=..., ranks_per_host=..., "
            "fast=Link(...), slow=Link(...)), or None"
        )
    topology.check_world_size(world_size)
    if device == "cuda" and not shares_gpus(world_size, torch.cuda.device_count()):
        raise ValueError(
            "topology=... paces messages when they are waited for, and nccl, which a GPU for each "
            "rank would use, does not wait: it orders the GPU's work. Choose device='cpu'"
        )
    return device or "cpu"


def checked_timeout(timeout: object) -> float:
    """Seconds until a run or a cell is ended. Raises ValueError."""
    is_number = isinstance(timeout, (int, float)) and not isinstance(timeout, bool)
    if not is_number or not 0 < timeout <= LONGEST_TIMEOUT_S:  # type: ignore[operator]
        raise ValueError(
            f"timeout={timeout!r}: give a number of seconds above 0, at most {LONGEST_TIMEOUT_S}"
        )
    return timeout  # type: ignore[return-value]


def checked_stall(stall: object) -> float | None:
    """Seconds without progress until the doctor is asked; None: never. Raises ValueError."""
    is_number = isinstance(stall, (int, float)) and not isinstance(stall, bool)
    if stall is not None and (not is_number or not 0 < stall <= LONGEST_TIMEOUT_S):  # type: ignore[operator]
        raise ValueError(
            f"stall={stall!r}: give a number of seconds above 0 after which the doctor looks into "
            f"a run in which nothing moves, at most {LONGEST_TIMEOUT_S}, or None for never"
        )
    return stall  # type: ignore[return-value]


def checked_ranks(ranks: Iterable[int] | None, world_size: int) -> Sequence[int]:
    """Those to run on, in order; None: all. Raises ValueError for one that is not there.

    `world_size` may still be any number: nothing is made that grows with it.
    """
    every = range(world_size)
    if ranks is None:
        return every
    if not isinstance(ranks, Iterable):
        raise ValueError(f"ranks={ranks!r}: give the numbers of ranks, such as [0, 2]")
    on = set()
    for rank in ranks:
        if type(rank) is not int:
            raise ValueError(f"ranks={ranks!r}: give the numbers of ranks, such as [0, 2]")
        if rank not in every:
            raise _not_there(rank, world_size)
        on.add(rank)
    if not on:
        raise _not_there([], world_size)
    return sorted(on)


def _not_there(ranks: object, world_size: int) -> ValueError:
    known = "rank 0" if world_size == 1 else f"ranks 0 to {world_size - 1}"
    return ValueError(f"ranks={ranks}: this session has {known}; name some of them")
