"""Check the arguments of a run or a session before anything starts.

Ranks are on the CPU, on a GPU each, or several on one GPU:

    device=None     GPUs, one for each rank, where there are enough; else the CPU
    device="cpu"    the CPU, gloo
    device="cuda"   one GPU per rank, nccl; fewer GPUs than ranks: shared, rank r on GPU r % n

None never shares GPUs: then messages would go through the host, which is slower than computing on
the CPU.
"""

import inspect
import math
import os
from collections.abc import Iterable, Sequence

import torch

from labkit import arguments
from labkit.comm import Topology
from labkit.comm.connect import shares_gpus
from labkit.launch import machine as machines
from labkit.launch.machine import Machine

LONGEST_TIMEOUT_S = 7 * 24 * 3600

# The cost of a rank after a backward pass, measured on Linux with 2 cores: 165 MB are resident, but
# all except these are shared with the fork server.
RANK_BYTES = 8_000_000
# The driver's ends of a rank's pipes.
_FILES_OF_DRIVER = 5
# Files that a rank has open with any number of ranks. Each peer adds a connection.
_FILES_OF_RANK = 20
# Every rank connects to every other one: 8 s for 256 ranks, 0.7 s for 64, on 2 cores.
_CONNECT_CORE_S = 0.25e-3
_SPARE_FILES = 16
_DEFAULT_TIMEOUT_S = 120.0


def check_function(fn: object) -> None:
    """Raises TypeError for what a rank cannot call to its end."""
    if not callable(fn):
        raise TypeError(f"run() calls a function on every rank; {fn!r} is not one")
    if inspect.iscoroutinefunction(fn) or inspect.isgeneratorfunction(fn):
        raise TypeError(
            f"{fn!r} would only be started: a rank calls a plain function, to its end. Make it one "
            "without async and yield"
        )


def check_args(args: object) -> None:
    """Raises TypeError for what is no list of arguments."""
    if not isinstance(args, Sequence) or isinstance(args, (str, bytes)):
        raise TypeError(f"args={args!r}: give the arguments after `world` as a tuple, ({args!r},)")


def checked_device(world_size: object, timeout: object, device: str | None) -> str:
    """Return the device, "cpu" or "cuda". Raises ValueError for ranks that cannot be started."""
    num_ranks = arguments.whole("world_size", world_size, "the number of ranks, 1 or more")
    check_number(num_ranks, checked_timeout(timeout), machines.look())
    return chosen_device(device, num_ranks, torch.cuda.device_count())


def checked_topology(topology: object, world_size: int, device: str | None) -> str | None:
    """Return the device to ask for: with a topology the CPU if it is None, else `device`.

    Raises TypeError and ValueError for a topology that is none or has other ranks, and for nccl.
    """
    if topology is None:
        return device
    if not isinstance(topology, Topology):
        raise TypeError(
            f"topology={topology!r}: give a labkit.Topology(hosts=..., ranks_per_host=..., "
            "fast=Link(...), slow=Link(...)), a labkit.FatTree, or None"
        )
    topology.check_world_size(world_size)
    if device == "cuda" and not shares_gpus(world_size, torch.cuda.device_count()):
        raise ValueError(
            "topology=... throttles messages when they are waited for, and nccl, which a GPU for "
            "each rank would use, does not wait: it orders the GPU's work. Choose device='cpu'"
        )
    return device or "cpu"


def check_engine(name: object) -> None:
    """Raises ValueError unless `name` is an engine's."""
    if name not in ("local", "torchrun"):
        raise ValueError(
            f"engine={name!r} is unknown; choose 'local' (fork server, a tenth of a second) or "
            "'torchrun' (torch's elastic agent, some seconds)"
        )


def checked_timeout(timeout: object) -> float:
    """Seconds until a run or a cell is ended. Raises TypeError and ValueError."""
    allowed = f"seconds above 0, at most {LONGEST_TIMEOUT_S}"
    return arguments.number("timeout", timeout, allowed, above=0, most=LONGEST_TIMEOUT_S)


