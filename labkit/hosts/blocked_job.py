"""Noticing that a job under torchrun will not end, before an operation's timeout says so.

    attendant of rank 2     nothing has moved in its journal for 5 s: pins where its rank stands,
                            again and again while that is so
    attendant of rank 0     when its own rank is blocked as well: reads all notes, asks the doctor

The notes are of different moments, and the parts of one too: journal, stack and torch's own record
are read one after another, and what torch does without a Group has no journal that would show that
the rank went on in between. So only what two rounds of notes agree on is reported. Operations are
numbered, and none starts twice: a rank that waits in the same one in both its notes did so all
the time between them, and posted nothing. Of each rank take one moment of that time.

Then nothing can end. Suppose that something did, and take the rank that is the first to go on after
its moment. What it waits in needs the part of another rank, which had not posted it by its own
moment. Where that is later, the part was not there to go on with. Where it is earlier, the other
has gone on before the first one did; or it has returned, and posts nothing any more. With threads
it is the same where all threads of all ranks are held, and none is in an operation that can end:
the first one to go on waits for a thread of its rank, or for another rank, that went on before it.

What this takes for granted: parts come from the ranks of this job alone; a wait ends when all its
parts are posted, or at its timeout; Python knows of all threads, and a thread that is held is woken
by no clock, file or signal; a rank that returned with threads left is asked again each time.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from labkit import doctor
from labkit.comm import Operation, Timeline
from labkit.comm.recorder import Recorded
from labkit.doctor.halt import Halt
from labkit.doctor.stacks import Stack
from labkit.doctor.verdict import Fault, Stage, Verdict
from labkit.doctor.waiting import View
from labkit.hosts import typed_json
from labkit.hosts.board import Board, NoAnswer
from labkit.hosts.hosted_rank import HostedSpec
from labkit.hosts.records import compressed, decompressed
from labkit.launch.examine import PATIENCE_S
from labkit.launch.supervise import Supervisor

_LOOK_S = 0.5
_LONGEST_PAUSE_S = 10.0
_UNTOLD = (Fault.BUSY, Fault.UNDER_WAY)
_RECENT = 1000
_MOST_BYTES = 64 * 2**20
_TIMELINES = ("operations", "of_torch")


@dataclass(frozen=True)
class RankStatus:
    """Where a rank stands, as a note to the other hosts: a View, and which look it comes from.

    It holds what the doctor asks of a rank (doctor/waiting.py), as JSON, since it comes over a
    network. Of a long journal go its last operations, whatever it still waits for, and of what came
    before, the last of each kind: they say how far it has come.
    """

    look: int
    """From 1; a later note of the same rank has a larger number."""
    stage: Stage
    operations: Timeline
    of_torch: Timeline
    enqueued: list[tuple[str, int]]
    is_idle: bool
    has_answered: bool
    awaited: int | None
    has_handlers: bool
    stack: Stack
    halt: Halt | None = None

    @classmethod
    def of(cls, look: int, view: View) -> RankStatus:
        """The content of the note."""
        return cls(
            look,
            view.stage,
            Timeline(relevant_operations(view.operations)),
            Timeline(list(view.recorded.operations[-_RECENT:])),
            list(view.recorded.enqueued.items()),
            view.recorded.is_idle,
            view.recorded.is_known,
            _from_the_end(view.recorded.awaited, len(view.recorded.operations)),
            view.recorded.has_handlers,
            view.stack,
            view.halt,
        )

    @property
    def view(self) -> View:
        """For the doctor."""
        recorded = Recorded(
            self.of_torch.operations,
            dict(self.enqueued),
            self.is_idle,
            self.has_answered,
            self.awaited,
            self.has_handlers,
        )
        return View(self.stage, self.operations.operations, recorded, self.stack, self.halt)

    @property
    def is_final(self) -> bool:
        """True if it stays so: the function is over, and nothing of it is left at work."""
        has_reported = self.stack.is_known or self.stage is Stage.DIED
        return self.stage.is_over and has_reported and not self.view.has_others_at_work

    def as_bytes(self) -> bytes:
        """Packed JSON."""
        data: dict[str, Any] = {
            field.name: getattr(self, field.name) for field in dataclasses.fields(self)
        }
        data.update({name: typed_json.encode_timeline(data[name]) for name in _TIMELINES})
        data["stage"], data["stack"] = self.stage.value, dataclasses.asdict(self.stack)
        data["halt"] = None if self.halt is None else dataclasses.asdict(self.halt)
        return compressed(json.dumps(data).encode())

    @classmethod
    def from_bytes(cls, note: bytes) -> RankStatus:
        """The note again. ValueError, with the reason, for anything else."""
        data = typed_json.parsed(decompressed(note, _MOST_BYTES))
        with typed_json.damage_named():
            data.update({name: typed_json.decode_timeline(data[name]) for name in _TIMELINES})
            standing: RankStatus = typed_json.fitted(cls, data)
        return standing


def relevant_operations(operations: Sequence[Operation]) -> list[Operation]:
    """Return, in order, the operations that say where the rank is and what it has posted."""
    before, recent = operations[:-_RECENT], operations[-_RECENT:]
    last_of = {_kind(operation): number for number, operation in enumerate(before)}
    kept = {*last_of.values()}
    kept |= {number for number, each in enumerate(before) if each.is_waited_for}
    return [*(before[number] for number in sorted(kept)), *recent]


def _kind(operation: Operation) -> tuple[object, ...]:
    """Operations of which the n-th belongs to the others' n-th: they are counted in one row."""
    if operation.is_collective:
        return (operation.group_name,)
    return (operation.group_name, operation.kind, operation.peer)


