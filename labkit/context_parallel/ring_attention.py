"""Ring attention: queries stay, keys and values go round.

Each rank holds some tokens of a sequence. In n steps the keys and values of every rank pass by, and
one result per source is merged into the last; they travel on while blocks are computed. n = 3:

    step     rank 0    rank 1    rank 2      keys and values that the rank's queries look at
    0        kv 0      kv 1      kv 2        sent to the right meanwhile
    1        kv 2      kv 0      kv 1        sent to the right meanwhile
    2        kv 1      kv 2      kv 0

Backward sends them round once more. The gradients of kv s begin at rank s + 1, follow one step
behind and grow at each rank; the last message brings them home, to what rank s has added itself.

Layout: q_BHtK, k_BGtK, v_BGtK, out_BHtK: time is sharded, as the placement says; G divides H, and
H/G heads of queries share one of keys. Kept for backward: q, k, v, out, and lse_BHt.
Wire, per rank, with kv = the bytes of k and v together: forward (n-1)/n of the whole sequence's kv
in n - 1 messages; backward the same again, and (n-1)/n of the gradients' in n - 1 more. Gradients
are float32 where k and v have 16 bits. Memory: some tensors of T/n tokens, and one tile of scores.
Sums are taken in float32 for 16-bit inputs.

Paper: Liu, Zaharia and Abbeel, "Ring Attention with Blockwise Transformers for Near-Infinite
Context", arXiv:2310.01889.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from labkit.collectives.first_order import first_order_only
from labkit.comm import Group, Pending
from labkit.comm.group import chosen
from labkit.context_parallel.online_softmax import attend, attend_backward, merge
from labkit.context_parallel.score_blocks import blocks
from labkit.context_parallel.shards import checked_cut, wide
from labkit.context_parallel.token_placement import Cut, Placement, contiguous


def ring_attention(
    q_BHtK: Tensor,
    k_BGtK: Tensor,
    v_BGtK: Tensor,
    group: Group | None = None,
    causal: bool = True,
    placement: Placement = contiguous,
    *,
    num_tokens: int | None = None,
) -> Tensor:
    """out_BHtK: attention of this rank's queries over the whole sequence's keys and values.

    num_tokens: of the whole sequence; None: all ranks hold as many. Under a causal mask zigzag
    gives all ranks equal work. Backward communicates: call it on all ranks or on none, and let q, k
    or v need a gradient on all or on none. RuntimeError where it is to be differentiated twice.
    Errors, before anything is sent: see `checked_cut`; Disagreement where ranks differ in B, G, T,
    K or dtype.
    """
    group = chosen(group)
    cut = checked_cut(q_BHtK, k_BGtK, v_BGtK, group, causal, placement, num_tokens)
    return _RingAttention.apply(q_BHtK, k_BGtK, v_BGtK, _Ring(group, cut, causal))


class _PassedOn(NamedTuple):
    """A tensor on its way to the right, and the one that comes from the left in its place."""

    sent: Pending[None]
    arriving: Pending[Tensor]

    def wait(self) -> Tensor:
        """What has arrived."""
        self.sent.wait()
        return self.arriving.wait()


class _Ring(NamedTuple):
    """Who attends to what, and what travels round."""

    group: Group
    cut: Cut
    causal: bool

    def around(self, x_2BGtK: Tensor) -> Iterator[tuple[int, Tensor]]:
        """(source, tensor) of every rank, own first; the next travels while the caller computes."""
        for step in range(self.group.size):
            source = (self.group.rank - step) % self.group.size
            is_last = step == self.group.size - 1
            in_flight = None if is_last else self.pass_on(x_2BGtK, source, "keys and values")
            yield source, x_2BGtK
            if in_flight is not None:
                x_2BGtK = in_flight.wait()

    def pass_on(self, x_2BGtK: Tensor, source: int, what: str) -> _PassedOn:
        """Begin to send what belongs to `source`, and to receive what belongs to source - 1."""
        size, rank = self.group.size, self.group.rank
        shape = list(x_2BGtK.shape)
        shape[3] = self.cut.length((source - 1) % size)
        with self.group.label(self.cut.label(what, self.causal)), self.group.together():
            arriving = self.group.irecv(x_2BGtK.new_empty(shape), (rank - 1) % size)
            return _PassedOn(self.group.isend(x_2BGtK, (rank + 1) % size), arriving)

    def blocks(
        self, source: int, device: torch.device
    ) -> Iterator[tuple[slice, slice, Tensor | None]]:
        """This rank's queries, the source's keys, and the mask of each block to compute."""
        own, others = self.cut.segments(self.group.rank), self.cut.segments(source)
        for block in blocks(own, others, self.causal):
            yield block.queries.where, block.keys.where, block.mask_ts(device)


class _RingAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q_BHtK: Tensor, k_BGtK: Tensor, v_BGtK: Tensor, ring: _Ring) -> Tensor:
        q = _by_group(q_BHtK, k_BGtK)
        out, lse = q.new_zeros(q.shape), q.new_full(q.shape[:-1], -torch.inf)
        for source, kv_2BGtK in ring.around(torch.stack([k_BGtK, v_BGtK])):
            k, v = kv_2BGtK.to(q.dtype)[:, :, :, None]  # R heads of queries look at the same ones
            with ring.group.region(f"attention to rank {source}"):
                for rows, columns, mask_ts in ring.blocks(source, q.device):
                    of_keys = k[..., columns, :], v[..., columns, :]
                    part = attend(q[..., rows, :], *of_keys, mask_ts)
                    so_far = out[..., rows, :], lse[..., rows]
                    out[..., rows, :], lse[..., rows] = merge(so_far, part)
        out_BHtK = out.flatten(1, 2).to(q_BHtK.dtype)
        ctx.save_for_backward(q_BHtK, k_BGtK, v_BGtK, out_BHtK, lse)
        ctx.ring = ring
        return out_BHtK

    @staticmethod
    @first_order_only
    def backward(ctx: Any, grad_BHtK: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        q_BHtK, k_BGtK, v_BGtK, out_BHtK, lse = ctx.saved_tensors
        q, out, grad = (_by_group(x, k_BGtK) for x in (q_BHtK, out_BHtK, grad_BHtK))
        queries = _Queries(q, grad, lse, (grad * out).sum(-1), torch.zeros_like(q))
        ring: _Ring = ctx.ring
        in_flight: _PassedOn | None = None
        # The same messages whichever inputs need a gradient: so ranks stay in step.
        for source, kv_2BGtK in ring.around(torch.stack([k_BGtK, v_BGtK])):
            with ring.group.region(f"gradients of rank {source}"):
                grad_2BGtK = _backward_of_blocks(queries, kv_2BGtK.to(q.dtype), ring, source)
            if source == ring.group.rank:
                own_2BGtK = grad_2BGtK  # which waits here for what the others find
                continue
            if in_flight is not None:
                grad_2BGtK += in_flight.wait()
            in_flight = ring.pass_on(grad_2BGtK, source, "gradients of keys and values")
        if in_flight is not None:
            own_2BGtK += in_flight.wait()
        grad_k, grad_v = own_2BGtK.to(k_BGtK.dtype)
        return queries.grad_q.flatten(1, 2).to(q_BHtK.dtype), grad_k, grad_v, None


class _Queries(NamedTuple):
    """What backward knows of this rank's queries: (B, G, R, t, K), and (B, G, R, t)."""

    q: Tensor
    grad_out: Tensor
    lse: Tensor
    dot: Tensor
    grad_q: Tensor
    """Grows block by block."""


