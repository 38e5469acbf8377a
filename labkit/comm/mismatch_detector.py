"""Each rank checks that the others mean the same operation, before it performs its own.

Before an operation starts, a rank writes down what it means, in memory shared with the other ranks
of its host (shared_rows.py), and then reads what they wrote. Of two ranks, the later one sees the
other's entry. If they disagree, it raises OperationMismatch and never starts the operation. So
ranks get no wrong sum, and no process aborts in C++ because a message is too long.

    world.calls     a row per collective, an entry per member: a hash of what must be equal (kind,
                    dtype, shape, reduce op, root, label, medium), and a hash of the calling line
                    with the lines that led to it
    world.0-1       a row per message from 0 to 1: the sender's entry, the receiver's, each a hash
                    of label, dtype and shape
    world.0-1.rows  a row per all_to_all: how many rows 0 sends to 1, how many 1 expects

The tables hold hashes, and show only that something differs. Then JournalEvidence reads the
journals of the two ranks, and mismatch.py says what differs.

Ranks may call a collective from different lines. But line A and then line B on one rank, and B and
then A on another, with nothing between, are swapped calls: an error, unless a label (`Group.label`)
says that they belong together. The second call detects it. The first has mixed the two tensors by
then, but the run ends with the error and returns no value.

Each rank writes its own entry and then reads the others' (Dekker's pattern). A processor may delay
a store by some nanoseconds, so something must lie between the two: the entry in the journal, which
takes microseconds, with its lock, a full barrier on x86. If a rank still misses an entry, its next
comparison finds it. (The rows of an all_to_all are compared only once.)

Cost: a few microseconds per operation for each other rank (benchmarks/journal.py). torch's own
check (TORCH_DISTRIBUTED_DEBUG=DETAIL) adds a collective to each collective, and does not see the
reduce op or swapped calls.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from labkit.comm import mismatch
from labkit.comm.journal import read_journal
from labkit.comm.mismatch import ADVICE, Difference, OperationMismatch
from labkit.comm.operation import Operation
from labkit.comm.shared_rows import SharedRows


@dataclass(frozen=True)
class SameHostRanks:
    """The ranks of one host, by global number, and the folder of their journals and tables."""

    ranks: frozenset[int]
    folder: Path
    detectors: list[MismatchDetector] = field(default_factory=list, compare=False)
    """The detectors of all groups; each adds itself."""


NO_PEERS = SameHostRanks(frozenset(), Path())


_MEANT, _LINE = slice(0, 8), slice(8, 16)
_NO_LINE = bytes(8)


class MismatchDetector:
    """Compare one member's operations with those of the group's other members."""

    def __init__(
        self, same_host: SameHostRanks, name: str, ranks: Sequence[int], member: int
    ) -> None:
        """`ranks`: global numbers of the members; `member`: which of them this is."""
        self._member = member
        tables = f"{same_host.folder / name}"
        self._evidence = JournalEvidence(same_host.folder, name, ranks, member)
        self._others = [
            peer for peer, rank in enumerate(ranks) if peer != member and rank in same_host.ranks
        ]
        self._last = 0
        self._refusal: OperationMismatch | None = None
        self._of_all_groups = same_host.detectors
        if self._others:
            self._of_all_groups.append(self)
        self._calls = SharedRows(f"{tables}.calls", len(ranks), member)
        self._compared = dict.fromkeys(self._others, 0)
        self.pairs = Pairs(tables, self._evidence, member, self._others)

    def require_in_step(self) -> None:
        """Raise OperationMismatch if we refused an operation: since then the ranks count apart."""
        if self._refusal is not None:
            raise OperationMismatch(f"this group has been out of step since: {self._refusal}")

    def refuse(self, why: OperationMismatch) -> None:
        """Refuse all further operations of the group, with this error."""
        self._refusal = why

    def declare(self, sequence: int, meant: bytes, line: bytes = _NO_LINE) -> None:
        """Declare our n-th collective. Call `compare` once it is in the journal: see above.

        line: hash of the calling line, where the order of calls counts.
        """
        self._last = sequence
        if self._others:
            self._calls.write(sequence, meant, line)

    def compare_remaining(self) -> None:
        """Compare entries that came after our last comparison. Raises OperationMismatch."""
        if self._last:
            self.compare(self._last)
        self.pairs.compare_remaining()

    def leave(self) -> None:
        """Compare what is left, for the last time. Raises OperationMismatch."""
        self.compare_remaining()
        if self._others:
            self._of_all_groups.remove(self)

    def compare(self, sequence: int) -> None:
        """Compare collectives with the others', up to our n-th. Raises OperationMismatch."""
        mine = self._calls.read(sequence, self._member) if self._others else None
        for peer in self._others:
            number = self._compared[peer]
            while number < sequence:
                theirs = self._calls.read(number + 1, peer)
                if theirs is None:
                    break
                number += 1
                ours = mine if number == sequence else self._calls.read(number, self._member)
                if theirs != ours:
                    assert ours is not None
                    self._differ(number, peer, ours, theirs)
            self._compared[peer] = number
        self._calls.tidy(sequence, before=min(self._compared.values(), default=0) - 1)

    def _differ(self, sequence: int, peer: int, ours: bytes, theirs: bytes) -> None:
        if ours[_MEANT] != theirs[_MEANT]:
            self._evidence.raise_if_collective_differs(sequence, peer)
        elif sequence > 1 and _NO_LINE not in (ours[_LINE], theirs[_LINE]):
            before = self._calls.read(sequence - 1, self._member)
            its_before = self._calls.read(sequence - 1, peer)
            # The same two calls, in this order here and in the other one there.
            if (before, its_before) == (theirs, ours):
                self._evidence.raise_if_order_differs(sequence, peer)


