"""Noticing that a job under torchrun will not end, before an operation's timeout says so.

    attendant of rank 2     nothing has moved in its journal for 5 s: pins where its rank stands,
                            again and again while that is so
    attendant of rank 0     when its own rank stands still as well: reads all notes, asks the doctor

The notes are of different moments, and the parts of one too: journal, stack and torch's own record
are read one after another, and what torch does without a Group has no journal that would show that
the rank went on in between. So only what two rounds of notes have said is told. Operations are
numbered, and none is begun twice: a rank that waits in the same one in both its notes did so all
the time between them, and posted nothing. Of each rank take one moment of that time.

Then nothing can end. Suppose that something did, and take the rank that is the first to go on after
its moment. What it waits in needs the part of another rank, which had not posted it by its own
moment. Where that is later, the part was not there to go on with. Where it is earlier, the other
has gone on before the first one did; or it has returned, and posts nothing any more. With threads
it is the same where all threads of all ranks are held, and none is in an operation that can end:
the first one to go on waits for a thread of its rank, or for another rank, that went on before it.

What this takes for granted: parts come from the ranks of this job alone; a wait ends when all its
parts are posted, or at its timeout; Python knows of all threads, and a thread that is held is woken
by no clock, file or signal; a rank that returned with threads left is asked anew each time.
"""

from __future__ import annotations

import time

from labkit import doctor
from labkit.comm.hosts.board import Board, NoAnswer
from labkit.doctor.stage import Stage
from labkit.doctor.verdict import Fault, Verdict
from labkit.launch.driver.supervise import Supervisor
from labkit.launch.hosts.hosted_rank import HostedSpec
from labkit.launch.hosts.standing import Standing

_LOOK_S = 0.5
_LONGEST_PAUSE_S = 10.0
# The first question about torch's own operations makes a rank import for a second or more.
_PATIENCE_S = 6.0
_UNTOLD = (Fault.BUSY, Fault.UNDER_WAY)


class Standstill:
    """What one attendant does about it."""

    def __init__(
        self, spec: HostedSpec, board: Board, supervisor: Supervisor, stall_s: float | None
    ) -> None:
        """supervisor: of the one rank. stall_s: seconds without progress; None: it does nothing."""
        self._spec, self._board, self._supervisor = spec, board, supervisor
        self._stall_s = stall_s
        self._standing: Standing | None = None
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
            if self._supervisor.evidence.examine(patience_s=_PATIENCE_S):
                return self._moved()
            self._num_looks += 1
            self._standing = Standing.of(self._num_looks, self._supervisor.evidence.views[0])
            self._board.post(self._key(self._spec.rank), self._standing.as_bytes())
        self._next_note_s = time.monotonic() + self._pause_s
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
        return None

    def _consult(self) -> Verdict | None:
        """The doctor's verdict on a round of notes, each newer than in the round before."""
        standings = [self._standing, *map(self._read, range(1, self._spec.world_size))]
        told = [each for each in standings if each is not None]
        if len(told) < len(standings) or any(
            each.look <= heard and not each.is_final
            for each, heard in zip(told, self._heard, strict=False)
        ):
            return None
        self._heard = [each.look for each in told]
        before, self._suspicion = (
            self._suspicion,
            doctor.diagnose_now([each.view for each in told]),
        )
        found = self._suspicion
        return found if found == before and found.fault not in _UNTOLD else None

    def _read(self, rank: int) -> Standing | None:
        try:
            return self._board.read(self._key(rank), Standing.from_bytes)
        except NoAnswer:
            return None

    def _key(self, rank: int) -> str:
        return f"standing/{rank}"
