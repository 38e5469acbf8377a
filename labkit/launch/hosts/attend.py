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
from pathlib import Path

from labkit.comm.hosts.board import Board
from labkit.comm.words import ranks_named
from labkit.launch.driver.rank_state import Rank
from labkit.launch.driver.supervise import Supervisor
from labkit.launch.hosts import host_verdict, own_record, post_mortem, records
from labkit.launch.hosts.fork import fork_rank
from labkit.launch.hosts.hosted_rank import FolderOfOneRank, HostedSpec
from labkit.launch.hosts.next_host import NextHost
from labkit.launch.hosts.standstill import Standstill
from labkit.launch.hosts.verdict_record import UNCONFIRMED, RunVerdict
from labkit.launch.ranks.output import RankOutput
from labkit.launch.ranks.stage import Stage
from labkit.launch.saved.rank_record import Record

_LOOK_S = 0.1
_SIGN_EVERY_S = 2.0
_GOOD, _FAILED = "good", "failed"
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
        self._next_host = NextHost(spec)
        self._standstill = Standstill(spec, board, self._supervisor, stall_s)
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
        verdict = self._standstill.verdict()
        if verdict is not None and verdict.is_proof:
            self.board.settle("outcome", RunVerdict.of_proof(verdict).as_bytes().decode())
        elif verdict is not None and not self._has_told:
            timeout_s = self.spec.timeout_s
            print(f"[labkit] {verdict.text}. An operation may take {timeout_s:g} s.", flush=True)
            self._has_told = True

    def _has_failed(self) -> bool:
        """Another rank has said so, or the next host does not answer any more."""
        return self._outcome.text is not None or self._next_host.is_gone()

    def _confirm(self) -> int:
        """This rank has returned: wait for what rank 0 says when all have, and has compared."""
        spec, board = self.spec, self.board
        record, is_handed_over = self._own_record(), False
        all_have = None
        if spec.rank == 0:
            all_have = board.look_for_all([f"returned/{each.rank}" for each in spec.call.places])
        next_sign_s = 0.0
        while self._outcome.text is None:
            if self._next_host.is_gone() and self._outcome.text is None:
                return self._fail()
            if time.monotonic() >= next_sign_s:
                if not is_handed_over:
                    is_handed_over = records.hand_over(
                        record, spec.call, board, self.folder
                    ) and board.post(f"returned/{spec.rank}", b"")
                if not board.is_there():
                    host_verdict.unconfirmed(_NO_ANSWER, spec, self.folder)
                    return UNCONFIRMED_CODE
                next_sign_s = time.monotonic() + _SIGN_EVERY_S
            if all_have is not None and all_have.text is not None:
                board.settle("outcome", self._compared())
                all_have = None
            self._listen()
        return self._end(self._outcome.text.decode())

    def _own_record(self, order: int = 0) -> Record:
        return own_record.of(self.spec, self._supervisor, self._started_s, order)

    def _compared(self) -> str:
        """On rank 0, when all have returned: what they did, compared across hosts."""
        call = self.spec.call
        collected = records.collect(call, self.board, self.folder)
        verdict = post_mortem.mismatch(collected)
        absent = [
            place.rank
            for place in call.places
            if place.rank not in collected or collected[place.rank].is_cut
        ]
        if verdict is None and absent:
            text = (
                f"all ranks have finished, but what they called is not compared: the records of "
                f"{ranks_named(absent)} have not come, or are too large to travel"
            )
            verdict = RunVerdict(text, kind=UNCONFIRMED)
        return _GOOD if verdict is None else verdict.as_bytes().decode()

    def _end(self, outcome: str) -> int:
        """All of one mind: good, failed, or the verdict of rank 0."""
        if outcome == _GOOD:
            return 0
        verdict = _settled(outcome)
        if verdict is None or verdict.is_of_a_run_under_way:
            return self._fail()
        host_verdict.repeat(verdict, self.spec, self.folder)
        return UNCONFIRMED_CODE if verdict.kind == UNCONFIRMED else 1

    def _fail(self) -> int:
        """Leave what is known of this rank, and see to it that this host has a verdict."""
        order = self.board.count("failed") or 0
        self.board.settle("outcome", _FAILED)
        self._supervisor.evidence.examine()
        record = self._own_record(order if self._supervisor.has_failed else 0)
        records.hand_over(record, self.spec.call, self.board, self.folder)
        proof = _settled(self._outcome.text.decode()) if self._outcome.text else None
        host_verdict.see_to_it(self.spec, self.board, self.folder, proof)
        return 1


def _settled(outcome: str) -> RunVerdict | None:
    """The verdict that is the outcome; None where that is a word."""
    return None if outcome in (_GOOD, _FAILED) else RunVerdict.from_bytes(outcome.encode())