@lru_cache(maxsize=4096)
def hashed(*parts: object) -> bytes:
    """Return 8 bytes that are equal in two processes when the parts are."""
    return hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()


SENDER, RECEIVER = 0, 1


class Pairs:
    """Compare this member's messages and all_to_all rows with those of each other member."""

    def __init__(
        self, tables: str, evidence: JournalEvidence, member: int, others: Sequence[int]
    ) -> None:
        """`tables`: the start of the group's file names; `others`: other members on our host."""
        self._tables, self._evidence = tables, evidence
        self._member, self._others = member, others
        self._messages: dict[tuple[int, int], _Messages] = {}
        self._rows: dict[tuple[int, int], SharedRows] = {}

    def declare_message(self, peer: int, role: int, number: int, meant: bytes) -> None:
        """Declare what the n-th message to `peer` is (role SENDER), or from it (RECEIVER)."""
        if peer not in self._others:
            return
        messages = self._messages.get((peer, role))
        if messages is None:
            rows = SharedRows(self._path(peer, role), 2, role)
            messages = self._messages[peer, role] = _Messages(rows)
        messages.declared = number
        messages.rows.write(number, meant)

    def compare_messages(self, peer: int, role: int) -> None:
        """Compare our messages so far with their other ends. Raises OperationMismatch."""
        messages = self._messages.get((peer, role))
        while messages is not None and messages.compared < messages.declared:
            number = messages.compared + 1
            theirs = messages.rows.read(number, 1 - role)
            if theirs is None:
                return
            messages.compared = number
            if theirs != messages.rows.read(number, role):
                self._evidence.raise_if_message_differs(number, peer, sends=role == SENDER)
            messages.rows.tidy(number)

    def compare_remaining(self) -> None:
        """Compare the ends of messages since our last comparison. Raises OperationMismatch."""
        for peer, role in list(self._messages):
            self.compare_messages(peer, role)

    def declare_rows(self, sequence: int, sent: Sequence[int], received: Sequence[int]) -> None:
        """Declare how many rows go to and come from each member in our n-th collective."""
        for peer in self._others:
            for role, rows in ((SENDER, sent[peer]), (RECEIVER, received[peer])):
                self._rows_with(peer, role).write(sequence, rows.to_bytes(8, "little"))

    def compare_rows(self, sequence: int) -> None:
        """Compare the rows of our n-th collective, an all_to_all. Raises OperationMismatch."""
        for peer in self._others:
            for role in (SENDER, RECEIVER):
                table = self._rows_with(peer, role)
                theirs = table.read(sequence, 1 - role)
                if theirs is not None and theirs != table.read(sequence, role):
                    self._evidence.raise_if_collective_differs(sequence, peer)
                table.forget_before(sequence)

    def _rows_with(self, peer: int, role: int) -> SharedRows:
        table = self._rows.get((peer, role))
        if table is None:
            path = f"{self._path(peer, role)}.rows"
            table = self._rows[peer, role] = SharedRows(path, 2, role)
        return table

    def _path(self, peer: int, role: int) -> str:
        source, target = (self._member, peer) if role == SENDER else (peer, self._member)
        return f"{self._tables}.{source}-{target}"


