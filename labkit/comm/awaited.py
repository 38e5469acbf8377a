"""What a rank's main thread waits for, of what torch has issued, where that is certain.

To have begun a collective is not to wait for it. A frame of C++ does not say what it does, but
torch's record has the Python stack with which each operation was begun: where the thread still
stands in that very call, it waits there.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

from torch.distributed import distributed_c10d as c10d

from labkit.comm import own_timeout
from labkit.comm.torchs_groups import group_of

_FUNCTIONAL = os.path.join("distributed", "_functional_collectives.py")
_INNERMOST = 8  # of a stack's frames: what they call is not the reader's
CALLS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "calls") + os.sep
"""Where calls past the Groups come by."""


def has_handlers() -> bool:
    """Whether the program handles signals, which it does while its main thread waits for a lock."""
    own = signal.valid_signals() - {signal.SIGINT, signal.SIGTERM}  # these come from outside
    return any(callable(signal.getsignal(number)) for number in own)


def _ends_by_itself(name: str) -> bool:
    """Whether the program has chosen a timeout for the process group that torch calls so."""
    named = (group for group, each in c10d._world.pg_names.items() if str(each) == name)
    return any(own_timeout.is_chosen(own_timeout.options_of(group)) for group in named)


def awaited(entries: Sequence[Mapping[str, Any]]) -> int | None:
    """Which of these the main thread waits for until it is over; None where nobody can say."""
    number = _waited_for(entries)
    if number is not None and _ends_by_itself(group_of(entries[number])):
        return None
    return number


def _waited_for(entries: Sequence[Mapping[str, Any]]) -> int | None:
    """The same, also for a wait that ends by a timeout.

    The oldest of those that it has begun in the very call of C++ that it is in, such as backward()
    with DDP. Or it waits for the tensor of a functional collective, and has begun only one.
    """
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    here = [
        (f.f_code.co_filename, f.f_code.co_name, line)
        for f, line in traceback.walk_stack(frame)
        if not f.f_code.co_filename.startswith(CALLS)  # our wrappers, of Work.wait and others
    ]
    for number, entry in enumerate(entries):
        begun = [
            (each["filename"], each["name"], each["line"])
            for each in entry.get("frames", [])
            if not each["filename"].startswith(CALLS)
        ]
        if begun and not entry["retired"] and begun == here[: len(begun)]:
            return number
    if any(function == "wait_tensor" for _, function, _ in here[:_INNERMOST]):
        functional = [n for n, entry in enumerate(entries) if _is_functional(entry)]
        return functional[0] if len(functional) == 1 else None
    return None


def _is_functional(entry: Mapping[str, Any]) -> bool:
    """Whether it is under way, and came out of torch.distributed._functional_collectives."""
    files = [frame["filename"] for frame in entry.get("frames", [])]
    return not entry["retired"] and any(file.endswith(_FUNCTIONAL) for file in files)
