"""The calls of one group, or of one of torch's process groups: entered, and open until they end."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch.distributed import distributed_c10d as c10d

from labkit.comm import own_timeout
from labkit.comm.agreement.disagreement import Disagreement
from labkit.comm.agreement.messages import RECEIVER, SENDER
from labkit.comm.callers import own_frame
from labkit.comm.calls.by_place import Meant, Places
from labkit.comm.calls.open_call import OpenCall
from labkit.comm.calls.readings import flat
from labkit.comm.point_to_point import PointToPoint
from labkit.comm.wire_bytes import WireBytes

_NOTHING_SENT = WireBytes(0, 0)


def _num_made() -> int:
    """Process groups of this process so far: torch counts one before it makes it."""
    return c10d._world.group_count


class ComparedCalls(PointToPoint):
    """The calls of one group, or of one of torch's process groups, seen from one member."""

    _receives_from_anybody = False

    @functools.cached_property
    def _places(self) -> Places:
        return Places(self._neighbours.tables, self.name, self.ranks, self.rank)

    @functools.cached_property
    def _options(self) -> Any:
        return own_timeout.options_of(self._of_torch)

    @property
    def _ends_by_itself(self) -> bool:
        """Whether a wait may end by a timeout that the program has chosen, and go on from there."""
        return own_timeout.is_chosen(self._options)

    def enter(
        self,
        kind: str,
        x: torch.Tensor,
        *,
        blocking: bool = False,
        reduce: str | None = None,
        root: int | None = None,
        splits: Sequence[Sequence[int]] | None = None,
        passed: torch.Tensor | None = None,
    ) -> OpenCall:
        """Say that we are about to call this. Raises Disagreement.

        root: a number in the group. splits: rows to, and from, each member. passed: the tensor
        itself, where `x` only stands for it. blocking: whether we stay in it until it is over.
        """
        record = self._post(
            kind,
            x,
            _NOTHING_SENT,
            blocking and not self._ends_by_itself,
            reduce=reduce,
            peer=root,
            splits=splits,
            passed=passed,
        )
        return self._open(record, self._take_back)

    def _take_back(self, record: int) -> None:
        """Our last call was refused, and its process group has not seen it: it does not count.

        So it may be made again, or not at all, on this rank alone. Where somebody has come in
        between it stays, as nobody can say what was handed over.
        """
        if self._has_come_to_nothing(record):
            self._agreement.take_back(self._num_collectives)
            self._num_collectives -= 1

    def _take_back_message(self, numbers: list[int], peer: int, role: int, record: int) -> None:
        if self._has_come_to_nothing(record):
            self._agreement.pairs.take_back_message(peer, role)
            numbers[peer] -= 1

    def _has_come_to_nothing(self, record: int) -> bool:
        last, before = self._last_posted
        now = None if self._handed is None else self._handed.so_far
        return record == last and before is not None and now == before

    def enter_new_group(self, members: Sequence[int], *, ends_by_itself: bool) -> OpenCall:
        """Say that we are about to make a group of these. Raises Disagreement."""
        record = self._post(
            "new_group",
            flat(0, torch.uint8),
            _NOTHING_SENT,
            not ends_by_itself,
            members=tuple(members),
        )
        num_before = _num_made()

        def take_back(record: int) -> None:
            if _num_made() == num_before:  # it may have been refused after it was made
                self._take_back(record)

        return self._open(record, take_back)

    def enter_send(
        self, x: torch.Tensor, dst: int, passed: torch.Tensor, *, blocking: bool
    ) -> OpenCall:
        """Say that we are about to send `passed`, for which `x` stands. Raises Disagreement."""
        self._num_sent[dst] += 1
        waits, number = blocking and not self._ends_by_itself, self._num_sent[dst]
        record = self._post_message("send", dst, number, x, waits, passed)
        return self._open(
            record, functools.partial(self._take_back_message, self._num_sent, dst, SENDER)
        )

    def enter_recv(
        self, x: torch.Tensor, src: int, passed: torch.Tensor, *, blocking: bool
    ) -> OpenCall | None:
        """Say that we are about to receive into `passed`. Raises Disagreement."""
        if self._receives_from_anybody:
            return None
        self._num_received[src] += 1
        waits, number = blocking and not self._ends_by_itself, self._num_received[src]
        record = self._post_message("recv", src, number, x, waits, passed)
        return self._open(
            record, functools.partial(self._take_back_message, self._num_received, src, RECEIVER)
        )

    def by_place(
        self, meant: Meant, num_places: Collection[int], carry_out: Callable[[], Any]
    ) -> Any:
        """The result of `carry_out`, which gives the process group a collective that is no call.

        num_places: as how many collectives the process group may count it.
        Raises Disagreement, once it is handed over; at the end again, where nobody has seen that.
        """
        before = self._num_handed_over
        result = carry_out()
        # Not where others came in between, nor where nothing came: torch may only be tracing.
        after = self._num_handed_over
        if before is not None and after is not None and after - before in num_places:
            reader = own_frame(sys._getframe(1))
            file, line = reader.f_code.co_filename, reader.f_lineno or 0  # some code has no lines
            try:
                self._places.enter(before + 1, meant, file, line)
            except Disagreement as why:
                self._agreement.refuse_too_late(why)
                raise
        return result

    @property
    def _num_handed_over(self) -> int | None:
        """Collectives of the process group so far; None where nobody knows."""
        return None if self._handed is None else self._handed.num_collectives

    def _open(self, record: int, taken_back: Callable[[int], None] | None = None) -> OpenCall:
        return OpenCall(
            self._journal, record, taken_back=taken_back, ends_by_itself=self._ends_by_itself
        )

    def receive_from_anybody(self) -> None:
        """From now on nobody can say which message a receive meets: they are not compared."""
        self._receives_from_anybody = True


CallsIn = Callable[[Any], ComparedCalls | None]
"""The calls of a process group; None where we are in none of other ranks, or nobody compares."""