def checked_stall(stall: object) -> float | None:
    """Seconds without progress until the doctor is asked; None: never. As `checked_timeout`."""
    if stall is None:
        return None
    allowed = f"seconds above 0 until the doctor looks, at most {LONGEST_TIMEOUT_S}; None: never"
    return arguments.number("stall", stall, allowed, above=0, most=LONGEST_TIMEOUT_S)


def checked_ranks(ranks: Iterable[int] | None, world_size: int) -> Sequence[int]:
    """Return the ranks to run on, in order; None: all. Raises ValueError for an unknown one."""
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


def chosen_device(device: object, world_size: int, num_gpus: int) -> str:
    """Return the device of a run, "cpu" or "cuda". Raises ValueError, naming the choices."""
    if device is None:
        return "cuda" if num_gpus >= world_size else "cpu"
    if device not in ("cpu", "cuda"):
        known = "mps has no collectives in torch" if device == "mps" else "it is unknown"
        raise ValueError(
            f"device={device!r}: {known}; choose 'cpu' or 'cuda', or leave it out: "
            "GPUs where there is one for each rank, the CPU elsewhere"
        )
    if device == "cuda" and num_gpus == 0:
        raise ValueError(
            f"device='cuda': torch sees no GPU here, since {why_no_gpu()}; choose device='cpu', "
            "or leave it out"
        )
    return str(device)


def note_on_gpus(device: str, world_size: int, num_gpus: int) -> str:
    """Return the note that ranks share GPUs; empty where they do not."""
    if device != "cuda" or not shares_gpus(world_size, num_gpus):
        return ""
    gpus = "1 GPU" if num_gpus == 1 else f"{num_gpus} GPUs"
    return (
        f"{world_size} ranks share {gpus}: tensors live on the GPU, messages go through the host "
        "(gloo), since nccl allows one rank per GPU"
    )


def check_number(world_size: int, timeout_s: float, machine: Machine) -> None:
    """Raises ValueError for more ranks than this machine can start, with what they would need."""
    most, reason = most_ranks(timeout_s, machine)
    if world_size > most:
        raise ValueError(
            f"world_size={world_size} is more than this machine can start. {reason}. Use at most "
            f"{most}; what more ranks would cost, labkit.calc says without starting any"
        )


def most_ranks(timeout_s: float, machine: Machine) -> tuple[int, str]:
    """Return (ranks, why not more), at least 1. The needs of a rank's function are not counted.

    There is no fixed cap: the number follows from memory, open files, and the time to connect.
    """
    patience_s = max(timeout_s, _DEFAULT_TIMEOUT_S)
    cores = machine.num_cores
    limits = [
        (
            int(math.sqrt(patience_s * cores / _CONNECT_CORE_S)),
            f"Each rank connects to each other one, which takes {cores:g} cores about "
            f"{_CONNECT_CORE_S * 1e3:g} ms / {cores:g} per pair, and the run ends after "
            f"{patience_s:g} s (timeout=)",
        )
    ]
    if machine.available_bytes is not None:
        limits.append(
            (
                machine.available_bytes // RANK_BYTES,
                f"A rank takes {RANK_BYTES // 10**6} MB before it allocates anything, and "
                f"{machine.available_bytes / 1e9:.1f} GB of memory are available",
            )
        )
    if machine.max_open_files is not None:
        limits.append(
            (
                ranks_by_open_files(machine.max_open_files, machine.num_open_files),
                f"The driver holds {_FILES_OF_DRIVER} open files per rank, and a process may have "
                f"{machine.max_open_files} (ulimit -n; {machine.num_open_files} are in use)",
            )
        )
    most, reason = min(limits)
    return max(most, 1), reason


def ranks_by_open_files(limit: int, in_use: int) -> int:
    """Return how many ranks a driver can have that has `in_use` files open, of `limit`."""
    return min((limit - in_use - _SPARE_FILES) // _FILES_OF_DRIVER, limit - _FILES_OF_RANK)


def why_no_gpu() -> str:
    """Return the likeliest reason, for a message: "torch 2.9.0+cpu is built without CUDA"."""
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    if torch.version.cuda is None and torch.version.hip is None:
        return f"torch {torch.__version__} is built without CUDA"
    if hidden is not None:
        return f"CUDA_VISIBLE_DEVICES={hidden!r} hides those there may be"
    return "no driver answers (does nvidia-smi list one?)"
