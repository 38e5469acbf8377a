"""Containers that get back what was taken out of them: pools of buffers, in no particular order."""

from __future__ import annotations

from labkit.comm.agreement.takes import is_taken_from

_MOST = 1 << 16  # elements that are kept in mind


class Pools:
    """Watches what one rank takes out of its lists, dicts and iterators.

    By identity, which a list may have from another one that is gone. Then it is mistaken for a
    pool, and its elements go without a name: no order is told from them, and so no false one.
    """

    def __init__(self) -> None:
        """Nothing has been taken yet."""
        self._taken: dict[int, set[int]] = {}
        self._last: dict[int, int] = {}
        self._pools: set[int] = set()
        self._num_taken = 0

    def is_pool(self, container: object, element: object) -> bool:
        """Note that an element was taken; whether it says nothing about the order."""
        key, taken_now = id(container), id(element)
        if key in self._pools or self._num_taken >= _MOST or not is_taken_from(container):
            return True
        if taken_now == self._last.get(key):
            return False  # another call for it
        self._last[key] = taken_now
        taken = self._taken.setdefault(key, set())
        if taken_now in taken:
            self._pools.add(key)
            return True
        taken.add(taken_now)
        self._num_taken += 1
        return False
