"""The attendant of a rank under torchrun: from its start to its entry in the Run's folder.

    RUNNING ------> RETURNED, waiting for rank 0's word --> all have returned: exit 0
       |                |       +-- rank 0's host does not answer: finished, unconfirmed, exit 3
       +----------------+-- it fails, another rank fails, a host is gone, ranks wait in vain
                              --> verdict, exit 1

Everything it knows of its own rank comes from a Supervisor, as in `labkit.run`; of the others it
knows what they pin to the board, and who answers a knock at the door.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from labkit.comm.hosts.board import Board
from labkit.doctor.stage import Stage
from labkit.launch.cluster import post_mortem, records
from labkit.launch.cluster.blocked_job import BlockedJobCheck
from labkit.launch.cluster.door import NextHost
from labkit.launch.cluster.ending import (
    GOOD,
    Confirmation,
    leave_error_file,
    repeat,
    see_to_it,
    unconfirmed,
)
from labkit.launch.cluster.hosted_rank import FolderOfOneRank, HostedSpec, fork_rank
from labkit.launch.cluster.rank_record import Record
from labkit.launch.cluster.verdict_record import UNCONFIRMED, RunVerdict
from labkit.launch.rank_process import Rank, RankOutput
from labkit.launch.supervise import Supervisor

T = TypeVar("T")
_LOOK_S = 0.1
_FAILED = "failed"
_INSIST_S = 5.0
_NO_ANSWER = "the host of rank 0, which compares what all ranks did, does not answer any more"
UNCONFIRMED_CODE = 3
"""The exit code of a rank that has returned in a run that nobody can say is good."""


class Attendant:
    """Stands by one rank."""

    def __init__(
        self,
        spec: HostedSpec,
        board: Board,
        folder: Path,
        started_s: float,
        stall_s: float | None = None,
    ) -> None:
        """folder: where the records of this attempt go; started_s: when this process began.

        stall_s: seconds without progress until the doctor is asked; None: never.
        """
        self.spec, self.board, self.folder = spec, board, folder
        self._started_s = started_s
        process = fork_rank(spec)
        self._rank = Rank(
            process, RankOutput(spec.rank, process.output, echo=True, most_lines=math.inf)
        )
        directory = FolderOfOneRank(spec.directory.path, spec.rank)
        self._supervisor = Supervisor([self._rank], directory)
        self._next_host = NextHost(spec.environment, spec.call)
        self._blocked_job = BlockedJobCheck(spec, board, self._supervisor, stall_s)
        self._has_told = False
        self._outcome = board.look_for("outcome")  # after the fork: it is a thread

    def attend(self) -> int:
        """Stay until the run is over; the exit code."""
        try:
            while self._rank.is_active and not self._has_failed():
                self._listen()
            if self._rank.stage is Stage.RETURNED:
                return self._confirm()
            return self._fail()
        finally:
            self._rank.output.finish()
            self._rank.process.kill()
            self._rank.process.release()
            self._rank.process.end(0)

    def _listen(self) -> None:
        self._supervisor.listen(_LOOK_S)
        self.spec.door.answer()
        verdict = self._blocked_job.verdict()
        if verdict is not None and verdict.is_proof:
            self._settle(RunVerdict.of_proof(verdict).as_bytes().decode())
        elif verdict is not None and not self._has_told:
            timeout_s = self.spec.timeout_s
            print(f"[labkit] {verdict.text}. An operation may take {timeout_s:g} s.", flush=True)
            self._has_told = True

    def _has_failed(self) -> bool:
        """Another rank has said so, or the next host does not answer any more."""
        return self._outcome.said is not None or self._next_host.is_gone()

    def _confirm(self) -> int:
        """This rank has returned: wait for what rank 0 says when all have, and has compared."""
        confirmation = Confirmation(self._own_record(), self.spec.call, self.board, self.folder)
        while self._outcome.said is None:
            if self._next_host.is_gone() and self._outcome.said is None:
                return self._fail()
            if not confirmation.goes_on():
                unconfirmed(_NO_ANSWER, self.spec, self.folder)
                return UNCONFIRMED_CODE
            self._listen()
        return self._end(self._outcome.said.decode())

    def _own_record(self, order: int = 0) -> Record:
        return post_mortem.record_of(self.spec, self._supervisor, self._started_s, order)

    def _end(self, outcome: str) -> int:
        """All of one mind: good, failed, or the verdict of rank 0."""
        if outcome == GOOD:
            return 0
        verdict = _settled(outcome)
        if verdict is None or verdict.is_proof:
            return self._fail()
        repeat(verdict, self.spec, self.folder)
        return UNCONFIRMED_CODE if verdict.kind == UNCONFIRMED else 1

    def _fail(self) -> int:
        """Leave what is known of this rank, and see to it that this host has a verdict."""
        order = 0
        if self._supervisor.has_failed:
            order = self._answered(lambda: self.board.count("failed")) or 0
        if self._outcome.said is None:
            self._settle(_FAILED)
        self._supervisor.evidence.examine()
        record = self._own_record(order)
        self._leave_error(record)
        records.hand_over(record, self.spec.call, self.board, self.folder)
        proof = _settled(self._outcome.said.decode()) if self._outcome.said else None
        see_to_it(self.spec, self.board, self.folder, proof)
        return 1

    def _settle(self, outcome: str) -> None:
        self._answered(lambda: self.board.settle("outcome", outcome))

    def _answered(self, ask: Callable[[], T]) -> T:
        """What the board answers, which is asked again for some seconds where it does not."""
        deadline_s = time.monotonic() + _INSIST_S
        while not (answer := ask()) and not self.board.is_lost and time.monotonic() < deadline_s:
            pass  # it is the board that waits
        return answer

    def _leave_error(self, record: Record) -> None:
        """For torchrun's own summary, where this rank failed by itself."""
        failure = record.failure
        if failure is not None and not failure.is_consequence:
            seconds_ago = time.monotonic() - self._rank.ended_s
            message = f"{failure.type_name}: {failure.message}"
            leave_error_file(message, failure.traceback, seconds_ago)


def _settled(outcome: str) -> RunVerdict | None:
    """The verdict that is the outcome; None where that is a word."""
    return None if outcome in (GOOD, _FAILED) else RunVerdict.from_bytes(outcome.encode())
