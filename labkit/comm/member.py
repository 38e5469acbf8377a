"""What every operation of a group needs: who is in it, and an entry in the journal first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from labkit.comm import staging
from labkit.comm.agreement.agreement import NOBODY, Agreement, Neighbours, hashed
from labkit.comm.agreement.difference import equal_shape
from labkit.comm.agreement.disagreement import WITHOUT_DATA, Disagreement
from labkit.comm.journal import Journal
from labkit.comm.named_spans import NamedSpans, current_label
from labkit.comm.operation import NETWORK
from labkit.comm.pending import Pending, mark
from labkit.comm.record import NO_PEER
from labkit.comm.throttling.throttled_messages import Throttle
from labkit.comm.wire_bytes import WireBytes


class Member(NamedSpans):
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
        throttle: Throttle | None = None,
    ) -> None:
        """Made by `labkit.run`, `Group.default` and `Group.split`, not by hand."""
        # Its methods rather than dist.all_reduce and the like: those add about 10 us of checks
        # and logging per call, which is a tenth of a small all_reduce.
        self._process_group: Any = staging.through_host(process_group, device)
        self._of_torch: dist.ProcessGroup | None = process_group  # what all operations end in
        self.rank = process_group.rank()
        self._throttle = throttle
        if throttle is not None:
            self._process_group = throttle.throttled(self._process_group, name, ranks, self.rank)
        self.size = process_group.size()
        self.ranks = ranks
        self.device = device
        self.name = name
        self._timeout = timeout
        self._journal = journal
        self._journal_group = journal.group(name, ranks)
        self._neighbours = neighbours
        self._agreement: Any = Agreement(neighbours, name, ranks, self.rank)
        self._num_collectives = 0
        self._num_splits = 0
        # Held until waited for: gloo cancels an operation whose handle is dropped.
        self._in_flight: set[Pending[Any]] = set()
        self._num_sent = [0] * self.size
        self._num_received = [0] * self.size

    def __repr__(self) -> str:
        """Which rank of which group this is."""
        return f"Group({self.name}, rank {self.rank} of {self.size}, ranks={list(self.ranks)})"

    @property
    def backend(self) -> str:
        """What carries the messages: "gloo" or "nccl". Staged and throttled ones are gloo's."""
        is_own = isinstance(self._process_group, dist.ProcessGroup)
        return dist.get_backend(self._process_group) if is_own else "gloo"

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
        medium: str = NETWORK,
    ) -> int:
        """Enter a collective in the journal, if the others mean the same; `peer`: in the group.

        Raises Disagreement.
        """
        self._agreement.require_in_step()
        self._num_collectives += 1
        sequence = self._num_collectives
        root = NO_PEER if peer is None else self.ranks[peer]
        call, label = self._journal.caller(), current_label()
        meant = hashed(kind, medium, root, reduce, label, x.dtype, equal_shape(kind, x.shape))
        # Said, written into the journal, and only then compared: whoever comes later finds both,
        # and nobody looks before others can see what it has said (agreement.py).
        if label is None and kind not in WITHOUT_DATA:
            self._agreement.declare(sequence, meant, hashed(call.text))
        else:
            self._agreement.declare(sequence, meant)
        if splits is not None:
            self._agreement.pairs.declare_rows(sequence, *splits)
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
            label=label,
            medium=medium,
        )
        self._compare(record, sequence, has_rows=splits is not None)
        return record

    def _compare(self, record: int, sequence: int, *, has_rows: bool) -> None:
        """Look at what the others mean; raise Disagreement before anything is carried out."""
        try:
            self._agreement.compare(sequence)
            if has_rows:
                self._agreement.pairs.compare_rows(sequence)
        except Disagreement as why:
            self._refuse(record, why)
            raise

    def _refuse(self, record: int, why: Disagreement) -> None:
        """This operation is not carried out, and nor is any later one of this group."""
        self._journal.failed(record)
        self._agreement.refuse(why)

    @contextmanager
    def _under_way(self, record: int) -> Iterator[None]:
        """An operation that this rank carries out itself, inside; where that raises, it failed."""
        try:
            yield
        except BaseException:
            self._journal.failed(record)
            raise
        self._journal.done(record)

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