def _from_the_end(number: int | None, length: int) -> int | None:
    """The place of an operation among the last _RECENT ones; None where it is not among them."""
    if number is None or number < length - _RECENT:
        return None
    return number - max(length - _RECENT, 0)


class BlockedJobCheck:
    """Find out, as one attendant, whether the job is blocked for good."""

    def __init__(
        self, spec: HostedSpec, board: Board, supervisor: Supervisor, stall_s: float | None
    ) -> None:
        """supervisor: of the one rank. stall_s: seconds without progress; None: it does nothing."""
        self._spec, self._board, self._supervisor = spec, board, supervisor
        self._stall_s = stall_s
        self._standing: RankStatus | None = None
        self._num_looks = 0
        self._pause_s = self._next_look_s = self._next_note_s = 0.0
        self._moved()
        self._suspicion: Verdict | None = None
        self._heard: list[int] = []

    def verdict(self) -> Verdict | None:
        """Look, now and then. What the doctor has just found, on rank 0; None everywhere else.

        A proof, or waits that may still end well.
        """
        now_s = time.monotonic()
        if self._stall_s is None or now_s < self._next_look_s:
            return None
        self._next_look_s = now_s + _LOOK_S
        stage = self._supervisor.ranks[0].stage
        if self._supervisor.evidence.read_journals() or stage is Stage.STARTING:
            self._moved()
        elif now_s >= self._next_note_s:
            self._pin()
            return self._consult() if self._spec.rank == 0 else None
        return None

    def _moved(self) -> None:
        now_s = time.monotonic()
        self._standing = None
        self._pause_s = (self._stall_s or 0) / 2
        self._next_look_s, self._next_note_s = now_s + _LOOK_S, now_s + (self._stall_s or 0)

    def _pin(self) -> None:
        """Say where our rank stands; nothing where it goes on while it is asked."""
        if self._standing is None or not self._standing.is_final:
            if self._supervisor.evidence.examine(patience_s=PATIENCE_S):
                return self._moved()
            self._num_looks += 1
            self._standing = RankStatus.of(self._num_looks, self._supervisor.evidence.views[0])
            self._board.post(self._key(self._spec.rank), self._standing.as_bytes())
        self._next_note_s = time.monotonic() + self._pause_s
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
        return None

    def _consult(self) -> Verdict | None:
        """The doctor's verdict on a round of notes, each newer than in the round before."""
        standings = [self._standing, *map(self._read, range(1, self._spec.world_size))]
        reported = [each for each in standings if each is not None]
        if len(reported) < len(standings) or any(
            each.look <= heard and not each.is_final
            for each, heard in zip(reported, self._heard, strict=False)
        ):
            return None
        self._heard = [each.look for each in reported]
        before, self._suspicion = (
            self._suspicion,
            doctor.diagnose_now([each.view for each in reported]),
        )
        found = self._suspicion
        return found if found == before and found.fault not in _UNTOLD else None

    def _read(self, rank: int) -> RankStatus | None:
        try:
            return self._board.read(self._key(rank), RankStatus.from_bytes)
        except NoAnswer:
            return None

    def _key(self, rank: int) -> str:
        return f"standing/{rank}"
