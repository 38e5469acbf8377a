"""The attendant of a rank under torchrun: from its start to its entry in the Run's folder.

    RUNNING ------> RETURNED, waiting for rank 0's word --> all have returned: exit 0
       |                |       +-- rank 0's host does not answer: finished, unconfirmed, exit 3
       +----------------+-- it fails, another rank fails, a host is gone, ranks wait in vain
                              --> verdict, exit 1

The attendant learns about its own rank from a Supervisor, as in `labkit.run`. It learns about the
others from what they pin to the board, and from probes of their liveness ports.

A rank has returned:

    every rank    leaves its record, and pins `returned/N`
    rank 0        when all have: collects the records, compares them, pins the outcome

Each step is tried again until it is known to be done: a store that hesitates for some seconds
answers none of the questions asked meanwhile.

The run has failed: the first rank that is left on a host gives its verdict. torchrun ends the other
ranks of a host as soon as one of them exits, so no attendant leaves before there is a verdict.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from labkit.comm.operation import ranks_named
from labkit.doctor.verdict import Stage
from labkit.hosts import post_mortem, records
from labkit.hosts.attempts import UNCONFIRMED, RunVerdict
from labkit.hosts.blocked_job import BlockedJobCheck
from labkit.hosts.board import Board
from labkit.hosts.hosted_rank import FolderOfOneRank, HostedSpec, NextHost, fork_rank, probe
from labkit.hosts.rank_record import Record
from labkit.hosts.rendezvous import Rendezvous
from labkit.launch.rank_process import Rank, RankOutput
from labkit.launch.supervise import Supervisor

GOOD = "good"


T = TypeVar("T")
_LOOK_S = 0.1
_FAILED = "failed"
_INSIST_S = 5.0
_NO_ANSWER = "the host of rank 0, which compares what all ranks did, does not answer any more"
UNCONFIRMED_CODE = 3
"""The exit code of a rank that has returned in a run that nobody can say is good."""
_SIGN_EVERY_S = 2.0
_WRITTEN_WITHIN_S = 15.0
_LAST_LOOK_S = 1.0  # beside the 8 s of wait_for: the others wait 15 s


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
        self._next_host = NextHost(spec.environment, spec.rendezvous)
        self._blocked_job = BlockedJobCheck(spec, board, self._supervisor, stall_s)
        self._has_reported = False
        self._outcome = board.watch("outcome")  # after the fork: it is a thread

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
        self.spec.liveness_port.answer()
        verdict = self._blocked_job.verdict()
        if verdict is not None and verdict.is_proof:
            self._settle(RunVerdict.of_proof(verdict).as_bytes().decode())
        elif verdict is not None and not self._has_reported:
            timeout_s = self.spec.timeout_s
            print(f"[labkit] {verdict.text}. An operation may take {timeout_s:g} s.", flush=True)
            self._has_reported = True

    def _has_failed(self) -> bool:
        """Another rank has said so, or the next host does not answer any more."""
        return self._outcome.content is not None or self._next_host.is_gone()

    def _confirm(self) -> int:
        """This rank has returned: wait for what rank 0 says when all have, and has compared."""
        confirmation = Confirmation(
            self._own_record(), self.spec.rendezvous, self.board, self.folder
        )
        while self._outcome.content is None:
            if self._next_host.is_gone() and self._outcome.content is None:
                return self._fail()
            if not confirmation.confirm_step():
                unconfirmed(_NO_ANSWER, self.spec, self.folder)
                return UNCONFIRMED_CODE
            self._listen()
        return self._end(self._outcome.content.decode())

    def _own_record(self, order: int = 0) -> Record:
        return post_mortem.record_of(self.spec, self._supervisor, self._started_s, order)

    def _end(self, outcome: str) -> int:
        """All of one mind: good, failed, or the verdict of rank 0."""
        if outcome == GOOD:
            return 0
        verdict = _settled(outcome)
        if verdict is None or verdict.is_proof:
            return self._fail()
        write_verdict(verdict, self.spec, self.folder)
        return UNCONFIRMED_CODE if verdict.kind == UNCONFIRMED else 1

    def _fail(self) -> int:
        """Leave what is known of this rank, and see to it that this host has a verdict."""
        order = 0
        if self._supervisor.has_failed:
            order = self._answered(lambda: self.board.count("failed")) or 0
        if self._outcome.content is None:
            self._settle(_FAILED)
        self._supervisor.evidence.examine()
        record = self._own_record(order)
        self._leave_error(record)
        records.send_record(record, self.spec.rendezvous, self.board, self.folder)
        proof = _settled(self._outcome.content.decode()) if self._outcome.content else None
        ensure_verdict(self.spec, self.board, self.folder, proof)
        return 1

    def _settle(self, outcome: str) -> None:
        self._answered(lambda: self.board.set_once("outcome", outcome))

    def _answered(self, ask: Callable[[], T]) -> T:
        """Return the board's answer; ask again for some seconds where there is none."""
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
    """Return the verdict that is the outcome, or None if the outcome is a word."""
    return None if outcome in (GOOD, _FAILED) else RunVerdict.from_bytes(outcome.encode())


class Confirmation:
    """Confirms one rank that has returned, with rank 0."""

    def __init__(self, record: Record, rendezvous: Rendezvous, board: Board, folder: Path) -> None:
        """record: of the rank, which has returned; folder: where the records of the attempt go."""
        self._record, self._rendezvous, self._board, self._folder = (
            record,
            rendezvous,
            board,
            folder,
        )
        self._is_handed_over = False
        self._judge = _Judge(rendezvous, board, folder) if record.rank == 0 else None
        self._next_sign_s = 0.0

    def confirm_step(self) -> bool:
        """Do what there is to do by now; False where nobody is left to confirm anything."""
        if self._judge is not None:
            self._judge.look()
        if time.monotonic() < self._next_sign_s:
            return True
        if not self._is_handed_over:
            self._is_handed_over = self._hand_over()
        self._next_sign_s = time.monotonic() + _SIGN_EVERY_S
        return self._board.ping()

    def _hand_over(self) -> bool:
        is_there = records.send_record(self._record, self._rendezvous, self._board, self._folder)
        return is_there and self._board.post(f"returned/{self._record.rank}", b"")