def _backward_of_blocks(queries: _Queries, kv_2BGtK: Tensor, ring: _Ring, source: int) -> Tensor:
    """Add to the gradient of this rank's queries; what they say of these keys and values."""
    grad_2BGtK = torch.zeros_like(kv_2BGtK)
    k, v = kv_2BGtK[:, :, :, None]
    q, grad_out, lse, dot, grad_q = queries
    for rows, columns, mask_ts in ring.blocks(source, q.device):
        of_keys = k[..., columns, :], v[..., columns, :]
        of_rows = grad_out[..., rows, :], lse[..., rows], dot[..., rows]
        by_q, *by_kv = attend_backward(q[..., rows, :], *of_keys, *of_rows, mask_ts)
        grad_q[..., rows, :] += by_q
        for grad, part in zip(grad_2BGtK, by_kv, strict=True):
            grad[..., columns, :] += part.sum(2)  # over the heads of queries that share it
    return grad_2BGtK


def _by_group(x_BHtK: Tensor, k_BGtK: Tensor) -> Tensor:
    """(B, G, R, t, K), wide: the R = H/G heads of queries that share one of keys side by side."""
    num_groups = k_BGtK.shape[1]
    num_sharing = x_BHtK.shape[1] // num_groups
    return x_BHtK.unflatten(1, (num_groups, num_sharing)).to(wide(x_BHtK.dtype))
