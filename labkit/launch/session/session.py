"""Session: ranks that keep their variables from one cell to the next.

    with labkit.Session(2) as session:
        session.execute("x = torch.full((3,), float(rank))")
        session.execute("world.all_reduce(x)").values

In a notebook: `%load_ext labkit`, then `%%ranks 2` at the top of a cell. `execute` returns a
CellRun, the Run of one cell. The last paragraph of an error's message says what it does to the
variables:

    a rank raised, Stop or timeout in Python,
      and every rank returned, in step             the session goes on, variables kept
    a deadlock, a rank blocked in C++, a death     ranks ended; the next cell starts new ones
"""

from __future__ import annotations

import contextlib
import pickle
import threading
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Self

import cloudpickle
import torch

from labkit.comm import Lateness, Timeline, Topology
from labkit.comm.operation import ranks_named
from labkit.doctor import sources
from labkit.launch import notes
from labkit.launch.payload import RunDirectory
from labkit.launch.request import (
    checked_device,
    checked_ranks,
    checked_stall,
    checked_timeout,
    checked_topology,
    note_on_gpus,
)
from labkit.launch.run_result import Memory, Run, Traffic
from labkit.launch.session.in_rank import Cell, Command, CommandResult, Names, Pull, Push
from labkit.launch.session.ranks import CellSupervisor, SessionRanks

_START_TIMEOUT_S = 120.0
_STALL_S = 5.0


class Busy(RuntimeError):
    """The ranks are executing another call."""


class Turn:
    """The right to start the ranks, end them, or send them a command."""

    def __init__(self) -> None:
        """Start free."""
        self._lock = threading.Lock()
        self._holder: int | None = None

    @contextlib.contextmanager
    def taken(self, *, waits: bool = False) -> Iterator[None]:
        """Hold it for a block. Raises Busy if another thread holds it, or `waits` for that.

        A thread that holds it never waits: a signal handler may run in the midst of a cell.
        """
        if self._holder == threading.get_ident():
            raise Busy("this session is in the midst of a cell; ask again when that has ended")
        if not self._lock.acquire(blocking=waits):
            raise Busy(
                "this session is at work for another thread; wait until that has ended, or make a "
                "session for each thread"
            )
        try:
            self._holder = threading.get_ident()
            yield
        finally:
            self._holder = None
            self._lock.release()


