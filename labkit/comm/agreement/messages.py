"""Messages from one member to another, in order: what each end says that they are.

A message goes from a buffer to a buffer, and these have names of their own: in a halo exchange
`send(right_edge)` rightly meets `recv(left_ghost)`. So how the two calls read says nothing of their
order. A model's parameters do, as they are the same thing on both ranks (parameter_paths.py): a
sender that goes through them in another order than the receiver puts weights into biases.

    world.0-1       a row per message from 0 to 1: the sender's entry, the receiver's
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from labkit.comm.agreement import items
from labkit.comm.agreement.call_order import OrderOfItems, Where
from labkit.comm.agreement.shared_rows import SharedRows

SENDER, RECEIVER = 0, 1
_MEANT, _ITEM = slice(0, 8), slice(8, 16)
_TIDY_EVERY = 1024


class Differing(NamedTuple):
    """A message that its two ends do not agree on."""

    number: int
    only_in_order: bool
    """They agree on what can be seen of it, and it is another parameter's."""


class Messages:
    """Those from one member to another, seen from one end."""

    def __init__(self, path: str, role: int) -> None:
        """`path`: of the table that both ends share; `role`: SENDER or RECEIVER."""
        self._rows = SharedRows(path, 2, role)
        self._role = role
        self._declared = self._compared = 0
        self._order = OrderOfItems()

    def declare(self, number: int, meant: bytes, item: bytes) -> None:
        """Say what the n-th message is, and for which parameter; `differing` follows."""
        self._declared = number
        self._rows.write(number, meant, item)

    def take_back(self) -> None:
        """The last one that we declared has not come about: the next one has its number."""
        self._rows.erase(self._declared)
        self._declared -= 1
        self._compared = min(self._compared, self._declared)

    def differing(self) -> Iterator[Differing]:
        """Those that differ among what both ends have declared since we last looked."""
        while self._compared < self._declared:
            number = self._compared + 1
            theirs = self._rows.read(number, 1 - self._role)
            if theirs is None:
                return
            ours = self._rows.read(number, self._role)
            assert ours is not None
            self._compared = number
            if number % _TIDY_EVERY == 0:
                self._rows.forget_before(number)
            if ours[_MEANT] != theirs[_MEANT]:
                yield Differing(number, only_in_order=False)
            elif self._closes_a_circle(number, ours[_ITEM], theirs[_ITEM]):
                yield Differing(number, only_in_order=True)

    def _closes_a_circle(self, number: int, ours: bytes, theirs: bytes) -> bool:
        if not items.differ(ours, theirs):
            return False
        return bool(self._order.differ(ours, theirs, Where("", number)))