class _Judge:
    """Rank 0's part: the outcome of the run when all ranks have returned."""

    def __init__(self, rendezvous: Rendezvous, board: Board, folder: Path) -> None:
        self._rendezvous, self._board, self._folder = rendezvous, board, folder
        self._all_have = board.watch_all([f"returned/{place.rank}" for place in rendezvous.places])
        self._outcome = ""
        self._is_settled = False

    def look(self) -> None:
        """Settle the outcome, where it is due."""
        if self._all_have.content is None or self._is_settled:
            return
        if not self._outcome:
            found, unknown = records.collect(self._rendezvous, self._board, self._folder)
            if unknown:
                return
            self._outcome = _compared(self._rendezvous, found)
        self._is_settled = self._board.set_once("outcome", self._outcome)


def _compared(rendezvous: Rendezvous, found: Mapping[int, Record]) -> str:
    """Compare the operations of all ranks across hosts. Return GOOD, or a verdict."""
    verdict = post_mortem.mismatch(found)
    absent = [
        place.rank
        for place in rendezvous.places
        if place.rank not in found or found[place.rank].is_cut
    ]
    if verdict is None and absent:
        text = (
            f"all ranks have finished, but what they called is not compared: the records of "
            f"{ranks_named(absent)} have not come, or are too large to travel"
        )
        verdict = RunVerdict(text, kind=UNCONFIRMED)
    if verdict is None:
        post_mortem.report_unfinished_operations(found)
    return GOOD if verdict is None else verdict.as_bytes().decode()


def ensure_verdict(
    spec: HostedSpec, board: Board, folder: Path, proof: RunVerdict | None = None
) -> None:
    """Return when this host has a verdict. The first rank that is left of the host gives it.

    proof: that ranks waited in vain, where that is what ended the run.
    """
    if _comes_from_another(spec, folder):
        return
    found, gone = records.wait_for(spec.rendezvous, board, folder, spec.liveness_port)
    if spec.environment.host_number == 0:
        found = {**records.collect(spec.rendezvous, board, folder, _LAST_LOOK_S)[0], **found}
    publish_verdict(post_mortem.of(spec.rendezvous, found, gone, proof), spec, folder)


def write_verdict(verdict: RunVerdict, spec: HostedSpec, folder: Path) -> None:
    """Return when this host has this verdict, or one that was here before it."""
    if not _comes_from_another(spec, folder):
        publish_verdict(verdict, spec, folder)


def unconfirmed(why: str, spec: HostedSpec, folder: Path) -> None:
    """Give the verdict that this rank has returned and that the run may be good or not."""
    host = spec.rendezvous.places[spec.rank].host
    text = (
        f"rank {spec.rank}, on host {host}, has finished, but it is not confirmed that the run is "
        f"good: {why}. What the ranks of this host returned is in {folder.parent}: "
        "Run.load(..., partial=True) opens it"
    )
    write_verdict(RunVerdict(text, kind=UNCONFIRMED), spec, folder)


def _comes_from_another(spec: HostedSpec, folder: Path) -> bool:
    """Wait for a verdict of this host, 15 s at most. False: this rank gives it."""
    deadline = time.monotonic() + _WRITTEN_WITHIN_S
    while spec.rank != _speaker(spec) and time.monotonic() < deadline:
        spec.liveness_port.answer()
        if _path(spec, folder).exists():
            return True
        time.sleep(0.1)
    return _path(spec, folder).exists()


def _path(spec: HostedSpec, folder: Path) -> Path:
    return folder / RunVerdict.file_name(spec.environment.host_number)


def _speaker(spec: HostedSpec) -> int:
    """Return the first rank of this host that is there."""
    for rank in spec.environment.local_ranks:
        if (
            rank == spec.rank
            or probe("127.0.0.1", spec.rendezvous.places[rank].liveness_port, 1.0) is None
        ):
            return rank
    return spec.rank


def publish_verdict(verdict: RunVerdict, spec: HostedSpec, folder: Path) -> None:
    """Store the verdict, print it, and leave it where torchrun looks for an error to show.

    Nothing of that where this host has one meanwhile.
    """
    if not verdict.write(folder, spec.environment.host_number):
        return
    print(f"\nlabkit: {verdict.text}\n", file=sys.stderr, flush=True)
    is_of_this_host = verdict.rank in spec.environment.local_ranks
    if not is_of_this_host or verdict.rank in verdict.missing:
        # The rank that is the cause, if there is one, leaves no error of its own here.
        leave_error_file(verdict.text.partition("\n")[0])


def leave_error_file(message: str, traceback: str = "", seconds_ago: float = 0.0) -> None:
    """Write the file in which torchrun looks for this process's error, as torch's @record does.

    traceback: what torchrun prints below the rank; the message where it is empty.

    Of all files torchrun calls the one with the earliest time the root cause, and takes those
    without one for failed when it looked. So a rank that failed by itself says when; one that was
    ended for it leaves none.
    """
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not path:
        return
    # In whole seconds, and one less: ranks that are ended within the same second come after it.
    at_s = int(time.time() - seconds_ago) - 1
    extra = {"py_callstack": traceback or message, "timestamp": str(at_s)}
    Path(path).write_text(json.dumps({"message": {"message": message, "extraInfo": extra}}))
