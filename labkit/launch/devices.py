"""Where the ranks of a run are: on the CPU, on a GPU each, or several on one GPU.

    device=None     GPUs, one for each rank, where there are enough; else the CPU
    device="cpu"    the CPU, gloo
    device="cuda"   one GPU per rank, nccl; fewer GPUs than ranks: shared, rank r on GPU r % n

None never shares: tensors of ranks that share a GPU take a detour through the host, which is slower
than ranks that compute on the host in the first place, and nobody asked for it.
"""

import math
import os

import torch

from labkit.comm.placement import shares_gpus
from labkit.launch.machine.machine import Machine

# What a rank costs, measured on Linux with 2 cores, ranks that had met and done a backward pass:
# resident 165 MB, but all of that is the fork server's, shared, except for
RANK_BYTES = 8_000_000
# the driver's ends of a rank's pipes,
_FILES_OF_DRIVER = 5
# and in a rank what is open whatever the number of ranks (each peer adds a connection).
_FILES_OF_RANK = 20
# Every rank connects to every other one: 8 s for 256 ranks, 0.7 s for 64, on 2 cores.
_CONNECT_CORE_S = 0.25e-3
_SPARE_FILES = 16
_DEFAULT_TIMEOUT_S = 30.0


def chosen(device: object, world_size: int, num_gpus: int) -> str:
    """The device of a run: "cpu" or "cuda". Raises ValueError, naming the choices."""
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


def note(device: str, world_size: int, num_gpus: int) -> str:
    """The line that says that ranks share GPUs; empty where they do not."""
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
    """(ranks, why not more). Never under 1; what a rank's function itself needs comes on top.

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
    """How many ranks a driver can have that has `in_use` files open, of `limit`."""
    return min((limit - in_use - _SPARE_FILES) // _FILES_OF_DRIVER, limit - _FILES_OF_RANK)


def why_no_gpu() -> str:
    """The likeliest reason, for a message: "torch 2.9.0+cpu is built without CUDA"."""
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    if torch.version.cuda is None and torch.version.hip is None:
        return f"torch {torch.__version__} is built without CUDA"
    if hidden is not None:
        return f"CUDA_VISIBLE_DEVICES={hidden!r} hides those there may be"
    return "no driver answers (does nvidia-smi list one?)"
