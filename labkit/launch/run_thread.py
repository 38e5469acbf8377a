"""A thread that starts runs, one after the other. Other threads can kill the one that is running.

this thread       launch  ->  RankError: rank 0 was killed     launch  ->  RankError   ended
another thread           kill()                                       end() ..........|
"""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Sequence
from typing import Any

from labkit.launch.run import launch
from labkit.launch.run_result import Run


class RunThread(threading.Thread):
    """A subclass starts runs in its `run`, until is_over. pids: the ranks of the one that runs."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.pids: list[int] = []
        self.is_over = False

    def launch(
        self, fn: Callable[..., Any], num_ranks: int, args: Sequence[Any], timeout: float
    ) -> Run:
        """As of `launch`: on the CPU, and what ranks print is not shown."""
        options: dict[str, Any] = {"device": "cpu", "echo": False, "on_start": self.pids.extend}
        try:
            return launch(fn, num_ranks, [args], timeout=timeout, **options)
        finally:
            self.pids.clear()

    def kill(self) -> None:
        """End all ranks of the run."""
        for pid in self.pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def end(self) -> None:
        """Kill the run, which may just be starting, and wait for this thread."""
        self.is_over = True
        while self.is_alive():
            self.kill()
            self.join(0.05)
