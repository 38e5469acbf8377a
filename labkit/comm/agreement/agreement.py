"""Every rank checks that the others mean the same operation as itself, before it is carried out.

Before an operation starts, a rank writes down what it means, in memory shared with the other ranks
of its host (shared_rows.py), and then looks at what they wrote. Of two ranks, the one that comes
later sees the other's entry. So of two that disagree one raises and never starts the operation: no
wrong sum comes about, and nobody crashes in C++ over a message that is too long. Two calls by the
same lines, in a loop over a set, are told apart by the names of what they are for (loop_items.py),
or by what `Group.label` says of them.

Each writes its own entry and then reads the others' (Dekker's pattern). A processor may do that the
other way round, and then neither sees the other's: it keeps a store to itself for some nanoseconds.
So something must come in between, and does: the entry in the journal, which takes microseconds, and
a lock, which on x86 is a full barrier. An entry that was missed all the same is found by the next
look, at the latest by that at the end of the run.

    world.calls     a row per collective, an entry per member: what it is, the reader's call, the
                    element of a loop, and how many came before it on groups of the same members
    world.0-1       what goes from 0 to 1, see pairs.py

Only equality is looked at here, of hashes; words come from the journals, which are read when
something differs. Costs a few microseconds per operation and rank to compare with
(benchmarks/journal.py), and more where calls or elements differ that mean the same: these are
searched for another order, among 1,024 at most (call_order.py). torch's own check
(TORCH_DISTRIBUTED_DEBUG=DETAIL) adds a collective to every collective, and takes no notice of
the reduce op and of swapped calls.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from functools import lru_cache

from labkit.comm.agreement import items
from labkit.comm.agreement.call_order import Said, Where
from labkit.comm.agreement.disagreement import Disagreement
from labkit.comm.agreement.neighbours import Neighbours, Witness
from labkit.comm.agreement.pairs import Pairs
from labkit.comm.agreement.shared_rows import SharedRows

# The last field: our turn in the lower half, and in the upper one what is queued, plus 1 if known.
_TURN = 2**32 - 1
_CALL = struct.Struct("<8s8s8s8sQ")
_TIDY_EVERY = 1024


@lru_cache(maxsize=4096)
def hashed(*parts: object) -> bytes:
    """8 bytes that are equal in two processes when the parts are."""
    return hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()


def _queued_differ(ours: int, theirs: int) -> bool:
    ours, theirs = ours >> 32, theirs >> 32
    return ours != theirs and ours > 0 and theirs > 0


class Agreement:
    """What the members of one group mean, seen from one of them."""

    def __init__(
        self, neighbours: Neighbours, name: str, ranks: Sequence[int], member: int
    ) -> None:
        """`ranks`: global numbers of the members; `member`: which of them this is."""
        self._member = member
        # A name may hold a slash: torch.distributed/1 is its process group 1.
        tables = f"{neighbours.tables / name.replace('/', '-')}"
        self._witness = Witness(neighbours.journals, name, ranks, member)
        self._others = [
            peer for peer, rank in enumerate(ranks) if peer != member and rank in neighbours.ranks
        ]
        self._last = 0
        self._refusal: Disagreement | None = None
        self._too_late: Disagreement | None = None
        self._of_all_groups = neighbours.agreements
        if self._others:
            self._of_all_groups.append(self)
        self._calls = SharedRows(f"{tables}.calls", len(ranks), member)
        self._compared = dict.fromkeys(self._others, 0)
        self._name = name
        self._orders = {peer: neighbours.orders_with(ranks[peer], ranks) for peer in self._others}
        self._turns = neighbours.turns(ranks)
        self.pairs = Pairs(tables, self._witness, member, self._others)

    def require_in_step(self) -> None:
        """Raise Disagreement if we have refused an operation: since then all numbers are off."""
        if self._refusal is not None:
            raise Disagreement(f"this group has been out of step since: {self._refusal}")

    def refuse(self, why: Disagreement) -> None:
        """Take part in nothing more."""
        self._refusal = why

    def refuse_too_late(self, why: Disagreement) -> None:
        """The same, of an operation that is carried out: whoever catches it has wrong numbers."""
        self._refusal = self._too_late = why

    def declare(
        self,
        sequence: int,
        meant: bytes,
        text: bytes = b"",
        lines: bytes = b"",
        item: bytes = b"",
        queued: int | None = None,
    ) -> None:
        """Say what our n-th collective is; `compare` follows once it is in the journal, see above.

        text and lines: of the call, where its order matters. item: the element of a loop. queued:
        how many collectives the process group had been handed before.
        """
        self._last = sequence
        if self._others:
            turn = next(self._turns) & _TURN | (0 if queued is None else queued + 1) << 32
            self._calls.write(sequence, meant, text, lines, item, turn)

    def take_back(self, sequence: int) -> None:
        """Our n-th collective has not come about: the next one we declare is the n-th."""
        self._last = sequence - 1
        if self._others:
            self._calls.erase(sequence)
        for peer, number in self._compared.items():
            self._compared[peer] = min(number, sequence - 1)
        self.pairs.take_back_rows(sequence)

    def compare_what_is_left(self) -> None:
        """Look at entries that were not there when we compared. Raises Disagreement.

        Also one that came too late, and that the program may have caught.
        """
        if self._too_late is not None:
            raise self._too_late
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
        if sequence % _TIDY_EVERY == 0:
            self._calls.forget_before(min(self._compared.values(), default=0))

    def _differ(self, sequence: int, peer: int, ours: bytes, theirs: bytes) -> None:
        meant, said, lines, item, turn = _CALL.unpack(ours)
        its_meaning, its_said, its_lines, its_item, its_turn = _CALL.unpack(theirs)
        if meant != its_meaning or _queued_differ(turn, its_turn):
            self._witness.testify_on_collective(sequence, peer)
            return
        turn, its_turn = turn & _TURN, its_turn & _TURN
        orders, where = self._orders[peer], Where(self._name, sequence)
        circle: list[Where] = []
        if said != its_said:
            call, its_call = (meant, said), (meant, its_said)
            circle = orders.of_calls.differ(
                Said(call, lines, turn), Said(its_call, its_lines, its_turn), where
            )
        if items.differ(item, its_item):
            circle = circle or orders.of_items.differ((meant, item), (meant, its_item), where)
        if circle:
            self._witness.testify_on_order(peer, circle)
