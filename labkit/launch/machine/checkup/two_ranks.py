"""Two real ranks that meet, add and return: what no look at the parts can promise."""

import os
import threading
import time
from collections.abc import Callable

import torch

from labkit.comm import Group
from labkit.launch.machine.checkup.finding import Finding, Level
from labkit.launch.run import launch

_LIMIT_S = 6.0
_SLOW_S = 1.0  # it takes 0.05 s; a loaded laptop, 0.3


def smoke_run(pair: Callable[[], list[float]] | None = None, limit_s: float = _LIMIT_S) -> Finding:
    """Run two ranks twice: the first time starts the fork server, the second is what runs cost.

    pair: runs the two ranks and returns their values. limit_s: seconds to wait for both runs, in a
    thread: a fork server that hangs must not hang the doctor.
    """
    times_s: list[float] = []
    faults: list[str] = []

    def attempt() -> None:
        try:
            for _ in range(2):
                began_s = time.monotonic()
                values = (pair or (lambda: _pair(limit_s)))()
                times_s.append(time.monotonic() - began_s)
                if values != [3.0, 3.0]:
                    faults.append(f"1 + 2 over two ranks gave {values}")
        except Exception as error:
            faults.append(f"{type(error).__name__}: {error}")

    thread = threading.Thread(target=attempt, name="smoke run", daemon=True)
    thread.start()
    thread.join(limit_s + 1)
    if thread.is_alive():
        faults.append(f"not done after {limit_s + 1:g} s")
    return _judged(times_s, faults)


def _judged(times_s: list[float], faults: list[str]) -> Finding:
    if faults:
        return Finding(
            "a run of 2 ranks",
            faults[0],
            Level.ERROR,
            "this is what every notebook and every check of an exercise does",
            "look at the other findings first, and at what security software forbids: ranks are "
            "processes that talk over the loopback interface, which must be up. If it is none of "
            "these, please report it with all of this text",
        )
    first, warm = times_s
    text = f"{warm:.2f} s ({first:.1f} s the first time, which imports torch)"
    if warm < _SLOW_S:
        return Finding("a run of 2 ranks", text)
    return Finding(
        "a run of 2 ranks",
        text,
        Level.WARNING,
        "it should take about 0.05 s, and every cell that runs ranks takes that much longer",
        f"close what else uses the {os.cpu_count()} cores{_load()}; if TMPDIR is on a network "
        "drive, use a local disk",
    )


def _pair(timeout_s: float) -> list[float]:
    return launch(_adds, 2, [()], timeout=timeout_s, device="cpu", echo=False).values


def _adds(world: Group) -> float:
    return float(world.all_reduce(torch.tensor(world.rank + 1.0)))


def _load() -> str:
    try:
        return f" (on average {os.getloadavg()[0]:.1f} programs wanted one in the last minute)"
    except OSError:
        return ""
