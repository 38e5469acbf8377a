"""The backend's own collectives, behind one shape of call.

Each is written the same way: check, enter in the journal, hand over, deliver. These are the
yardstick; labkit.collectives writes the algorithms out with send and recv.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed import distributed_c10d as c10d

from labkit.comm import checks, wire_bytes
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
        result = self._filled(out, x)
        buffer = result.contiguous()
        wire = wire_bytes.ring_all_reduce(x.nbytes, self.size)
        return self._started(
            lambda: self._process_group.allreduce([_real(buffer)], options),
            lambda: self._delivered(buffer, result, op),
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
        result = self._empty(out, torch.Size([rows, *x.shape[1:]]), x)
        buffer, source = result.contiguous(), x.contiguous()
        wire = wire_bytes.ring_all_reduce(x.nbytes, self.size)
        return self._started(
            lambda: self._process_group._reduce_scatter_base(_real(buffer), _real(source), options),
            lambda: self._delivered(buffer, result, op, keep=source),
            self._post("reduce_scatter", x, wire, wait, reduce=op),
            wait,
        )

    def all_gather(self, x: Tensor, *, out: Tensor | None = None, wait: bool = True) -> Reply:
        """Join every rank's `x` along dim 0, in rank order; every rank gets all of it.

        x: (k, ...), the same shape on every rank; a single number counts as (1,).
        Returns (n*k, ...). The adjoint of reduce_scatter. Wire: n - 1 times x's bytes.
        """
        source = _with_rows(checks.tensor(x, self)).contiguous()
        options = c10d.AllgatherOptions()
        options.asyncOp = not wait
        shape = torch.Size([source.shape[0] * self.size, *source.shape[1:]])
        result = self._empty(out, shape, source)
        buffer = result.contiguous()
        wire = wire_bytes.ring_all_gather(x.nbytes, self.size)
        return self._started(
            lambda: self._process_group._allgather_base(buffer, source, options),
            lambda: self._delivered(buffer, result, keep=source),
            self._post("all_gather", x, wire, wait),
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
                result, source, recv_rows, send_rows, options
            ),
            lambda: self._delivered(result, result, keep=source),
            self._post("all_to_all", x, wire, wait),
            wait,
        )

    def broadcast(
        self, x: Tensor, root: int = 0, *, out: Tensor | None = None, wait: bool = True
    ) -> Reply:
        """Every rank gets the root's `x`; elsewhere `x` only says shape and dtype.

        Wire: a binomial tree. The root sends x ceil(log2(n)) times, half of the ranks nothing.
        """
        x = checks.tensor(x, self)
        checks.member(root, self, "root")
        options = c10d.BroadcastOptions()
        options.rootRank = root
        options.asyncOp = not wait
        result = self._filled(out, x)
        buffer = result.contiguous()
        wire = wire_bytes.tree_broadcast(x.nbytes, self.size, self.rank, root)
        return self._started(
            lambda: self._process_group.broadcast([buffer], options),
            lambda: self._delivered(buffer, result),
            self._post("broadcast", x, wire, wait, peer=root),
            wait,
        )

    def gather(self, x: Tensor, root: int = 0, *, wait: bool = True) -> Reply:
        """The root gets every rank's `x`, joined along dim 0 in rank order; the others get None.

        x: (k, ...), the same shape on every rank; a single number counts as (1,).
        Wire: every rank but the root sends x.
        """
        source = _with_rows(checks.tensor(x, self)).contiguous()
        checks.member(root, self, "root")
        options = c10d.GatherOptions()
        options.rootRank = root
        options.asyncOp = not wait
        parts = [torch.empty_like(source) for _ in range(self.size)] if self.rank == root else []
        wire = wire_bytes.to_root(x.nbytes, self.size, self.rank, root)
        return self._started(
            lambda: self._process_group.gather([parts] if parts else [], [source], options),
            lambda: torch.cat(parts) if parts else None,
            self._post("gather", x, wire, wait, peer=root),
            wait,
        )

    def scatter(self, x: Tensor | None, out: Tensor, root: int = 0, *, wait: bool = True) -> Reply:
        """The root's `x` is cut into n equal blocks of dim 0; rank r gets the r-th, in `out`.

        x: (n*k, ...) on the root, None elsewhere. out: (k, ...) on every rank.
        Wire: the root sends every block but its own.
        """
        out = checks.tensor(out, self)
        checks.member(root, self, "root")
        blocks = checks.blocks_to_scatter(x, out, root, self)
        options = c10d.ScatterOptions()
        options.rootRank = root
        options.asyncOp = not wait
        buffer = out.contiguous()
        wire = wire_bytes.from_root(out.nbytes, self.size, self.rank, root)
        return self._started(
            lambda: self._process_group.scatter([buffer], [blocks] if blocks else [], options),
            lambda: self._delivered(buffer, out),
            self._post("scatter", out, wire, wait, peer=root),
            wait,
        )

    def barrier(self) -> None:
        """Return once every member has called this."""
        nothing = torch.empty(0, dtype=torch.uint8)
        self._started(
            lambda: self._process_group.barrier(c10d.BarrierOptions()),
            lambda: None,
            self._post("barrier", nothing, WireBytes(0, 0), True),
            True,
        )

    def _filled(self, out: Tensor | None, x: Tensor) -> Tensor:
        """Where the result goes, holding x: the backend works in place."""
        if out is None:
            return x.clone(memory_format=torch.contiguous_format)
        result = checks.output(out, x.shape, x, self)
        return result if result.data_ptr() == x.data_ptr() else result.copy_(x)

    def _empty(self, out: Tensor | None, shape: torch.Size, x: Tensor) -> Tensor:
        return x.new_empty(shape) if out is None else checks.output(out, shape, x, self)

    def _delivered(
        self, buffer: Tensor, result: Tensor, op: str = "sum", keep: Tensor | None = None
    ) -> Tensor:
        """The result, once the work is complete. `keep`: what had to stay alive until now."""
        if op == "mean":
            buffer.div_(self.size)
        return buffer if buffer is result else result.copy_(buffer)


def _real(x: Tensor) -> Tensor:
    """A complex tensor as pairs of numbers: sums are the same, and gloo knows no complex ones."""
    return torch.view_as_real(x) if x.is_complex() else x


def _with_rows(x: Tensor) -> Tensor:
    return x[None] if x.dim() == 0 else x
