"""What this machine gives a run: cores, memory, files. Facts only; resources.py judges them.

Nothing here raises: what a system does not tell is None. `root` is "/", but in tests.
"""

import os
import resource
import shutil
from dataclasses import dataclass
from pathlib import Path

from labkit.launch.machine import cgroup

_ROOT = Path("/")


@dataclass(frozen=True)
class Machine:
    """Sizes are bytes. None: this system does not say."""

    num_cores: float
    """Cores' worth of time for this process, after affinity and a container's quota."""
    num_host_cores: int
    memory_bytes: int | None = None
    """All of it, or a container's limit where that is less."""
    available_bytes: int | None = None
    """What programs can still take without swapping."""
    is_memory_limited: bool = False
    """A control group sets the limit, not the machine."""
    max_open_files: int | None = None
    """Of one process (the soft limit, which a process may raise)."""
    num_open_files: int = 0
    """Of this process, now."""
    max_processes: int | None = None
    """Processes and threads, of this user or in this container."""


def look(root: Path = _ROOT) -> Machine:
    """The machine as it is now."""
    total, available = _memory(root)
    limit, left = cgroup.memory_limit(root), cgroup.memory_left(root)
    is_limited = limit is not None and (total is None or limit < total)
    return Machine(
        num_cores=usable_cores(root),
        num_host_cores=os.cpu_count() or 1,
        memory_bytes=limit if is_limited else total,
        available_bytes=_least(available, left),
        is_memory_limited=is_limited,
        max_open_files=_soft_limit("RLIMIT_NOFILE"),
        num_open_files=_num_open_files(),
        max_processes=_least(_soft_limit("RLIMIT_NPROC"), cgroup.process_limit(root)),
    )


def usable_cores(root: Path = _ROOT) -> float:
    """Cores' worth of time that this process may use: 1.5 where a container gives it that."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    quota = cgroup.cpu_limit(root)
    return float(cores) if quota is None else min(cores, quota)


def folder_sizes(folder: Path) -> tuple[int, int] | None:
    """(all, free) bytes of the file system under `folder`; None where there is no such folder."""
    try:
        usage = shutil.disk_usage(folder)
    except OSError:
        return None
    return usage.total, usage.free


def _memory(root: Path) -> tuple[int | None, int | None]:
    """(all, available), by Linux's own count; elsewhere only the first."""
    sizes = {}
    try:
        for line in (root / "proc/meminfo").read_text().splitlines():
            name, _, rest = line.partition(":")
            sizes[name] = int(rest.split()[0]) * 1024
    except (OSError, ValueError, IndexError):
        sizes = {}
    if "MemTotal" in sizes:
        return sizes["MemTotal"], sizes.get("MemAvailable")
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), None
    except (OSError, ValueError):
        return None, None


def _soft_limit(name: str) -> int | None:
    try:
        soft, _ = resource.getrlimit(getattr(resource, name))
    except (AttributeError, OSError, ValueError):
        return None
    return None if soft == resource.RLIM_INFINITY or soft < 0 else soft


def _num_open_files() -> int:
    for folder in ("/proc/self/fd", "/dev/fd"):
        try:
            return len(os.listdir(folder))
        except OSError:
            continue
    return 0


def _least(*amounts: int | None) -> int | None:
    return min((amount for amount in amounts if amount is not None), default=None)
