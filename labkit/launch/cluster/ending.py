"""How ranks of several hosts end together: the run is confirmed, or each host has one verdict.

A rank has returned:

    every rank    leaves its record, and pins `returned/N`
    rank 0        when all have: collects the records, compares them, pins the outcome

Each step is tried again until it is known to be done: a store that hesitates for some seconds
answers none of the questions asked meanwhile.

The run has failed: the first rank that is left on a host gives its verdict. torchrun ends the
other ranks of a host as soon as one of them exits: nobody leaves before there is a verdict.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from labkit.comm.hosts.board import Board
from labkit.comm.hosts.roll_call import RollCall
from labkit.comm.words import ranks_named
from labkit.launch.cluster import post_mortem, records
from labkit.launch.cluster.door import knock
from labkit.launch.cluster.hosted_rank import HostedSpec
from labkit.launch.cluster.rank_record import Record
from labkit.launch.cluster.verdict_record import UNCONFIRMED, RunVerdict

GOOD = "good"
_SIGN_EVERY_S = 2.0
_WRITTEN_WITHIN_S = 15.0
_LAST_LOOK_S = 1.0  # beside the 8 s of wait_for: the others wait 15 s


class Confirmation:
    """Of one rank."""

    def __init__(self, record: Record, call: RollCall, board: Board, folder: Path) -> None:
        """record: of the rank, which has returned; folder: where the records of the attempt go."""
        self._record, self._call, self._board, self._folder = record, call, board, folder
        self._is_handed_over = False
        self._judge = _Judge(call, board, folder) if record.rank == 0 else None
        self._next_sign_s = 0.0

    def goes_on(self) -> bool:
        """Do what there is to do by now; False where nobody is left to confirm anything."""
        if self._judge is not None:
            self._judge.look()
        if time.monotonic() < self._next_sign_s:
            return True
        if not self._is_handed_over:
            self._is_handed_over = self._hand_over()
        self._next_sign_s = time.monotonic() + _SIGN_EVERY_S
        return self._board.is_there()

    def _hand_over(self) -> bool:
        is_there = records.hand_over(self._record, self._call, self._board, self._folder)
        return is_there and self._board.post(f"returned/{self._record.rank}", b"")


class _Judge:
    """Rank 0, which says how the run has ended when all ranks have returned."""

    def __init__(self, call: RollCall, board: Board, folder: Path) -> None:
        self._call, self._board, self._folder = call, board, folder
        self._all_have = board.look_for_all([f"returned/{place.rank}" for place in call.places])
        self._outcome = ""
        self._is_settled = False

    def look(self) -> None:
        """Settle the outcome, where it is due."""
        if self._all_have.said is None or self._is_settled:
            return
        if not self._outcome:
            found, unknown = records.collect(self._call, self._board, self._folder)
            if unknown:
                return
            self._outcome = _compared(self._call, found)
        self._is_settled = self._board.settle("outcome", self._outcome)


def _compared(call: RollCall, found: Mapping[int, Record]) -> str:
    """What all ranks did, compared across hosts: good, or a verdict."""
    verdict = post_mortem.mismatch(found)
    absent = [
        place.rank for place in call.places if place.rank not in found or found[place.rank].is_cut
    ]
    if verdict is None and absent:
        text = (
            f"all ranks have finished, but what they called is not compared: the records of "
            f"{ranks_named(absent)} have not come, or are too large to travel"
        )
        verdict = RunVerdict(text, kind=UNCONFIRMED)
    if verdict is None:
        post_mortem.tell_what_is_left(found)
    return GOOD if verdict is None else verdict.as_bytes().decode()


def see_to_it(
    spec: HostedSpec, board: Board, folder: Path, proof: RunVerdict | None = None
) -> None:
    """Return when this host has a verdict; the first rank that is left of it gives one.

    proof: that ranks waited in vain, where that is what ended the run.
    """
    if _comes_from_another(spec, folder):
        return
    found, gone = records.wait_for(spec.call, board, folder, spec.door)
    if spec.environment.host_number == 0:
        found = {**records.collect(spec.call, board, folder, _LAST_LOOK_S)[0], **found}
    pronounce(post_mortem.of(spec.call, found, gone, proof), spec, folder)


def repeat(verdict: RunVerdict, spec: HostedSpec, folder: Path) -> None:
    """Return when this host has this verdict, or one that was here before it."""
    if not _comes_from_another(spec, folder):
        pronounce(verdict, spec, folder)


def unconfirmed(why: str, spec: HostedSpec, folder: Path) -> None:
    """This rank has returned, and nobody can say whether the run is good: say just that."""
    host = spec.call.places[spec.rank].host
    text = (
        f"rank {spec.rank}, on host {host}, has finished, but it is not confirmed that the run is "
        f"good: {why}. What the ranks of this host returned is in {folder.parent}: "
        "Run.load(..., partial=True) opens it"
    )
    repeat(RunVerdict(text, kind=UNCONFIRMED), spec, folder)


def _comes_from_another(spec: HostedSpec, folder: Path) -> bool:
    """Wait for a verdict of this host, 15 s at most; False when it is for us to give."""
    deadline = time.monotonic() + _WRITTEN_WITHIN_S
    while spec.rank != _speaker(spec) and time.monotonic() < deadline:
        spec.door.answer()
        if _path(spec, folder).exists():
            return True
        time.sleep(0.1)
    return _path(spec, folder).exists()


def _path(spec: HostedSpec, folder: Path) -> Path:
    return folder / RunVerdict.file_name(spec.environment.host_number)


def _speaker(spec: HostedSpec) -> int:
    """The first rank of this host that is there."""
    for rank in spec.environment.local_ranks:
        if rank == spec.rank or knock("127.0.0.1", spec.call.places[rank].door, 1.0) is None:
            return rank
    return spec.rank


def pronounce(verdict: RunVerdict, spec: HostedSpec, folder: Path) -> None:
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
