"""The calls of one group, or of one of torch's process groups: entered, and open until they end."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

from labkit.comm import own_timeout
from labkit.comm.callers import LIBRARIES, frames_outside
from labkit.comm.calls.by_place import Meant, Places
from labkit.comm.calls.open_call import OpenCall
from labkit.comm.point_to_point import PointToPoint
from labkit.comm.wire_bytes import WireBytes

_NOTHING_SENT = WireBytes(0, 0)


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
        return self._open(record)

    def enter_new_group(self, members: Sequence[int], *, ends_by_itself: bool) -> OpenCall:
        """Say that we are about to make a group of these. Raises Disagreement."""
        nothing = torch.empty(0, dtype=torch.uint8)
        record = self._post(
            "new_group", nothing, _NOTHING_SENT, not ends_by_itself, members=tuple(members)
        )
        return self._open(record)

    def enter_send(
        self, x: torch.Tensor, dst: int, passed: torch.Tensor, *, blocking: bool
    ) -> OpenCall:
        """Say that we are about to send `passed`, for which `x` stands. Raises Disagreement."""
        self._num_sent[dst] += 1
        waits = blocking and not self._ends_by_itself
        return self._open(self._post_message("send", dst, self._num_sent[dst], x, waits, passed))

    def enter_recv(
        self, x: torch.Tensor, src: int, passed: torch.Tensor, *, blocking: bool
    ) -> OpenCall | None:
        """Say that we are about to receive into `passed`. Raises Disagreement."""
        if self._receives_from_anybody:
            return None
        self._num_received[src] += 1
        waits = blocking and not self._ends_by_itself
        return self._open(
            self._post_message("recv", src, self._num_received[src], x, waits, passed)
        )

    def hand_over(self, meant: Meant, carry_out: Callable[[], Any]) -> Any:
        """The result of `carry_out`, which gives the process group a collective that is no call.

        Raises Disagreement, once it is handed over.
        """
        handed = self._handed
        before = None if handed is None else handed.num_collectives
        result = carry_out()
        # Not where others came in between, nor where nothing came: torch may only be tracing.
        if handed is not None and before is not None and handed.num_collectives == before + 1:
            frames = frames_outside(sys._getframe(1))
            own = (each for each in frames if not each.f_code.co_filename.startswith(LIBRARIES))
            reader = next(own, frames[0])
            self._places.enter(before + 1, meant, reader.f_code.co_filename, reader.f_lineno)
        return result

    def _open(self, record: int) -> OpenCall:
        return OpenCall(self._journal, record, ends_by_itself=self._ends_by_itself)

    def receive_from_anybody(self) -> None:
        """From now on nobody can say which message a receive meets: they are not compared."""
        self._receives_from_anybody = True
