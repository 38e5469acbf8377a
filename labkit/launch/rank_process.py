"""A rank, seen from the driver: its process, its output, its stage.

Processes are forked from a server that has imported torch and has done nothing else.

A fresh interpreter needs two seconds to import torch; a fork of the server needs milliseconds. The
notebook's kernel itself must not be forked: after one matmul in the parent, a child's matmul hangs
for ever (OpenMP's threads do not survive a fork).
"""

from __future__ import annotations

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

from labkit import interrupts
from labkit.doctor.halt import halt_of
from labkit.doctor.verdict import Stage
from labkit.launch.rank import Raised, RankSpec, Returned, rank_main

_EXIT_S = 0.5
# The kernel kills a process at once, except in an uninterruptible sleep.
_KILLED_S = 10.0
_CONTEXT = multiprocessing.get_context("forkserver")
# Modules that most ranks need: 0.15 s once in the server, instead of up to 0.06 s in each rank.
_STRATEGIES = [
    "labkit.combined",  # imports most of the others
    "labkit.context_parallel",
    "labkit.data_parallel.compression",
    "labkit.data_parallel.local_sgd",
    "labkit.data_parallel.parameter_server",
    "labkit.elastic",  # and checkpoint
    "labkit.moe",
]
# Added to earlier preloads: a program may use the fork server for purposes of its own.
_loaded = getattr(forkserver._forkserver, "_preload_modules", [])
_CONTEXT.set_forkserver_preload(
    [
        *(name for name in _loaded if name != "__main__"),
        "labkit.launch.session.in_rank",
        *_STRATEGIES,
        "labkit.launch.needed_by_steps",
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
        """Wait up to `wait_s` for the process to end, and then kill it.

        A process that the kernel does not end is reported and left, so that this returns.
        """
        self.process.join(max(wait_s, 0))
        if self.process.is_alive():
            self.kill()
            self.process.join(_KILLED_S)
            if self.process.is_alive():
                halt = halt_of(self.process.pid)
                why = "does not end" if halt is None else halt.description
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
    # Stop would kill the server while it imports. A blocked signal stays blocked in a child. The
    # resource tracker is started first, because that unblocks SIGINT.
    resource_tracker.ensure_running()
    try:
        with interrupts.blocked():
            forkserver.ensure_running()
    except OSError as error:
        if "path too long" not in str(error):
            raise
        raise OSError(
            f"the folder for temporary files, {tempfile.gettempdir()}, has too long a name: a "
            "socket's path has room for about 100 letters. Set TMPDIR to another, such as /tmp"
        ) from None


def start_rank(spec: RankSpec, main: Callable[..., None] = rank_main) -> RankProcess:
    """Fork one rank; it begins at `main`, a function of an importable module."""
    warm_up()  # first: if it fails, no pipe is open yet
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
        # When another thread starts a process, multiprocessing polls all children. It might read
        # this one's exit code before we do.
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
    """End the processes of these ranks, and wait for that; at_once: by SIGKILL."""
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
    """Keep multiprocessing from importing the caller's script in every child.

    Functions travel by value here. An import would run a script that has no
    `if __name__ == "__main__"` again.
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


_MAX_SHOWN_LINES = 1000
_MAX_LINE_BYTES = 2**16
_MAX_KEPT_BYTES = 16 * 2**20


class RankOutput:
    """One rank's output: kept as its log, shown line by line."""

    def __init__(
        self, rank: int, pipe: Connection, echo: bool, most_lines: float = _MAX_SHOWN_LINES
    ) -> None:
        """echo: print each whole line as `[rank 2] text`, up to `most_lines` of them."""
        self.rank = rank
        self.pipe = pipe
        self.ended = False
        self._echo = echo
        self._most_lines = most_lines
        self._kept = bytearray()
        self._line = bytearray()
        self._num_shown = 0
        os.set_blocking(pipe.fileno(), False)

    @property
    def log(self) -> str:
        """Everything printed so far."""
        text = self._kept.decode(errors="replace")
        return text if len(self._kept) < _MAX_KEPT_BYTES else text + "\n[cut: 16 MiB of output]\n"

    def read(self) -> None:
        """Take what is in the pipe, and show the lines that are whole."""
        while not self.ended:
            try:
                data = os.read(self.pipe.fileno(), 65536)
            except BlockingIOError:
                return
            if not data:
                self.finish()
                return
            self._kept += data[: _MAX_KEPT_BYTES - len(self._kept)]
            *lines, rest = data.split(b"\n")
            for line in lines:
                self._grow(line)
                # Taken first: Stop may come while it is printed, and no line must appear twice.
                whole, self._line = self._line, bytearray()
                self._show(whole)
            self._grow(rest)

    def _grow(self, part: bytes) -> None:
        """Add to the unfinished line; a carriage return starts it again."""
        line = self._line + part
        shown = line.rstrip(b"\r").rpartition(b"\r")[2][-_MAX_LINE_BYTES:]
        self._line = shown + b"\r" if line.endswith(b"\r") else shown

    def finish(self) -> None:
        """Show a last line that has no newline."""
        self.ended = True
        if self._line:
            self._show(self._line)
            self._line.clear()

    def _show(self, line: bytearray) -> None:
        self._num_shown += 1
        if not self._echo or self._num_shown > self._most_lines:
            return
        text = line.rstrip(b"\r").decode(errors="replace")
        self._print(text)
        if self._num_shown == self._most_lines:
            self._print(f"... the rest of its output is in logs[{self.rank}]")

    def _print(self, text: str) -> None:
        line = f"[rank {self.rank}] {text}"
        try:
            print(f"{line}\n", end="", flush=True)  # in one call: others print, too
        except UnicodeEncodeError:  # a terminal that knows only ASCII
            print(f"{line.encode('ascii', 'backslashreplace').decode()}\n", end="", flush=True)


@dataclass
class Rank:
    """A rank, seen from the driver."""

    process: RankProcess
    output: RankOutput
    stage: Stage = Stage.STARTING
    report: Returned | Raised | None = None
    ended_s: float = 0.0
    """When it failed: raised, or was seen to be dead."""

    @property
    def is_active(self) -> bool:
        """It may still report something."""
        return self.stage in (Stage.STARTING, Stage.RUNNING)

    @property
    def may_be_the_cause(self) -> bool:
        """It has failed, and not only because a communication with another rank failed."""
        is_consequence = isinstance(self.report, Raised) and self.report.is_communication_error
        return self.stage in (Stage.DIED, Stage.RAISED) and not is_consequence
