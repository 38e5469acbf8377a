"""The memory of a group that an operation uses: declared to the other ranks, and compared.

    world.memories    a row per collective of the group, an entry per member: the memory's number,
                      and where in it the tensor begins

Memories are numbered as the group makes them. Each has a barrier of its own, so two ranks in
different ones would wait until the timeout. So before each operation a rank writes down the number
of its memory and reads those of the others: of two that differ, the later one raises. As in
mismatch_detector.py, this works inside a run only, whose folder the ranks share.
"""

from __future__ import annotations

import struct
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from labkit.comm.journal import read_journal
from labkit.comm.mismatch import OperationMismatch
from labkit.comm.shared_rows import SharedRows

if TYPE_CHECKING:
    from labkit.comm.group import Group


_NUMBER_AND_PLACE = struct.Struct("<QQ")
_WHOLE_S = 0.001  # after that an entry is whole, which may take nanoseconds (shared_rows.py)
_lock = threading.Lock()
_NUM_MADE: WeakKeyDictionary[Group, int] = WeakKeyDictionary()


class MemoryOrder:
    """One memory's number, to be compared with those that the other members declare."""

    def __init__(self, group: Group, number: int) -> None:
        """`number`: from 1, of the group's memories. The group itself is not kept."""
        self.number = number
        same_host = group._same_host
        self._others = [
            member
            for member, rank in enumerate(group.ranks)
            if member != group.rank and rank in same_host.ranks
        ]
        self._rows = SharedRows(same_host.folder / f"{group.name}.memories", group.size, group.rank)

    @classmethod
    def of_next(cls, group: Group) -> MemoryOrder:
        """Return the order of the memory that the group has just made."""
        _NUM_MADE[group] = _NUM_MADE.get(group, 0) + 1
        return cls(group, _NUM_MADE[group])

    def require_same(self, group: Group, record: int, kind: str, place: int = 0) -> None:
        """Raise OperationMismatch if another rank uses another memory, or another place in this
        one.

        place: of the tensor, in bytes from the start of the row.
        record: the operation's, in the journal. It is the last one that the group has posted.
        """
        if not self._others:
            return
        sequence = group._num_collectives
        self._rows.write(sequence, self.number.to_bytes(8, "little"), place.to_bytes(8, "little"))
        with _lock:  # between our entry and our look, see mismatch_detector.py
            pass
        for member in self._others:
            if (declared := self._declared(sequence, member, (self.number, place))) is None:
                continue
            number, other = declared
            operation = f"{kind} #{sequence}"
            if number != self.number:
                why = OperationMismatch(self._other_memory(group, operation, member, number))
            else:
                why = OperationMismatch(_other_place(group, operation, member, (place, other)))
            group._refuse(record, why)
            raise why
        self._rows.tidy(sequence)

    def _declared(
        self, sequence: int, member: int, ours: tuple[int, int]
    ) -> tuple[int, int] | None:
        """Return the number and place that a member has declared, or None for none or the same."""
        for wait_s in (_WHOLE_S, 0):
            entry = self._rows.read(sequence, member)
            if entry is None or (declared := _NUMBER_AND_PLACE.unpack_from(entry)) == ours:
                return None
            time.sleep(wait_s)
        return declared

    def _other_memory(self, group: Group, operation: str, member: int, number: int) -> str:
        journals, mine = group._same_host.folder, group.ranks[group.rank]
        theirs = group.ranks[member]
        ours = _made_at(journals / f"rank-{mine}", group.name, self.number)
        other = _made_at(journals / f"rank-{theirs}", group.name, number)
        return (
            f"in {operation}, rank {mine} uses shared memory {self.number} of group {group.name} "
            f"({ours}), and rank {theirs} uses shared memory {number} ({other}). Use the memories "
            "of a group in one order on every rank, or make one memory and use it for everything"
        )


def _other_place(group: Group, operation: str, member: int, places: tuple[int, int]) -> str:
    ours, theirs = places
    return (
        f"in {operation}, rank {group.ranks[group.rank]}'s tensor begins at byte {ours:,} of its "
        f"row of the shared memory, and rank {group.ranks[member]}'s at byte {theirs:,} of its "
        "own. Carve the same tensors on every rank, and pass them in one order"
    )


def _made_at(journal: Path, group_name: str, number: int) -> str:
    """Return the line that made a group's n-th memory, for a message."""
    made = [
        operation.origin
        for operation in read_journal(journal).operations
        if operation.kind == "share_memory" and operation.group_name == group_name
    ]
    return f"made at {made[number - 1]}"
