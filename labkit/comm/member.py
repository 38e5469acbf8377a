"""What every operation of a group needs: who is in it, and an entry in the journal first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from labkit.comm import staging
from labkit.comm.agreement import Agreement, hashed
from labkit.comm.difference import equal_shape
from labkit.comm.disagreement import WITHOUT_DATA, Disagreement
from labkit.comm.journal import Journal
from labkit.comm.neighbours import NOBODY, Neighbours
from labkit.comm.pending import Pending, mark
from labkit.comm.record import NO_PEER
from labkit.comm.wire_bytes import WireBytes


class Member:
    """One rank's place in a group, and the journal that its operations go to."""

    def __init__(
        self,
        process_group: dist.ProcessGroup,
        ranks: tuple[int, ...],
        device: torch.device,
        journal: Journal,
        name: str = "world",
        timeout: timedelta | None = None,
        neighbours: Neighbours = NOBODY,
    ) -> None:
        """Made by `labkit.run`, `Group.default` and `Group.split`, not by hand."""
        # Its methods rather than dist.all_reduce and the like: those add about 10 us of checks
        # and logging per call, which is a tenth of a small all_reduce.
        self._process_group = staging.through_host(process_group, device)
        self.rank = process_group.rank()
        self.size = process_group.size()
        self.ranks = ranks
        self.device = device
        self.name = name
        self._timeout = timeout
        self._journal = journal
        self._journal_group = journal.group(name, ranks)
        self._neighbours = neighbours
        self._agreement = Agreement(neighbours, name, ranks, self.rank)
        self._num_collectives = 0
        self._num_splits = 0
        # Held until waited for: gloo cancels an operation whose handle is dropped.
        self._in_flight: set[Pending[Any]] = set()
        self._num_sent = [0] * self.size
        self._num_received = [0] * self.size

    def __repr__(self) -> str:
        """Which rank of which group this is."""
        return f"Group({self.name}, rank {self.rank} of {self.size}, ranks={list(self.ranks)})"

    @contextmanager
    def region(self, name: str) -> Iterator[None]:
        """Name a span of this rank's work, for the timeline: `with world.region("forward"):`."""
        if not isinstance(name, str):
            raise TypeError(f"region names a span of work: {name!r} is no text")
        record = self._journal.begin_region(name)
        try:
            yield
        finally:
            self._journal.done(record)

    def _post(
        self,
        kind: str,
        x: torch.Tensor,
        wire: WireBytes,
        blocking: bool,
        *,
        reduce: str | None = None,
        peer: int | None = None,
        splits: Sequence[Sequence[int]] | None = None,
    ) -> int:
        """Enter a collective in the journal, if the others mean the same; `peer`: in the group.

        Raises Disagreement.
        """
        self._agreement.require_in_step()
        self._num_collectives += 1
        sequence = self._num_collectives
        root = NO_PEER if peer is None else self.ranks[peer]
        call = self._journal.caller()
        meant = hashed(kind, root, reduce, x.dtype, equal_shape(kind, x.shape))
        # Said, written into the journal, and only then compared: whoever comes later finds both.
        order = (hashed(call.text), hashed(call.lines)) if kind not in WITHOUT_DATA else ()
        self._agreement.declare(sequence, meant, *order)
        if splits is not None:
            self._agreement.declare_rows(sequence, *splits)
        record = self._journal.post(
            kind,
            self._journal_group,
            sequence,
            x,
            sent_bytes=wire.sent,
            received_bytes=wire.received,
            blocking=blocking,
            reduce=reduce,
            peer=root,
            splits=splits,
            call=call,
        )
        self._compare(record, sequence, has_rows=splits is not None)
        return record

    def _compare(self, record: int, sequence: int, *, has_rows: bool) -> None:
        """Look at what the others mean; raise Disagreement before anything is carried out."""
        try:
            self._agreement.compare(sequence)
            if has_rows:
                self._agreement.compare_rows(sequence)
        except Disagreement as why:
            self._refuse(record, why)
            raise

    def _refuse(self, record: int, why: Disagreement) -> None:
        """This operation is not carried out, and nor is any later one of this group."""
        self._journal.failed(record)
        self._agreement.refuse(why)

    def _started(
        self,
        start: Callable[[], Any],
        finish: Callable[[], Any],
        record: int,
        blocking: bool,
    ) -> Any:
        """Hand the operation to the backend; its result, or a Pending when not `blocking`."""
        try:
            work = start()
        except BaseException as error:
            self._journal.failed(record)
            mark(error)
            raise
        pending = Pending(work, finish, self._journal, record, self._in_flight)
        return pending.complete() if blocking else pending
