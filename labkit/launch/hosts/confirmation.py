"""A rank has returned: what it does until rank 0 says whether the run is good.

    every rank    leaves its record, and pins `returned/N`
    rank 0        when all have: collects the records, compares them, pins the outcome

Each step is tried again until it is known to be done: a store that hesitates for some seconds
answers none of the questions asked meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from labkit.comm.hosts.board import Board
from labkit.comm.hosts.roll_call import RollCall
from labkit.comm.words import ranks_named
from labkit.launch.hosts import post_mortem, records
from labkit.launch.hosts.verdict_record import UNCONFIRMED, RunVerdict
from labkit.launch.saved.rank_record import Record

GOOD = "good"
_SIGN_EVERY_S = 2.0


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