class Session:
    """`world_size` ranks that run one piece of source text after another.

    Each has a namespace of its own with `world` (its Group), `rank`, `world_size`, `torch` and
    `labkit`. `last`: the CellRun of the last cell that ended well, or None. Each rank draws random
    numbers of its own until a cell sets a seed; `torch.manual_seed(0)` in a cell sets it on all.

    One thread at a time: a call from another one meanwhile raises RuntimeError, except `close`,
    which waits, and `status`, which reports it.
    """

    def __init__(
        self,
        world_size: int,
        *,
        device: str | None = None,
        echo: bool = True,
        topology: Topology | None = None,
    ) -> None:
        """Start the ranks. echo: show what ranks print as it comes.

        device, topology: as for `labkit.run`. Raises ValueError for ranks that cannot be started.
        """
        self.world_size, self.topology = world_size, topology
        device = checked_topology(topology, world_size, device)
        self.device = checked_device(world_size, _START_TIMEOUT_S, device)
        self._all = range(world_size)
        self.last: CellRun | None = None
        self._echo = echo
        self._num_cells = 0
        self._is_closed = False
        if echo and (note := note_on_gpus(self.device, world_size, torch.cuda.device_count())):
            print(note, flush=True)
        self._turn = Turn()
        self._ranks = self._started()

    def _started(self) -> SessionRanks:
        return SessionRanks(
            self.world_size, self.device, _START_TIMEOUT_S, self._echo, self.topology
        )

    def execute(
        self,
        source: str | Cell,
        ranks: Iterable[int] | None = None,
        *,
        timeout: float = 120,
        stall: float | None = _STALL_S,
    ) -> CellRun:
        """Run `source` on `ranks` (None: on all) and return the CellRun.

        Its `values` are those of a last line that is an expression, by rank. timeout: seconds after
        which a cell is ended. stall: seconds without progress after which the doctor examines the
        ranks; None: never. A deadlock that the journals prove does not need this.

        Raises SyntaxError before anything is sent, TypeError for a source that is no text,
        ValueError for ranks that are not there, and otherwise what `labkit.run` raises.
        """
        timeout_s, stall_s = checked_timeout(timeout), checked_stall(stall)
        on = checked_ranks(ranks, self.world_size)
        with self._turn.taken():
            cell = source if isinstance(source, Cell) else Cell.of(source, self._num_cells + 1)
            sources.remember({cell.file: cell.lines})  # for the stacks in a verdict
            result = self.last = self._perform(cell, on, timeout_s, stall_s)
        if self._echo:
            notes.report_late_messages(result)
        return result

    def _perform(
        self,
        command: Command,
        on: Collection[int],
        timeout_s: float = _START_TIMEOUT_S,
        stall_s: float | None = _STALL_S,
    ) -> CellRun:
        """Run a command. The caller holds the turn."""
        self._check_open()
        if self._ranks.has_ended:
            self._ranks = self._started()
            if self._echo:
                new = _counted(self.world_size, "new rank")
                print(f"{new}: the variables of earlier cells are gone.", flush=True)
        self._num_cells += isinstance(command, Cell)
        supervisor = self._ranks.perform(command, on, timeout_s, stall_s)
        return cell_run(supervisor, self.device, self.topology)

    def push(self, name: str, value: Any) -> None:
        """Give every rank a copy of `value` as the variable `name`.

        Raises TypeError for a value that cannot be pickled, and ValueError or TypeError for what is
        no variable's name.
        """
        try:
            data = cloudpickle.dumps(value)
        except Exception as error:
            raise TypeError(f"{name} cannot travel to the ranks: {error}") from error
        with self._turn.taken():
            self._perform(Push(name, data), self._all)

    def pull(self, name: str) -> list[Any]:
        """Return the variable `name` of every rank, by rank.

        Raises NameError where a rank has none, and TypeError where a value cannot travel.
        """
        with self._turn.taken():
            found = self._perform(Pull(name), self._all).values
        for rank, value in enumerate(found):
            if isinstance(value, ValueOnRank):
                raise TypeError(f"{name} of rank {rank} cannot travel: {value!r}")
        if missing := [rank for rank, (is_there, _) in enumerate(found) if not is_there]:
            raise NameError(f"there is no variable {name!r} on {ranks_named(missing)}")
        return [value for _, value in found]

    def restart(self) -> None:
        """End the ranks and start new ones: the way to forget all variables."""
        with self._turn.taken():
            self._check_open()
            self._ranks.end()
            self._ranks = self._started()

    def close(self) -> None:
        """End the ranks for good, once a cell of another thread has ended. No cell comes after."""
        with self._turn.taken(waits=True):
            self._is_closed = True
            self._ranks.end()

    def status(self) -> str:
        """Return the processes of the ranks, and the variables that cells have made there."""
        try:
            with self._turn.taken():
                return self._status()
        except Busy:
            return f"{self._head} At work now: ask again for processes and variables."

    def _status(self) -> str:
        if self._is_closed:
            return "This session is closed; its ranks have ended."
        next_starts = f"The next cell starts {_counted(self.world_size, 'new rank')}."
        if not self._ranks.has_ended and (dead := self._ranks.dead):
            self._ranks.end()
            return f"The process of {ranks_named(dead)} is gone. {next_starts}"
        if self._ranks.has_ended:
            return f"The ranks have ended, and their variables are gone. {next_starts}"
        variables = self._perform(Names(), self._all).values
        return "\n".join([self._head, *self._ranks.described(variables)])

    def _check_open(self) -> None:
        if self._is_closed:
            raise RuntimeError(f"this session is closed; make another: Session({self.world_size})")

    @property
    def _head(self) -> str:
        ranks, cells = _counted(self.world_size, "rank"), _counted(self._num_cells, "cell")
        return f"{ranks} on {self.device}, {cells} so far."

    def __repr__(self) -> str:
        """Describe the session briefly, without asking the ranks: see `status`."""
        if self._is_closed:
            return "<a session that is closed>"
        ranks = "its ranks have ended" if self._ranks.has_ended else self._head.rstrip(".")
        return f"<a session: {ranks}; see status()>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


