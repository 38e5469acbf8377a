"""A rank's Python stack, as faulthandler wrote it on request, even while blocked in C++."""

from __future__ import annotations

import linecache
import os
import re
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from labkit.comm import Site
from labkit.comm.callers import is_machinery, is_of_a_library
from labkit.doctor import sources

_MAIN = re.compile(r"in (rank|session)_main\b")
_LAUNCHER = re.compile(r"labkit/(launch/(rank|session/in_rank)|elastic/restarts)\.py")
# Threads that bring no operation: the one that waits for the driver's end, and those of C++ that
# have been in Python once. Where torch sees a GPU, autograd keeps one for each from the first
# backward pass on. In a pass they do call Python, but then the thread that began it is listed too.
_IDLE = ("in _watch_lifeline", "<no Python frame>")
_THREADING = f"{os.sep}threading.py"
# A lock or event, another thread's end (with a timeout it reads otherwise; Python 3.13 has no such
# line), the next piece of work for a thread of a pool, another rank.
_HOLDING = (
    (_THREADING, "waiter.acquire()"),
    (_THREADING, "self._wait_for_tstate_lock()"),
    (os.path.join("concurrent", "futures", "thread.py"), "work_item = work_queue.get(block=True)"),
    (os.path.join("labkit", "comm", "member.py"), "self._work.wait()"),
)
_JOINING = " in _wait_for_tstate_lock"  # its caller says whether without a timeout
_LINE = re.compile(r'File "([^"]+)", line (\d+) in (.+)')


@dataclass(frozen=True)
class Stack:
    """Where a rank was."""

    is_known: bool = False
    text: str = ""
    """The reader's frames, innermost last; cells are called by their number. Empty once the
    function is over."""
    site: Site | None = None
    """The innermost line that belongs to neither labkit nor torch."""
    num_other_threads: int = 0
    """Threads in Python besides the one that runs the function: they may communicate, too."""
    is_held: bool = False
    """True if all of its threads wait for one of them, or for another rank: none goes on alone."""


MUTE = Stack(num_other_threads=1)
"""The stack of a rank that was asked and has not answered: it may have any number of threads."""


def read(path: Path) -> Stack:
    """The stack in the file, once faulthandler has written all of it."""
    try:
        text = path.read_text(errors="replace")
    except FileNotFoundError:
        return Stack()  # the rank is still on its way to its first line
    # (Of a crash it says "Stack", where it does not know the thread.)
    parts = [part for part in text.split("\n\n") if "hread 0x" in part or "Stack (" in part]
    # Where a rank has answered twice, each thread as it stood last.
    threads = list({_identity(part): part for part in parts}.values())
    # faulthandler stops after 100 frames: then only its mark of the thread is left.
    mains = [thread for thread in threads if _MAIN.search(thread)]
    mains += [thread for thread in threads if "\n  ..." in thread]
    if not mains:
        return Stack()
    others = [
        thread
        for thread in threads
        if thread is not mains[0] and not any(mark in thread for mark in _IDLE)
    ]
    lines = mains[0].strip().splitlines()[1:]  # innermost first, below a heading
    own = list(takewhile(lambda line: not _LAUNCHER.search(line), lines))
    is_held = (_is_held(lines) or _awaits_command(lines)) and all(
        _is_held(thread.strip().splitlines()[1:]) for thread in others
    )
    return Stack(True, _shown(own), _innermost(own), len(others), is_held)


def _identity(thread: str) -> str:
    """Return faulthandler's name of a thread: `Current thread 0x7f01 (most recent call first):`."""
    return found[0] if (found := re.search("0x[0-9a-f]+", thread.strip().split("\n")[0])) else ""


def _is_held(lines: list[str]) -> bool:
    """Return whether a thread waits, without a timeout, in one of these innermost lines."""
    inner = [line for line in lines if not line.endswith(_JOINING)]
    found = _LINE.search(inner[0]) if inner else None
    said = "" if found is None else linecache.getline(found[1], int(found[2])).strip()
    return found is not None and any(
        found[1].endswith(file) and said == line for file, line in _HOLDING
    )


def _awaits_command(lines: list[str]) -> bool:
    """Return whether a session's rank stands between two cells: it posts nothing in this one."""
    outside = [line for line in lines if f"{os.sep}connection.py" not in line]
    return bool(outside) and outside[0].endswith(" in session_main")


def _shown(lines: list[str]) -> str:
    """The reader's frames with their source, and below them the first of labkit's or torch's."""
    shown: list[str] = []
    for line in reversed(lines):
        found = _LINE.search(line)
        is_own = found is None or not is_machinery(found[1])
        shown.append(line)
        if found is not None and is_own:
            shown.append(f"    {linecache.getline(found[1], int(found[2])).strip()}")
    last = max((n for n, line in enumerate(shown) if line.startswith("    ")), default=-1)
    return sources.with_cells_named("\n".join(shown[: last + 2]))


def _innermost(lines: list[str]) -> Site | None:
    for line in lines:
        if (found := _LINE.search(line)) and not is_of_a_library(found[1]):
            return Site(found[1], int(found[2]), found[3])
    return None


def own_frames(trace: str) -> str:
    """A traceback's frames that belong to neither labkit nor torch, with their source lines."""
    kept: list[str] = []
    is_own = False
    for line in trace.splitlines():
        if found := re.match(r'  File "([^"]+)"', line):
            is_own = not is_machinery(found[1])
        elif not line.startswith("    "):
            is_own = False
        if is_own:
            kept.append(line)
    return "\n".join(kept)
