"""Facts about this machine: cores, memory, files, and a container's share of them.

resources.py judges these facts. Nothing here raises: None means that the system does not report it,
or that there is no limit. `root` is "/", except in tests.

Inside a container the files under /proc still describe the whole host. The container's limits are
those of its control groups, version 2 or 1, on Linux:

    version 2   /sys/fs/cgroup/<group>/{cpu.max, memory.max, memory.current, memory.stat, pids.max}
    version 1   /sys/fs/cgroup/<controller>/<group>/{cpu.cfs_quota_us, memory.limit_in_bytes, ...}

A group's memory includes files that the kernel keeps in memory after they were read or written,
until it needs the room: a container that has copied a few GB stays close to its limit. This part is
subtracted here, as in MemAvailable. A limit on a group applies to all groups below it, so the
smallest limit on the way up counts.
"""

import os
import resource
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path("/")


@dataclass(frozen=True)
class Machine:
    """Facts about a machine. Sizes are bytes. None: this system does not report it."""

    num_cores: float
    """Cores' worth of time for this process, after affinity and a container's quota."""
    num_host_cores: int
    memory_bytes: int | None = None
    """All of it, or a container's limit where that is less."""
    available_bytes: int | None = None
    """Memory that programs can still take without swapping."""
    is_memory_limited: bool = False
    """A control group sets the limit, not the machine."""
    max_open_files: int | None = None
    """Descriptors of one process (the soft limit, which a process may raise)."""
    num_open_files: int = 0
    """Descriptors that this process has open now."""
    max_processes: int | None = None
    """Processes and threads, of this user or in this container."""


def look(root: Path = _ROOT) -> Machine:
    """Return the facts about this machine as it is now."""
    total, available = _memory(root)
    limit, left = memory_limit(root), memory_left(root)
    is_limited = limit is not None and (total is None or limit < total)
    return Machine(
        num_cores=usable_cores(root),
        num_host_cores=os.cpu_count() or 1,
        memory_bytes=limit if is_limited else total,
        available_bytes=_least(available, left),
        is_memory_limited=is_limited,
        max_open_files=_soft_limit("RLIMIT_NOFILE"),
        num_open_files=_num_open_files(),
        max_processes=_least(_soft_limit("RLIMIT_NPROC"), process_limit(root)),
    )


def usable_cores(root: Path = _ROOT) -> float:
    """Return the cores' worth of time for this process: 1.5 if its container gives it that."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    quota = cpu_limit(root)
    return float(cores) if quota is None else min(cores, quota)


def folder_sizes(folder: Path) -> tuple[int, int] | None:
    """Return (all, free) bytes of the file system under `folder`, or None without such a folder."""
    try:
        usage = shutil.disk_usage(folder)
    except OSError:
        return None
    return usage.total, usage.free


def _memory(root: Path) -> tuple[int | None, int | None]:
    """Return (all, available) bytes by Linux's own count; elsewhere only the first."""
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


_NO_LIMIT = 2**60  # version 1 writes "no limit" as a number close to 2**63
# Memory of a group and those below it; version 1 has "total_" before these names.
# Files of tmpfs, /dev/shm among them, are in none of the three: nothing can take their place.
_RECLAIMABLE = ("inactive_file", "active_file", "slab_reclaimable")


def cpu_limit(root: Path = _ROOT) -> float | None:
    """Return the cores' worth of time that the group may use: 1.5 is one and a half."""
    limits = [_quota(group) for group in _groups("cpu", root)]
    return min((limit for limit in limits if limit is not None), default=None)


def memory_limit(root: Path = _ROOT) -> int | None:
    """Return the bytes that all processes of the group may hold together."""
    return min((limit for limit, _ in _cgroup_memory(root)), default=None)


def memory_left(root: Path = _ROOT) -> int | None:
    """Return the bytes until the closest limit."""
    return min((limit - used for limit, used in _cgroup_memory(root)), default=None)


def process_limit(root: Path = _ROOT) -> int | None:
    """Return how many processes and threads the group may have together."""
    limits = [_number(group / "pids.max") for group in _groups("pids", root)]
    return min((limit for limit in limits if limit is not None), default=None)


def _cgroup_memory(root: Path) -> Iterator[tuple[int, int]]:
    """Return (limit, used) of each group that limits memory, without the kernel's file cache."""
    for group in _groups("memory", root):
        for limit_file, used_file, prefix in (
            ("memory.max", "memory.current", ""),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
        ):
            limit = _number(group / limit_file)
            if limit is not None and limit < _NO_LIMIT:
                used = _number(group / used_file) or 0
                yield limit, max(used - _reclaimable(group / "memory.stat", prefix), 0)


def _reclaimable(statistics: Path, prefix: str) -> int:
    """Return the bytes that the kernel gives back when they are asked for."""
    pairs = (line.partition(" ") for line in (_text(statistics) or "").splitlines())
    bytes_of = {name: number for name, _, number in pairs}
    return sum(_parsed(bytes_of.get(prefix + each), int) or 0 for each in _RECLAIMABLE)


def _quota(group: Path) -> float | None:
    words = (_text(group / "cpu.max") or "").split()
    if len(words) == 2 and words[0].isdigit() and words[1].isdigit():
        return int(words[0]) / max(int(words[1]), 1)
    quota, period = _number(group / "cpu.cfs_quota_us"), _number(group / "cpu.cfs_period_us")
    return quota / period if quota and period and quota > 0 else None


def _groups(controller: str, root: Path) -> Iterator[Path]:
    """Yield the folders of this process's groups that may limit `controller`, innermost first."""
    base = root / "sys/fs/cgroup"
    for line in (_text(root / "proc/self/cgroup") or "").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controller in controllers.split(","):
            yield from _upwards(base / controller, path)
        elif controllers == "":
            yield from _upwards(base, path)


def _upwards(mount: Path, path: str) -> Iterator[Path]:
    """Yield the folders from the group's own to where the groups are mounted."""
    group = mount / path.lstrip("/")
    while group != mount and mount in group.parents:
        yield group
        group = group.parent
    yield mount


def _number(path: Path) -> int | None:
    return _parsed(_text(path), int)


def _parsed(text: str | None, read: Callable[[str], int]) -> int | None:
    try:
        return None if text is None else read(text)
    except ValueError:
        return None  # "max"


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None