class ValueOnRank:
    """Stands for a value that stayed on its rank: it cannot be pickled, or is above 64 MiB."""

    def __init__(self, text: str) -> None:
        """text: the value as it prints."""
        self.text = text

    def __repr__(self) -> str:
        return f"<stayed on its rank: {self.text.partition(chr(10))[0][:80]}>"


@dataclass(slots=True, repr=False)
class CellRun(Run):
    """The Run of one cell: `values` are those of its last expression.

    An idle rank has the value None, no output, an empty timeline, no traffic and no memory. Its
    repr shows the values by rank.
    """

    texts: list[str | None] = field(default_factory=list)
    """Each value as it prints on its rank; None where there is none."""

    @property
    def has_values(self) -> bool:
        """Some rank's last expression had a value other than None."""
        return any(text is not None for text in self.texts)

    def __repr__(self) -> str:
        """`ranks 0 and 2: tensor(6.)`, a paragraph for each distinct value."""
        ranks_of: dict[str, list[int]] = {}
        for rank, text in enumerate(self.texts):
            if text is not None:
                ranks_of.setdefault(text, []).append(rank)
        if not ranks_of:
            return f"<a cell on {self.world_size} ranks that ended without a value>"
        return "\n".join(
            f"{ranks_named(ranks)}: {_indented(text, len(ranks_named(ranks)) + 2)}"
            for text, ranks in ranks_of.items()
        )


def _indented(text: str, width: int) -> str:
    return text.replace("\n", "\n" + " " * width)


def cell_run(supervisor: CellSupervisor, device: str, topology: Topology | None) -> CellRun:
    """Return the result of a cell in which every rank that took part has answered."""
    answers = [
        rank.report if isinstance(rank.report, CommandResult) else None for rank in supervisor.ranks
    ]
    zero_s = min((answer.start_s for answer in answers if answer), default=supervisor.ready_s)
    end_s = max((answer.end_s for answer in answers if answer), default=supervisor.ready_s)
    timelines = []
    for timeline, answer in zip(supervisor.read_cell(), answers, strict=True):
        span = (answer.start_s, answer.end_s) if answer else (zero_s, end_s)
        timelines.append(Timeline(timeline.operations, timeline.regions, *span))
    return CellRun(
        world_size=len(answers),
        device=device,
        values=[
            _value(supervisor.directory, number, answer) for number, answer in enumerate(answers)
        ],
        logs=[rank.output.log for rank in supervisor.ranks],
        timeline=[timeline.shifted(zero_s) for timeline in timelines],
        traffic=[
            Traffic.of(timeline.operations, answer.socket_bytes if answer else 0)
            for timeline, answer in zip(timelines, answers, strict=True)
        ],
        memory=[answer.memory if answer else Memory(0, 0) for answer in answers],
        seconds=time.monotonic() - supervisor.ready_s,
        topology=topology,
        lateness=[answer.lateness if answer else Lateness() for answer in answers]
        if topology
        else [],
        texts=[answer.text if answer else None for answer in answers],
    )


def _value(directory: RunDirectory, number: int, answer: CommandResult | None) -> Any:
    if answer is None or answer.text is None:
        return None
    if answer.has_sent:
        try:
            return pickle.loads(directory.of_rank(number, "value").read_bytes())
        except Exception:  # its class is known to the rank only
            return ValueOnRank(answer.text)
    return ValueOnRank(answer.text)
