"""What a container may use: limits of control groups, version 2 or 1, on Linux.

Inside a container the files under /proc still speak of the whole host; the limits are elsewhere:

    version 2   /sys/fs/cgroup/<group>/{cpu.max, memory.max, memory.current, memory.stat, pids.max}
    version 1   /sys/fs/cgroup/<controller>/<group>/{cpu.cfs_quota_us, memory.limit_in_bytes, ...}

What a group uses counts the files that it has read or written and that the kernel keeps in memory
while nobody needs it for more: a container that has copied a few GB stands close to its limit for
good. That part is given back when asked for, and is subtracted here, as it is from MemAvailable.

A limit on a group binds all groups below it, so the smallest on the way up counts. Every function
returns None where there is no limit, no control group or no Linux. `root` is "/", but in tests.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

_ROOT = Path("/")
_NO_LIMIT = 2**60  # version 1 writes "no limit" as a number close to 2**63
# Of a group and those below it; version 1 has "total_" before the names where it means these.
# Files of tmpfs, /dev/shm among them, are in none of the three: nothing can take their place.
_RECLAIMABLE = ("inactive_file", "active_file", "slab_reclaimable")


def cpu_limit(root: Path = _ROOT) -> float | None:
    """Cores' worth of time that may be used: 1.5 is one and a half."""
    limits = [_quota(group) for group in _groups("cpu", root)]
    return min((limit for limit in limits if limit is not None), default=None)


def memory_limit(root: Path = _ROOT) -> int | None:
    """Bytes that all processes of the group may hold together."""
    return min((limit for limit, _ in _memory(root)), default=None)


def memory_left(root: Path = _ROOT) -> int | None:
    """Bytes until the limit that is closest."""
    return min((limit - used for limit, used in _memory(root)), default=None)


def process_limit(root: Path = _ROOT) -> int | None:
    """Processes and threads that the group may have together."""
    limits = [_number(group / "pids.max") for group in _groups("pids", root)]
    return min((limit for limit in limits if limit is not None), default=None)


def _memory(root: Path) -> Iterator[tuple[int, int]]:
    """(limit, used) of each group that limits memory; used: what cannot be given back."""
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
    """Bytes that the kernel gives back when they are asked for."""
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
    """The folders of this process's groups that may limit `controller`, innermost first."""
    base = root / "sys/fs/cgroup"
    for line in (_text(root / "proc/self/cgroup") or "").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controller in controllers.split(","):
            yield from _upwards(base / controller, path)
        elif controllers == "":
            yield from _upwards(base, path)


def _upwards(mount: Path, path: str) -> Iterator[Path]:
    """From the group's own folder to where the groups are mounted, which is all a container has."""
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
