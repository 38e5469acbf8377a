"""Every rank checks that the others mean the same operation as itself, before it is carried out.

Before an operation starts, a rank writes down what it means, in memory shared with the other ranks
of its host (shared_rows.py), and then reads what they wrote. Of two ranks, the later one sees the
other's entry. If they disagree, it raises an error and never starts the operation. So ranks get no
wrong sum, and no process aborts in C++ because a message is too long.

    world.calls     a row per collective, an entry per member: a hash of what must be equal (kind,
                    dtype, shape, reduce op, root, label, medium), and one of how the call reads,
                    with those that led there
    world.0-1       what goes from 0 to 1, see pairs.py

Lines may differ, since ranks may call from different ones. But line A and then line B on one rank,
B and then A on another, with nothing between, are two calls in another order: an error, unless
they have a label (`Group.label`) which says that they belong together. It is noticed at the second
call: the first has mixed the two by then, and the run returns none of it.

Each writes its own entry and then reads the others' (Dekker's pattern). A processor may do that the
other way round, and then neither sees the other's: it keeps a store to itself for some nanoseconds.
So something must come in between, and does: the entry in the journal, which takes microseconds, and
a lock, which on x86 is a full barrier. An entry that was missed all the same is found by the next
look, at the latest by that at the end of the run (but for the rows of an all_to_all).

Only equality is looked at here, of hashes; words come from the journals, which are read when
something differs. Costs a few microseconds per operation and rank to compare with
(benchmarks/journal.py). torch's own check (TORCH_DISTRIBUTED_DEBUG=DETAIL) adds a collective to
every collective, and takes no notice of the reduce op and of swapped calls.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from labkit.comm.agreement.disagreement import Disagreement
from labkit.comm.agreement.pairs import Pairs
from labkit.comm.agreement.shared_rows import SharedRows
from labkit.comm.agreement.witness import Witness

_MEANT, _LINE = slice(0, 8), slice(8, 16)
_NO_LINE = bytes(8)


@lru_cache(maxsize=4096)
def hashed(*parts: object) -> bytes:
    """8 bytes that are equal in two processes when the parts are."""
    return hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()


@dataclass(frozen=True)
class Neighbours:
    """Ranks of one host, by global number, and the folder of their journals and tables."""

    ranks: frozenset[int]
    folder: Path
    agreements: list[Agreement] = field(default_factory=list, compare=False)
    """Of the groups that compare what they mean; each enters itself."""


NOBODY = Neighbours(frozenset(), Path())


class Agreement:
    """What the members of one group mean, seen from one of them."""

    def __init__(
        self, neighbours: Neighbours, name: str, ranks: Sequence[int], member: int
    ) -> None:
        """`ranks`: global numbers of the members; `member`: which of them this is."""
        self._member = member
        tables = f"{neighbours.folder / name}"
        self._witness = Witness(neighbours.folder, name, ranks, member)
        self._others = [
            peer for peer, rank in enumerate(ranks) if peer != member and rank in neighbours.ranks
        ]
        self._last = 0
        self._refusal: Disagreement | None = None
        self._of_all_groups = neighbours.agreements
        if self._others:
            self._of_all_groups.append(self)
        self._calls = SharedRows(f"{tables}.calls", len(ranks), member)
        self._compared = dict.fromkeys(self._others, 0)
        self.pairs = Pairs(tables, self._witness, member, self._others)

    def require_in_step(self) -> None:
        """Raise Disagreement if we have refused an operation: since then all numbers are off."""
        if self._refusal is not None:
            raise Disagreement(f"this group has been out of step since: {self._refusal}")

    def refuse(self, why: Disagreement) -> None:
        """Take part in nothing more."""
        self._refusal = why

    def declare(self, sequence: int, meant: bytes, line: bytes = _NO_LINE) -> None:
        """Say what our n-th collective is; `compare` follows once it is in the journal, see above.

        line: which one calls, where the order of calls counts.
        """
        self._last = sequence
        if self._others:
            self._calls.write(sequence, meant, line)

    def compare_what_is_left(self) -> None:
        """Look at entries that were not there when we compared. Raises Disagreement."""
        if self._last:
            self.compare(self._last)
        self.pairs.compare_what_is_left()

    def leave(self) -> None:
        """Compare what is left, for the last time. Raises Disagreement."""
        self.compare_what_is_left()
        if self._others:
            self._of_all_groups.remove(self)

    def compare(self, sequence: int) -> None:
        """Look at the others' collectives up to our n-th. Raises Disagreement."""
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
            self._witness.testify_on_collective(sequence, peer)
        elif sequence > 1 and _NO_LINE not in (ours[_LINE], theirs[_LINE]):
            before = self._calls.read(sequence - 1, self._member)
            its_before = self._calls.read(sequence - 1, peer)
            # The same two calls, in this order here and in the other one there.
            if (before, its_before) == (theirs, ours):
                self._witness.testify_on_order(sequence, peer)
