"""What the journals of ranks on one host prove, once their entries in shared tables differ."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from labkit.comm.agreement import disagreement
from labkit.comm.agreement.difference import ADVICE, Difference
from labkit.comm.agreement.disagreement import Disagreement
from labkit.comm.operation import Operation
from labkit.comm.read_journal import read_journal

_PATIENCE_S = 10.0  # the other's process may be stopped between its two notes


class _NotYet(Exception):
    """An entry that was declared is not in its rank's journal so far."""


class Witness:
    """Reads our journal and another member's when something seems to differ.

    The journals decide: they have what was called, of which the tables only have hashes. Where they
    show no difference, nothing is raised.
    """

    def __init__(self, journals: Path, group_name: str, ranks: Sequence[int], member: int) -> None:
        """`ranks`: global numbers of the group's members; `member`: which of them we are."""
        self._journals, self._group_name = journals, group_name
        self._ranks, self._member = ranks, member

    def testify_on_collective(self, sequence: int, peer: int) -> None:
        """Raise Disagreement if the n-th collective differs between us and a member."""
        ranks = (self._ranks[self._member], self._ranks[peer])
        _raise_what_is_found(
            lambda: disagreement.among({rank: self._collective(rank, sequence) for rank in ranks})
        )

    def testify_on_order(self, sequence: int, peer: int) -> None:
        """Raise Disagreement if our n-th collective and the one before it are swapped there."""
        ranks = sorted((self._ranks[self._member], self._ranks[peer]))
        both = (sequence - 1, sequence)
        _raise_what_is_found(
            lambda: disagreement.swap(
                {rank: [self._collective(rank, each) for each in both] for rank in ranks}
            )
        )

    def testify_on_message(self, number: int, peer: int, *, sends: bool) -> None:
        """Raise Disagreement if our n-th message to (or from) a member does not fit its buffer."""
        (source, _), (target, _) = ends = self._ends(peer, sends=sends)

        def find() -> Difference | None:
            send, recv = (
                _message(self._operations(rank), kind, other, number)
                for (rank, kind), (other, _) in zip(ends, ends[::-1], strict=True)
            )
            return disagreement.between(source, send, target, recv)

        _raise_what_is_found(find)

    def _ends(self, peer: int, *, sends: bool) -> tuple[tuple[int, str], tuple[int, str]]:
        """Who sends, and who receives: a global number, and what its operation is called."""
        ours, theirs = self._ranks[self._member], self._ranks[peer]
        source, target = (ours, theirs) if sends else (theirs, ours)
        return (source, "send"), (target, "recv")

    def _operations(self, rank: int) -> list[Operation]:
        """What a member has posted on this group so far."""
        journal = read_journal(self._journals / f"rank-{rank}")
        return [each for each in journal.operations if each.group_name == self._group_name]

    def _collective(self, rank: int, sequence: int) -> Operation:
        """The n-th one of a member. Raises _NotYet."""
        for operation in self._operations(rank):
            if operation.is_collective and operation.sequence == sequence:
                return operation
        raise _NotYet


def _message(operations: Sequence[Operation], kind: str, peer: int, number: int) -> Operation:
    """One end of a message. Raises _NotYet."""
    for operation in operations:
        if (operation.kind, operation.peer, operation.sequence) == (kind, peer, number):
            return operation
    raise _NotYet


def _raise_what_is_found(find: Callable[[], Difference | None]) -> None:
    """Look once all is there that was declared: a rank writes its journal a moment after that."""
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline:
        with contextlib.suppress(_NotYet):
            difference = find()
            if difference is not None:
                raise Disagreement(f"{difference.text(str)}. {ADVICE[difference.aspect]}")
            return
        time.sleep(0.005)
