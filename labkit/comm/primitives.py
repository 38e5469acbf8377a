"""The primitives of a group: the backend's collectives, and messages.

Each has the same steps: check, enter in the journal, start on the backend, deliver (member.py).
labkit.collectives, which writes the algorithms with send and recv, is compared with these.
Operations return new tensors and leave their arguments alone; `out=x` works in place. With
`wait=False` (and for isend and irecv) the operation is returned as a Pending. No gradient flows
through them. traffic.py has the bytes that each sends.

    before, ranks 0..2               after
    all_reduce      a | b | c        s | s | s                  s = a + b + c
    reduce_scatter  a | b | c        s0 | s1 | s2               s cut along dim 0
    all_gather      a | b | c        abc | abc | abc            joined along dim 0
    all_to_all      a | b | c        a0b0c0 | a1b1c1 | a2b2c2   each cut along dim 0
    broadcast       a | . | .        a | a | a
    scatter         a | . | .        a0 | a1 | a2
    gather          a | b | c        abc | . | .
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.distributed import distributed_c10d as c10d

from labkit.comm import tensor_arguments, traffic
from labkit.comm.member import Member, Pending, current_label
from labkit.comm.mismatch import OperationMismatch
from labkit.comm.mismatch_detector import RECEIVER, SENDER, hashed
from labkit.comm.traffic import Traffic

Tensor = torch.Tensor
Reply = Any  # a Tensor; with wait=False, a Pending of it
_TAG = 0  # messages between two ranks arrive in the order in which they were sent


class Primitives(Member):
    """The operations of a Group. All members call a collective together.

    Messages go from one rank to another, in order. The buffer must have the message's shape and
    dtype, or the later of the two calls raises OperationMismatch. (gloo itself ends the receiving
    process if a message is too long, and fills only part of the buffer, silently, if it is too
    short.) A `label` says what a message is for, where others have the same shape.

    Rendezvous: a send completes only when the other side receives. Two ranks that both send first
    and receive afterwards wait for each other for ever; post both with isend and irecv, `together`.

    In a run with a topology messages take the time of its links: see throttle.py.
    """

    def all_reduce(
        self, x: Tensor, op: str = "sum", *, out: Tensor | None = None, wait: bool = True
    ) -> Reply:
        """Reduce `x` over the ranks, by "sum", "mean", "max" or "min"; every rank gets all of it.

        x: any shape, the same on every rank. Wire: 2(n-1)/n of x's bytes.
        """
        x = tensor_arguments.tensor(x, self)
        options = c10d.AllreduceOptions()
        options.reduceOp = tensor_arguments.reduce_op(op, x)
        options.asyncOp = not wait
        result = tensor_arguments.filled(out, x, self)
        buffer = result.contiguous()
        moved = traffic.ring_all_reduce(x.nbytes, self.size)
        return self._started(
            lambda: self._process_group.allreduce([tensor_arguments.real(buffer)], options),
            lambda: tensor_arguments.reduced(buffer, result, op, self),
            self._post("all_reduce", x, moved, wait, reduce=op),
            wait,
        )

    def reduce_scatter(
        self, x: Tensor, op: str = "sum", *, out: Tensor | None = None, wait: bool = True
    ) -> Reply:
        """Reduce `x` over the ranks; rank r gets the r-th of n equal blocks of dim 0.

        x: (n*k, ...), returns (k, ...). The adjoint of all_gather. ValueError where n does not
        divide dim 0. Wire: gloo performs a whole all_reduce, 2(n-1)/n of x's bytes.
        """
        x = tensor_arguments.tensor(x, self)
        options = c10d.ReduceScatterOptions()
        options.reduceOp = tensor_arguments.reduce_op(op, x)
        options.asyncOp = not wait
        rows = tensor_arguments.rows_per_rank(x, self, "reduce_scatter")
        result = tensor_arguments.empty(out, torch.Size([rows, *x.shape[1:]]), x, self)
        buffer, source = result.contiguous(), x.contiguous()
        moved = traffic.ring_all_reduce(x.nbytes, self.size)
        return self._started(
            lambda: self._process_group._reduce_scatter_base(
                tensor_arguments.real(buffer), tensor_arguments.real(source), options
            ),
            lambda: tensor_arguments.reduced(buffer, result, op, self, keep=source),
            self._post("reduce_scatter", x, moved, wait, reduce=op),
            wait,
        )

    def all_gather(self, x: Tensor, *, out: Tensor | None = None, wait: bool = True) -> Reply:
        """Join every rank's `x` along dim 0, in rank order; every rank gets all of it.

        x: (k, ...), the same shape on every rank; a single number counts as (1,).
        Returns (n*k, ...). The adjoint of reduce_scatter. Wire: n - 1 times x's bytes.
        """
        source = tensor_arguments.with_rows(tensor_arguments.tensor(x, self)).contiguous()
        options = c10d.AllgatherOptions()
        options.asyncOp = not wait
        shape = torch.Size([source.shape[0] * self.size, *source.shape[1:]])
        result = tensor_arguments.empty(out, shape, source, self)
        buffer = result.contiguous()
        moved = traffic.ring_all_gather(x.nbytes, self.size)
        return self._started(
            lambda: self._process_group._allgather_base(
                tensor_arguments.movable(buffer), tensor_arguments.movable(source), options
            ),
            lambda: tensor_arguments.delivered(buffer, result, keep=source),
            self._post("all_gather", source, moved, wait),
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
        """Send the s-th block of rows to rank s, and receive one from each rank.

        x: (rows, ...). `send_splits[s]`: rows for rank s; `recv_splits[s]`: rows from rank s;
        without them, n equal blocks. Returns (sum of recv_splits, ...), in rank order.
        Wire: all of x but the block that stays.
        """
        x = tensor_arguments.tensor(x, self)
        send_rows, recv_rows = tensor_arguments.both_splits(send_splits, recv_splits, x, self)
        options = c10d.AllToAllOptions()
        options.asyncOp = not wait
        source = x.contiguous()
        result = x.new_empty(sum(recv_rows), *x.shape[1:])
        row_bytes = x.element_size() * x.shape[1:].numel()
        moved = Traffic(
            (sum(send_rows) - send_rows[self.rank]) * row_bytes,
            (sum(recv_rows) - recv_rows[self.rank]) * row_bytes,
        )
        return self._started(
            lambda: self._process_group.alltoall_base(
                tensor_arguments.movable(result),
                tensor_arguments.movable(source),
                recv_rows,
                send_rows,
                options,
            ),
            lambda: tensor_arguments.delivered(result, result, keep=source),
            self._post("all_to_all", x, moved, wait, splits=(send_rows, recv_rows)),
            wait,
        )

    def barrier(self) -> None:
        """Return once every member has called this."""
        self._meet("barrier")

    def _meet(self, kind: str) -> None:
        """Perform a barrier. kind: its name in the journal."""
        nothing = torch.empty(0, dtype=torch.uint8)
        options = c10d.BarrierOptions()
        if self.device.type == "cuda":
            options.device = self.device  # or nccl guesses
        self._started(
            lambda: self._process_group.barrier(options),
            lambda: None,
            self._post(kind, nothing, Traffic(0, 0), True),
            True,
        )

    # With a root: one rank sends to all others, or receives from all of them.
    def broadcast(
        self, x: Tensor, root: int = 0, *, out: Tensor | None = None, wait: bool = True
    ) -> Reply:
        """Send the root's `x` to every rank; elsewhere only the shape and dtype of `x` count.

        Wire: a binomial tree. The root sends x ceil(log2(n)) times, the leaves nothing.
        """
        x = tensor_arguments.tensor(x, self)
        tensor_arguments.member(root, self, "root")
        options = c10d.BroadcastOptions()
        options.rootRank = root
        options.asyncOp = not wait
        result = tensor_arguments.filled(out, x, self)
        buffer = result.contiguous()
        moved = traffic.tree_broadcast(x.nbytes, self.size, self.rank, root)
        return self._started(
            lambda: self._process_group.broadcast([tensor_arguments.movable(buffer)], options),
            lambda: tensor_arguments.delivered(buffer, result),
            self._post("broadcast", x, moved, wait, peer=root),
            wait,
        )

    def gather(self, x: Tensor, root: int = 0, *, wait: bool = True) -> Reply:
        """Join every rank's `x` along dim 0, in rank order, on the root; the others get None.

        x: (k, ...), the same shape on every rank; a single number counts as (1,).
        Wire: every rank but the root sends x.
        """
        source = tensor_arguments.with_rows(tensor_arguments.tensor(x, self)).contiguous()
        tensor_arguments.member(root, self, "root")
        options = c10d.GatherOptions()
        options.rootRank = root
        options.asyncOp = not wait
        parts = [torch.empty_like(source) for _ in range(self.size)] if self.rank == root else []
        moved = traffic.to_root(x.nbytes, self.size, self.rank, root)
        return self._started(
            lambda: self._process_group.gather(
                [[tensor_arguments.movable(part) for part in parts]] if parts else [],
                [tensor_arguments.movable(source)],
                options,
            ),
            lambda: torch.cat(parts) if parts else None,
            self._post("gather", source, moved, wait, peer=root),
            wait,
        )

    def scatter(self, x: Tensor | None, out: Tensor, root: int = 0, *, wait: bool = True) -> Reply:
        """Cut the root's `x` into n equal blocks of dim 0; rank r gets the r-th, in `out`.

        x: (n*k, ...) on the root, None elsewhere. out: (k, ...) on every rank.
        Wire: the root sends every block but its own.
        """
        out = tensor_arguments.target(out, self)
        tensor_arguments.member(root, self, "root")
        blocks = tensor_arguments.blocks_to_scatter(x, out, root, self)
        options = c10d.ScatterOptions()
        options.rootRank = root
        options.asyncOp = not wait
        buffer = out.contiguous()
        moved = traffic.from_root(out.nbytes, self.size, self.rank, root)
        return self._started(
            lambda: self._process_group.scatter(
                [tensor_arguments.movable(buffer)],
                [[tensor_arguments.movable(block) for block in blocks]] if blocks else [],
                options,
            ),
            lambda: tensor_arguments.delivered(buffer, out),
            self._post("scatter", out, moved, wait, peer=root),
            wait,
        )

    # Messages.
    def send(self, x: Tensor, dst: int) -> None:
        """Send `x` to rank `dst`; returns when `dst` has received it. Wire: x's bytes."""
        self._send(x, dst, blocking=True)

    def isend(self, x: Tensor, dst: int) -> Pending[None]:
        """Start to send `x` to rank `dst`. `x` must not change before `wait()` returns."""
        return self._send(x, dst, blocking=False)

    def recv(self, buffer: Tensor, src: int) -> Tensor:
        """Receive from rank `src` into `buffer`, which has the message's shape; returns it."""
        return self._recv(buffer, src, blocking=True)

    def irecv(self, buffer: Tensor, src: int) -> Pending[Tensor]:
        """Start to receive from rank `src` into `buffer`; `wait()` returns the filled buffer."""
        return self._recv(buffer, src, blocking=False)

    @contextmanager
    def together(self) -> Iterator[None]:
        """Start all isend and irecv of the block together, so that none waits for another.

        nccl carries out a rank's messages one after the other, in the order of their posting. Two
        ranks that send to each other first would wait for ever. So on nccl the messages of a block
        start together at its end (torch: batch_isend_irecv): wait for them after the block.
        gloo's messages pass each other anyway, and start at once.
        """
        if self.backend != "nccl":
            yield
            return
        before = set(self._in_flight)
        self._process_group._start_coalescing(self.device)
        try:
            yield
        finally:
            work = self._process_group._end_coalescing(self.device)
            for pending in self._in_flight - before:
                pending.belongs_to(work)

    def _send(self, x: Tensor, dst: int, *, blocking: bool) -> Any:
        x = tensor_arguments.tensor(x, self)
        tensor_arguments.peer(dst, self, "dst")
        self._num_sent[dst] += 1
        record = self._post_message("send", dst, self._num_sent[dst], x, blocking)
        source = x.contiguous()

        def finish(kept: Tensor = source) -> None:
            """Keep the tensor alive until it has been sent."""

        return self._started(
            lambda: self._process_group.send([source], dst, _TAG),
            finish,
            record,
            blocking,
            is_message=True,
        )

    def _recv(self, buffer: Tensor, src: int, *, blocking: bool) -> Any:
        x = tensor_arguments.target(buffer, self)
        tensor_arguments.peer(src, self, "src")
        self._num_received[src] += 1
        record = self._post_message("recv", src, self._num_received[src], x, blocking)
        target = x.contiguous()

        def finish() -> Tensor:
            if target is not x:
                x.copy_(target)
            return buffer

        return self._started(
            lambda: self._process_group.recv([target], src, _TAG),
            finish,
            record,
            blocking,
            is_message=True,
        )

    def _post_message(self, kind: str, peer: int, number: int, x: Tensor, blocking: bool) -> int:
        """Enter one end of a message in the journal, and compare it with the other end."""
        self._detector.require_in_step()
        label = current_label()
        role = SENDER if kind == "send" else RECEIVER
        self._detector.pairs.declare_message(peer, role, number, hashed(label, x.dtype, x.shape))
        record = self._journal.post(
            kind,
            self._journal_group,
            number,
            x,
            sent_bytes=x.nbytes if role == SENDER else 0,
            received_bytes=x.nbytes if role == RECEIVER else 0,
            blocking=blocking,
            peer=self.ranks[peer],
            label=label,
        )
        try:
            self._detector.pairs.compare_messages(peer, role)
        except OperationMismatch as why:
            self._refuse(record, why)
            raise
        return record
