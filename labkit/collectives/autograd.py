"""Differentiable collectives. The backward of each is another one, its adjoint.

    forward           backward, on the gradient of each rank's result
    all_reduce        all_reduce
    all_gather        reduce_scatter
    reduce_scatter    all_gather
    all_to_all        all_to_all, with the two splits exchanged
    broadcast         reduce, to the root; nothing elsewhere
    reduce            broadcast

A collective is a linear map A from the inputs of all ranks to their outputs. Its backward is the
transposed map A': <A x, y> = <x, A' y>, both products summed over the ranks.

The convention: gradients are those of the sum of all ranks' losses. Each rank calls backward() on
its own loss, and its x.grad is the derivative of that sum. With y = sum of x_s on every rank, each
x_s is in every y_r, so its gradient is the sum over the gradients of all y_r: the backward of
all_reduce is all_reduce.

The trap: if every rank computes the same loss L from that y, the sum of the losses is n L, and
every gradient is n times too large. All ranks agree, and SGD's steps are n times too long. Adam
hides the error, since it divides a gradient by its size. Divide the loss by n, or let each rank's
loss cover its own share of the examples, so that the losses add up to the intended one. Megatron-LM
uses another convention: there is one loss, and every rank has a copy of it. Then the backward of
all_reduce is the identity. This is right only if every rank computes the same from its output on.

Backward communicates, so all ranks call it or none, in the same order. x needs a gradient on every
rank or on none, and a rank whose loss does not use a result y adds `0 * y.sum()`. If some ranks
skip a backward, the others wait for ever.
Papers: Megatron-LM, arXiv:1909.08053, section 3 (f and g). Hewett and Grady, "A linear algebraic
approach to model parallelism in deep learning", arXiv:2006.03108.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from labkit.comm import Group, tensor_arguments
from labkit.comm.group import chosen


def all_reduce(x: Tensor, group: Group | None = None) -> Tensor:
    """Return the sum of `x` over the ranks, on every rank. Adjoint: all_reduce.

    x: any shape, the same on every rank. Where every rank computes the same loss from the result,
    gradients come out n times too large: see the trap above.
    Wire: 2(n-1)/n of x's bytes forward, and as much backward.
    """
    return _AllReduce.apply(x, chosen(group))


def all_gather(x: Tensor, group: Group | None = None) -> Tensor:
    """Return every rank's `x`, joined along dim 0 in rank order. Adjoint: reduce_scatter.

    x: (k, ...), the same shape on every rank; a single number counts as (1,). Returns (n*k, ...).
    Wire: n - 1 times x's bytes forward; backward a reduce_scatter of n*k rows.
    """
    group = chosen(group)
    tensor_arguments.tensor(x, group)
    return _AllGather.apply(x[None] if x.dim() == 0 else x, group)


def reduce_scatter(x: Tensor, group: Group | None = None) -> Tensor:
    """Return this rank's block of rows of the sum of `x` over the ranks. Adjoint: all_gather.

    x: (n*k, ...), returns (k, ...). ValueError if n does not divide dim 0.
    Wire: that of Group.reduce_scatter forward; n - 1 times the result's bytes backward.
    """
    return _ReduceScatter.apply(x, chosen(group))


def all_to_all(
    x: Tensor,
    group: Group | None = None,
    *,
    send_splits: Sequence[int] | None = None,
    recv_splits: Sequence[int] | None = None,
) -> Tensor:
    """Send the s-th block of this rank's rows to rank s. Adjoint: all_to_all, splits exchanged.

    x: (rows, ...), returns (sum of recv_splits, ...). Without splits the n blocks are equal. Each
    row of the gradient goes back to where the row came from.
    Wire: forward all of x but this rank's own block, backward the same of the result.
    """
    return _AllToAll.apply(x, chosen(group), send_splits, recv_splits)


def broadcast(x: Tensor, group: Group | None = None, *, root: int = 0) -> Tensor:
    """Return the root's `x`, on every rank. Adjoint: reduce.

    x: the same shape on every rank. On the other ranks its values are not used, and its gradient is
    zero. Wire: x's bytes along a binomial tree forward; a reduce backward.
    """
    return _Broadcast.apply(x, chosen(group), root)


def reduce(x: Tensor, group: Group | None = None, *, root: int = 0) -> Tensor:
    """Return the sum of `x` over the ranks on the root, and zeros elsewhere. Adjoint: broadcast.

    x: any shape, the same on every rank. Wire: that of an all_reduce, since a Group has no reduce;
    the other ranks drop the result.
    """
    group = chosen(group)
    tensor_arguments.member(root, group, "root")
    return _Reduce.apply(x, group, root)


# Each backward calls the public function, so that a gradient can be differentiated once more.


class _AllReduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return group.all_reduce(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return all_reduce(grad, ctx.group), None


class _AllGather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return group.all_gather(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return reduce_scatter(grad, ctx.group), None


class _ReduceScatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return group.reduce_scatter(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return all_gather(grad, ctx.group), None


class _AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        group: Group,
        send_splits: Sequence[int] | None,
        recv_splits: Sequence[int] | None,
    ) -> Tensor:
        result = group.all_to_all(x, send_splits, recv_splits)
        # Copies: the caller may reuse the same lists before backward.
        ctx.send_splits = None if send_splits is None else tuple(send_splits)
        ctx.recv_splits = None if recv_splits is None else tuple(recv_splits)
        ctx.group = group
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        back = all_to_all(grad, ctx.group, send_splits=ctx.recv_splits, recv_splits=ctx.send_splits)
        return back, None, None, None


class _Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group, root: int) -> Tensor:
        ctx.group, ctx.root = group, root
        return group.broadcast(x, root)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return reduce(grad, ctx.group, root=ctx.root), None, None


class _Reduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group, root: int) -> Tensor:
        ctx.group, ctx.root = group, root
        total = group.all_reduce(x)
        return total if group.rank == root else torch.zeros_like(total)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return broadcast(grad, ctx.group, root=ctx.root), None, None
