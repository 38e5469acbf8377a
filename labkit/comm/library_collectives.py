"""The backend's own collectives, behind one shape of call.

Each is written the same way: check, enter in the journal, hand over, deliver. These are the
yardstick; labkit.collectives writes the algorithms out with send and recv.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed import distributed_c10d as c10d

from labkit.comm import buffers, checks, wire_bytes
from labkit.comm.member import Member
from labkit.comm.wire_bytes import WireBytes

Tensor = torch.Tensor
Reply = Any  # a Tensor; with wait=False, a Pending of it


class LibraryCollectives(Member):
    """Operations that all members call together; what moves where is drawn in group.py."""

    def all_reduce(
        self, x: Tensor, op: str = "sum", *, out: Tensor | None = None, wait: bool = True
    ) -> Reply:
        """Reduce `x` over the ranks, by "sum", "mean", "max" or "min"; every rank gets all of it.

        x: any shape, the same on every rank. Wire: 2(n-1)/n of x's bytes.
        """
        x = checks.tensor(x, self)
        options = c10d.AllreduceOptions()
        options.reduceOp = checks.reduce_op(op, x)
        options.asyncOp = not wait
        result = buffers.filled(out, x, self)
        buffer = result.contiguous()
        wire = wire_bytes.ring_all_reduce(x.nbytes, self.size)
        return self._started(
            lambda: self._process_group.allreduce([buffers.real(buffer)], options),
            lambda: buffers.reduced(buffer, result, op, self),
            self._post("all_reduce", x, wire, wait, reduce=op),
            wait,
        )

    def reduce_scatter(
        self, x: Tensor, op: str = "sum", *, out: Tensor | None = None, wait: bool = True
    ) -> Reply:
        """Reduce `x` over the ranks; rank r gets the r-th of n equal blocks of dim 0.

        x: (n*k, ...), returns (k, ...). The adjoint of all_gather. ValueError where n does not
        divide dim 0. Wire: gloo performs a whole all_reduce, 2(n-1)/n of x's bytes.
        """
        x = checks.tensor(x, self)
        options = c10d.ReduceScatterOptions()
        options.reduceOp = checks.reduce_op(op, x)
        options.asyncOp = not wait
        rows = checks.rows_per_rank(x, self, "reduce_scatter")
        result = buffers.empty(out, torch.Size([rows, *x.shape[1:]]), x, self)
        buffer, source = result.contiguous(), x.contiguous()
        wire = wire_bytes.ring_all_reduce(x.nbytes, self.size)
        return self._started(
            lambda: self._process_group._reduce_scatter_base(
                buffers.real(buffer), buffers.real(source), options
            ),
            lambda: buffers.reduced(buffer, result, op, self, keep=source),
            self._post("reduce_scatter", x, wire, wait, reduce=op),
            wait,
        )

    def all_gather(self, x: Tensor, *, out: Tensor | None = None, wait: bool = True) -> Reply:
        """Join every rank's `x` along dim 0, in rank order; every rank gets all of it.

        x: (k, ...), the same shape on every rank; a single number counts as (1,).
        Returns (n*k, ...). The adjoint of reduce_scatter. Wire: n - 1 times x's bytes.
        """
        source = buffers.with_rows(checks.tensor(x, self)).contiguous()
        options = c10d.AllgatherOptions()
        options.asyncOp = not wait
        shape = torch.Size([source.shape[0] * self.size, *source.shape[1:]])
        result = buffers.empty(out, shape, source, self)
        buffer = result.contiguous()
        wire = wire_bytes.ring_all_gather(x.nbytes, self.size)
        return self._started(
            lambda: self._process_group._allgather_base(
                buffers.movable(buffer), buffers.movable(source), options
            ),
            lambda: buffers.delivered(buffer, result, keep=source),
            self._post("all_gather", source, wire, wait),
            wait,
        )

    def all_to_all(
        self,
        x: Tensor,
        send_splits: Sequence[int] | None = None,
        recv_splits: Sequence[int] | None = None,
        *,
        wait: bool = True,
    ) -> Reply:
        """Rank r sends the s-th block of its rows to rank s, and receives one from each.

        x: (rows, ...). `send_splits[s]`: rows for rank s; `recv_splits[s]`: rows from rank s;
        without them, n equal blocks. Returns (sum of recv_splits, ...), in rank order.
        Wire: all of x but the block that stays.
        """
        x = checks.tensor(x, self)
        send_rows = checks.splits(send_splits, x, self, "send_splits")
        recv_rows = checks.splits(recv_splits, x, self, "recv_splits")
        if send_rows[self.rank] != recv_rows[self.rank]:
            raise ValueError(
                f"rank {self.rank} keeps for itself {send_rows[self.rank]} rows by send_splits "
                f"and {recv_rows[self.rank]} by recv_splits; make them equal"
            )
        options = c10d.AllToAllOptions()
        options.asyncOp = not wait
        source = x.contiguous()
        result = x.new_empty(sum(recv_rows), *x.shape[1:])
        row_bytes = x.element_size() * x.shape[1:].numel()
        wire = WireBytes(
            (sum(send_rows) - send_rows[self.rank]) * row_bytes,
            (sum(recv_rows) - recv_rows[self.rank]) * row_bytes,
        )
        return self._started(
            lambda: self._process_group.alltoall_base(
                buffers.movable(result), buffers.movable(source), recv_rows, send_rows, options
            ),
            lambda: buffers.delivered(result, result, keep=source),
            self._post("all_to_all", x, wire, wait, splits=(send_rows, recv_rows)),
            wait,
        )

    def barrier(self) -> None:
        """Return once every member has called this."""
        self._meet("barrier")

    def _meet(self, kind: str) -> None:
        """A barrier; `kind`: what it is called in the journal."""
        nothing = torch.empty(0, dtype=torch.uint8)
        options = c10d.BarrierOptions()
        if self.device.type == "cuda":
            options.device = self.device  # or nccl guesses
        self._started(
            lambda: self._process_group.barrier(options),
            lambda: None,
            self._post(kind, nothing, WireBytes(0, 0), True),
            True,
        )
