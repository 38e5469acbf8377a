"""Cores, memory, limits, GPUs and the folder for files, judged by what the lab's runs need.

Each function judges one fact and returns a Finding that says, where something is wrong, why it
matters here and what to do. None raises: a fact that the system does not report is "unknown".
"""

import mmap
import sys
import tempfile
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

import torch

from labkit.launch.machine import Machine, folder_sizes
from labkit.launch.request import ranks_by_open_files, why_no_gpu

# Measured: the fork server with torch in it 0.25 GB, Jupyter and a kernel with matplotlib 0.5 GB;
# the rest is for what ranks allocate.
_ENOUGH_BYTES = 1_500_000_000
_LEAST_BYTES = 250_000_000
_ENOUGH_SHM_BYTES = 128 * 2**20
_USUAL_RANKS = 8  # as many as the notebooks start
_KERNEL_FILES = 64  # a notebook's kernel has these open before any run
# A kernel has about 30 threads, a rank 5 or 6, the Jupyter server a dozen.
_ENOUGH_PROCESSES = 128
_NVIDIA = (Path("/proc/driver/nvidia/version"), Path("/dev/nvidia0"), Path("/dev/nvidiactl"))
_ENOUGH_FREE_BYTES = 500_000_000
_LEAST_FREE_BYTES = 20_000_000  # journals of eight ranks, and a payload
_ELSEWHERE = "name another folder in the environment variable TMPDIR, on a local disk, and restart"


class Level(IntEnum):
    """How much a finding matters."""

    OK = 0
    WARNING = 1
    """Runs work, but something will be slow, missing or in the way."""
    ERROR = 2
    """No run can work."""


@dataclass(frozen=True, slots=True)
class Finding:
    """`why` and `fix` are empty where nothing is wrong."""

    subject: str
    """The subject: "memory"."""
    text: str
    """The finding: "25.3 GB, 24.7 GB available"."""
    level: Level = Level.OK
    why: str = ""
    """Why it matters to the runs of this lab."""
    fix: str = ""
    """The next step."""


def size_text(nbytes: int) -> str:
    """Bytes as "25.3 GB" (1e9) or "64 MB" (1e6)."""
    return f"{nbytes / 1e9:.1f} GB" if nbytes >= 1e9 else f"{nbytes / 1e6:.0f} MB"


def cores(machine: Machine) -> Finding:
    """Return whether ranks can run side by side."""
    text = f"{machine.num_cores:g}"
    if machine.num_cores < machine.num_host_cores:
        text += f" of the machine's {machine.num_host_cores} (affinity or a container's quota)"
    if machine.num_cores >= 2:
        return Finding("cores", text)
    return Finding(
        "cores",
        text,
        Level.WARNING,
        "ranks take turns instead of running side by side, so everything is right but slow, and "
        "overlap of computing and communication cannot be seen",
        "give the container or the virtual machine 2 cores or more (docker run --cpus=2)",
    )


def memory(machine: Machine) -> Finding:
    """Return whether there is room for Jupyter, the fork server and the ranks."""
    total, available = machine.memory_bytes, machine.available_bytes
    text = "unknown" if total is None else size_text(total)
    text += " (the container's limit)" if machine.is_memory_limited else ""
    text += "" if available is None else f", {size_text(max(available, 0))} available"
    known = total if available is None else available
    if known is None or known >= _ENOUGH_BYTES:
        return Finding("memory", text)
    more = "raise the container's limit (docker run --memory=4g)"
    return Finding(
        "memory",
        text,
        Level.ERROR if known < _LEAST_BYTES else Level.WARNING,
        f"torch alone takes {size_text(_LEAST_BYTES)}, a notebook twice that; when memory runs "
        "out the system ends a process, and a run says that a rank died by SIGKILL",
        f"{more if machine.is_memory_limited else 'close other programs'}, or use small sizes",
    )


def shared_memory(folder: Path = Path("/dev/shm"), platform: str = sys.platform) -> Finding:
    """Return whether /dev/shm, which only Linux has, is large enough."""
    if not platform.startswith("linux"):
        return Finding("shared memory", "no /dev/shm on this system, and none needed")
    sizes = folder_sizes(folder)
    if sizes is not None and sizes[1] >= _ENOUGH_SHM_BYTES:
        return Finding(
            "shared memory", f"{folder}: {size_text(sizes[0])}, {size_text(sizes[1])} free"
        )
    found = "not there" if sizes is None else f"{size_text(sizes[0])}, {size_text(sizes[1])} free"
    return Finding(
        "shared memory",
        f"{folder}: {found}",
        Level.WARNING,
        'nccl and the workers of a DataLoader hand tensors over there, and end in "Bus error" '
        "when it is full; of labkit, collectives through shared memory need 16 MiB for each group",
        "docker run --shm-size=1g, or mount a larger tmpfs there: "
        f"mount -t tmpfs -o size=1g tmpfs {folder}",
    )


