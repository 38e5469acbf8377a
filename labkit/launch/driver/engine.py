"""Processes for ranks: forked from a server that has imported torch and has done nothing else.

A fresh interpreter needs two seconds to import torch; a fork of one that has it needs milliseconds.
The notebook's kernel itself must not be forked: after one matmul in the parent, a child's matmul
hangs for ever (OpenMP's threads do not survive a fork). The server only imports.
"""

import contextlib
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing import forkserver, resource_tracker
from multiprocessing import process as processes
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess

from labkit.doctor.halt import halt_of
from labkit.launch.ranks.rank import RankSpec, rank_main

_EXIT_S = 0.5
# The kernel ends a process at once, but not in the middle of an uninterruptible sleep.
_KILLED_S = 10.0
_CONTEXT = multiprocessing.get_context("forkserver")
# Added to what is to be loaded already: a program may use the fork server for its own ends.
_loaded = getattr(forkserver._forkserver, "_preload_modules", [])
_CONTEXT.set_forkserver_preload(
    [
        *(name for name in _loaded if name != "__main__"),
        "labkit.launch.session.rank",
        "labkit.launch.ranks.needed_by_steps",
    ]
)


@dataclass
class RankProcess:
    """The driver's end of one rank."""

    rank: int
    process: ForkServerProcess
    control: Connection
    output: Connection
    lifeline: Connection

    def signal(self, number: int) -> None:
        """Send a signal, if the process is still there."""
        if self.process.pid is not None and self.process.is_alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, number)

    def kill(self) -> None:
        """End the process and whatever it has started."""
        self.kill_descendants()
        self.signal(signal.SIGKILL)  # it may not lead a group of its own yet

    def kill_descendants(self) -> None:
        """End what is in the process group that the rank leads."""
        if self.process.pid is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)

    def release(self) -> None:
        """Let a rank that is done exit."""
        self.lifeline.close()

    def end(self, wait_s: float) -> None:
        """The process is gone when this returns: by itself within `wait_s`, or else by SIGKILL.

        One that the kernel does not end is told and left to it: an error must not wait for that.
        """
        self.process.join(max(wait_s, 0))
        if self.process.is_alive():
            self.kill()
            self.process.join(_KILLED_S)
            if self.process.is_alive():
                halt = halt_of(self.process.pid)
                why = "does not end" if halt is None else halt.said
                print(
                    f"[labkit] process {self.process.pid} of rank {self.rank} {why}: it was sent "
                    "SIGKILL, and is gone once the kernel lets go of it.",
                    flush=True,
                )
        self.kill_descendants()
        for connection in (self.control, self.output):
            connection.close()


def warm_up() -> None:
    """Start the fork server if it is not running; returns at once, while it imports torch."""
    # Until its imports are done the server would die of Stop. A blocked signal stays blocked in a
    # child; the resource tracker goes first because starting it unblocks SIGINT.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        forkserver.ensure_running()
    except OSError as error:
        if "path too long" not in str(error):
            raise
        raise OSError(
            f"the folder for temporary files, {tempfile.gettempdir()}, has too long a name: a "
            "socket's path has room for about 100 letters. Set TMPDIR to another, such as /tmp"
        ) from None
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def start_rank(spec: RankSpec, main: Callable[..., None] = rank_main) -> RankProcess:
    """Fork one rank; it begins at `main`, a function of an importable module."""
    warm_up()  # first: where it fails, no pipe is open yet
    control, its_control = _CONTEXT.Pipe()
    output, its_output = _CONTEXT.Pipe(duplex=False)
    its_lifeline, lifeline = _CONTEXT.Pipe(duplex=False)
    process = _CONTEXT.Process(
        target=main,
        args=(spec, its_control, its_output, its_lifeline),
        name=f"rank {spec.rank}",
    )
    try:
        with _caller_not_imported():
            process.start()
        # Whatever process another thread starts, multiprocessing would look first whether this one
        # has ended, and might read its exit code away from us.
        processes._children.discard(process)  # type: ignore[attr-defined]
    except BaseException:
        for connection in (control, output, lifeline):
            connection.close()
        raise
    finally:
        for connection in (its_control, its_output, its_lifeline):
            connection.close()
    return RankProcess(spec.rank, process, control, output, lifeline)


def end_ranks(ranks: Iterable[RankProcess], *, at_once: bool) -> None:
    """No process of these ranks is left when this returns; at_once: by SIGKILL."""
    ranks = list(ranks)
    for rank in ranks:
        if at_once:
            rank.kill()
        rank.release()
    deadline = time.monotonic() + _EXIT_S
    for rank in ranks:
        rank.end(deadline - time.monotonic())


_main_module = threading.Lock()


@contextlib.contextmanager
def _caller_not_imported() -> Iterator[None]:
    """multiprocessing would import the caller's script in every child, to find functions there.

    Ours travel by value, and importing the script again would run it again where it has no
    `if __name__ == "__main__"`.
    """
    main = sys.modules["__main__"]
    with _main_module:
        hidden = {n: getattr(main, n) for n in ("__file__", "__spec__") if hasattr(main, n)}
        try:
            main.__spec__ = None
            if "__file__" in hidden:
                del main.__file__
            yield
        finally:
            for name, value in hidden.items():
                setattr(main, name, value)