@dataclass
class _Messages:
    """Messages from one member to another, seen from one end."""

    rows: SharedRows
    declared: int = 0
    compared: int = 0


class JournalEvidence:
    """Read our journal and another member's when entries differ, and raise what they show.

    The journals decide, because the tables only have hashes. If the journals show no difference,
    nothing is raised.
    """

    def __init__(self, journals: Path, group_name: str, ranks: Sequence[int], member: int) -> None:
        """`ranks`: global numbers of the group's members; `member`: which of them we are."""
        self._journals, self._group_name = journals, group_name
        self._ranks, self._member = ranks, member

    def raise_if_collective_differs(self, sequence: int, peer: int) -> None:
        """Raise if the n-th collective differs between us and a member."""
        ranks = (self._ranks[self._member], self._ranks[peer])
        _raise_difference(
            lambda: mismatch.collective_difference(
                {rank: self._collective(rank, sequence) for rank in ranks}
            )
        )

    def raise_if_order_differs(self, sequence: int, peer: int) -> None:
        """Raise if our n-th collective and the one before it are swapped there."""
        ranks = sorted((self._ranks[self._member], self._ranks[peer]))
        both = (sequence - 1, sequence)
        _raise_difference(
            lambda: mismatch.order_difference(
                {rank: [self._collective(rank, each) for each in both] for rank in ranks}
            )
        )

    def raise_if_message_differs(self, number: int, peer: int, *, sends: bool) -> None:
        """Raise if our n-th message to (or from) a member does not fit its buffer."""
        (source, _), (target, _) = ends = self._ends(peer, sends=sends)

        def find() -> Difference | None:
            send, recv = (
                _message(self._operations(rank), kind, other, number)
                for (rank, kind), (other, _) in zip(ends, ends[::-1], strict=True)
            )
            return mismatch.message_difference(source, send, target, recv)

        _raise_difference(find)

    def _ends(self, peer: int, *, sends: bool) -> tuple[tuple[int, str], tuple[int, str]]:
        """Return sender and receiver: a global number, and the kind of its operation."""
        ours, theirs = self._ranks[self._member], self._ranks[peer]
        source, target = (ours, theirs) if sends else (theirs, ours)
        return (source, "send"), (target, "recv")

    def _operations(self, rank: int) -> list[Operation]:
        """Return the operations that a member has posted on this group so far."""
        journal = read_journal(self._journals / f"rank-{rank}")
        return [each for each in journal.operations if each.group_name == self._group_name]

    def _collective(self, rank: int, sequence: int) -> Operation:
        """Return the n-th collective of a member. Raises _NotYet."""
        for operation in self._operations(rank):
            if operation.is_collective and operation.sequence == sequence:
                return operation
        raise _NotYet


_PATIENCE_S = 10.0  # the other process may pause between its declaration and its journal entry


class _NotYet(Exception):
    """A declared entry that is not in its rank's journal so far."""


def _message(operations: Sequence[Operation], kind: str, peer: int, number: int) -> Operation:
    """Return one end of a message. Raises _NotYet."""
    for operation in operations:
        if (operation.kind, operation.peer, operation.sequence) == (kind, peer, number):
            return operation
    raise _NotYet


def _raise_difference(find: Callable[[], Difference | None]) -> None:
    """Call `find` once all declared entries are in the journals, and raise its difference."""
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline:
        with contextlib.suppress(_NotYet):
            difference = find()
            if difference is not None:
                raise OperationMismatch(f"{difference.text(str)}. {ADVICE[difference.aspect]}")
            return
        time.sleep(0.005)