def open_files(machine: Machine) -> Finding:
    """Return how many ranks the limit of open files allows."""
    limit = machine.max_open_files
    if limit is None:
        return Finding("open files", "no limit that this system reports")
    in_use = max(machine.num_open_files, _KERNEL_FILES)
    most = ranks_by_open_files(limit, in_use)
    most_here = ranks_by_open_files(limit, machine.num_open_files)
    can_run = most_here >= 2
    text = f"{limit} per process (ulimit -n): enough for {_ranks(most)}"
    if most >= _USUAL_RANKS and can_run:
        return Finding("open files", text)
    if most < most_here:
        # Else it would contradict the run of two ranks, which is made in this process.
        text += (
            f" in a notebook, whose kernel has {_KERNEL_FILES} open itself, and for "
            f"{_ranks(most_here)} in a terminal"
        )
    return Finding(
        "open files",
        text,
        Level.WARNING if can_run else Level.ERROR,
        "the driver holds 5 open files for each rank, and a rank one for each of its peers",
        "ulimit -n 4096, in the shell from which you start Jupyter",
    )


def _ranks(number: int) -> str:
    if number >= 256:
        return "hundreds of ranks"
    return "1 rank" if number == 1 else f"{max(number, 0)} ranks"


def processes(machine: Machine) -> Finding:
    """Return whether ranks, with their threads, may be started at all."""
    limit = machine.max_processes
    if limit is None or limit >= _ENOUGH_PROCESSES:
        return Finding("processes", "no limit" if limit is None else f"at most {limit}")
    return Finding(
        "processes",
        f"at most {limit}, threads included",
        Level.WARNING,
        'a rank is a process of 6 threads, and a kernel has 30: a run may end in "Resource '
        'temporarily unavailable"',
        "docker run --pids-limit=1024, or ulimit -u 1024 in the shell from which you start Jupyter",
    )


def gpus() -> Finding:
    """Return the GPUs that torch sees."""
    try:
        names = [_name(number) for number in range(torch.cuda.device_count())]
    except Exception as error:  # a driver of another version raises anything
        return _unusable(f"torch cannot ask the driver: {str(error).splitlines()[0]}")
    if names:
        return Finding("GPUs", f"{len(names)}: {', '.join(names)}")
    if any(path.exists() for path in _NVIDIA):
        return _unusable(f"there is an NVIDIA driver, but torch sees no GPU: {why_no_gpu()}")
    return Finding("GPUs", "none, and none needed: everything here runs on the CPU")


def _name(number: int) -> str:
    found = torch.cuda.get_device_properties(number)
    return f"{found.name} ({size_text(found.total_memory)})"


def _unusable(text: str) -> Finding:
    return Finding(
        "GPUs",
        text,
        Level.WARNING,
        'runs with device="cuda" are refused; all others use the CPU',
        "install a build of torch for CUDA (make clean, then make lab "
        "TORCH_INDEX=https://download.pytorch.org/whl/cu130), and unset CUDA_VISIBLE_DEVICES",
    )


def temporary_files(folder: Path | None = None) -> Finding:
    """Return whether the folder takes files, and shows writes through a mapping in the file."""
    try:
        folder = Path(tempfile.gettempdir()) if folder is None else folder
        with tempfile.TemporaryDirectory(prefix="labkit-doctor-", dir=folder) as mine:
            fault = _fault_of_mapping(Path(mine) / "journal")
    except OSError as error:
        return Finding(
            "temporary files",
            f"{folder or 'no usable folder'}: {error.strerror or error}",
            Level.ERROR,
            "a run keeps its function, its ranks' journals and their results in such a folder",
            f"make it writable, or {_ELSEWHERE}",
        )
    if fault:
        return Finding(
            "temporary files",
            f"{folder}: {fault}",
            Level.ERROR,
            "ranks write their journals into mapped files, so that a dead rank's can still be read",
            _ELSEWHERE,
        )
    sizes = folder_sizes(folder)
    free = None if sizes is None else sizes[1]
    text = f"{folder}: {'unknown space' if free is None else size_text(free) + ' free'}"
    if free is None or free >= _ENOUGH_FREE_BYTES:
        return Finding("temporary files", f"{text}, mapped files work")
    return Finding(
        "temporary files",
        text,
        Level.ERROR if free < _LEAST_FREE_BYTES else Level.WARNING,
        "results and journals of a run go there; a full disk ends ranks in the middle of it",
        f"make room there, or {_ELSEWHERE}",
    )


def _fault_of_mapping(path: Path) -> str:
    """Return why a journal would not work in this folder; empty if it would."""
    with open(path, "w+b") as file:
        file.truncate(mmap.PAGESIZE)
        try:
            mapped = mmap.mmap(file.fileno(), mmap.PAGESIZE)
        except (OSError, ValueError) as error:
            return f"files there cannot be mapped into memory ({error})"
        with mapped:
            mapped[:4] = b"seen"
            if path.read_bytes()[:4] != b"seen":  # before a flush: as the driver reads a journal
                return "what is written through a mapping does not show in the file"
    return ""
