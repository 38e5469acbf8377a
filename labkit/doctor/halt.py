"""Halted processes: what the kernel says of a process that cannot answer.

A stopped process executes nothing, not even a signal's handler. One in uninterruptible sleep
executes nothing either, until the disk, file server or driver that it waits for has answered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_STOPPED, _TRACED, _SLEEPING = "T", "t", "D"


@dataclass(frozen=True)
class Halt:
    """Why a process does not go on, in words that come after its rank."""

    description: str
    """`is stopped (SIGSTOP, or a debugger)`."""
    continued_by: int | None = None
    """The process id for `kill -CONT`; None where that is of no use."""
    is_stop: bool = True
    """Somebody must let it go on; one in uninterruptible sleep may do so at any moment."""


def cure(halts: Sequence[Halt]) -> str:
    """`; `kill -CONT 71` lets it go on`; empty where nothing from outside does."""
    pids = [halt.continued_by for halt in halts if halt.continued_by is not None]
    it = "it" if len(pids) == 1 else "them"
    return f"; `kill -CONT {' '.join(map(str, pids))}` lets {it} go on" if pids else ""


def halt_of(pid: int | None, proc: Path = _PROC) -> Halt | None:
    """Return what keeps a process from running; None: nothing, or unknown (no Linux)."""
    try:
        stat = (proc / str(pid) / "stat").read_text(errors="replace")
        # pid (name) state ...: a name may hold blanks and brackets of its own.
        state = stat.rpartition(")")[2].split()[0]
        tracer = _tracer(proc / str(pid) / "status") if state == _TRACED else ""
    except (OSError, IndexError):
        return None
    if state == _STOPPED:
        return Halt("is stopped (SIGSTOP, or a debugger)", continued_by=pid)
    if state == _TRACED:
        return Halt(f"is stopped by a debugger (process {tracer})")
    if state == _SLEEPING:
        what = "a disk, a network file system or a driver"
        return Halt(f"is in uninterruptible sleep ({what} has not answered)", is_stop=False)
    return None


def _tracer(status: Path) -> str:
    """The process id of the debugger."""
    lines = status.read_text(errors="replace").splitlines()
    found = [line.split()[1] for line in lines if line.startswith("TracerPid:")]
    return found[0]
