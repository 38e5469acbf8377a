"""Embedding and loss with a vocabulary that is sharded over the ranks.

    tokens_BT -> x_BTD      each rank looks up the tokens of its shard, and has zeros for others;
                            one rank has each token's row, so the sum over ranks is the embedding
    x_BTD -> logits_BTv     a column layer; w_vD is the embedding's shard if the head is tied
    logits_Nv -> loss       below: no rank holds the logits of more than its shard

The cross-entropy of a token is log(sum over V of exp(logit)) - logit of the target. The largest
logit m is subtracted first, so that exp does not overflow. Ranks exchange m, the sum and the
target's logit: three numbers for each token instead of V.

Wire: embedding forward one sum of B*T*D numbers, backward nothing; loss forward an all-reduce of N
numbers (max) and one of 2N (sum), backward nothing: each rank keeps the softmax of its shard.
n need not divide V.
Paper: Megatron-LM, arXiv:1909.08053, section 3 (which calls it fusing the output with the loss).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from labkit.collectives.backend import first_order_only
from labkit.comm import Group
from labkit.comm.group import chosen
from labkit.data import counted
from labkit.tensor_parallel.activation_layout import ActivationLayout, leave_parallel_region
from labkit.tensor_parallel.linear import even_sharding


def vocab_embedding(
    tokens_BT: Tensor, weight_vD: Tensor, vocab: range, layout: ActivationLayout
) -> Tensor:
    """Return the rows of all tokens, in this layout.

    weight_vD: this rank's rows. vocab: their row numbers. TypeError unless tokens are integers,
    ValueError for another number of rows.
    Wire: forward one sum.
    """
    if tokens_BT.dtype not in (torch.int64, torch.int32):
        raise TypeError(f"tokens are {tokens_BT.dtype}, not row numbers; pass tokens.long()")
    if weight_vD.dim() != 2 or len(weight_vD) != len(vocab):
        raise ValueError(
            f"weight_vD of shape {tuple(weight_vD.shape)}, and {vocab} are {len(vocab)} rows; give "
            f"({len(vocab)}, D)"
        )
    is_mine = (tokens_BT >= vocab.start) & (tokens_BT < vocab.stop)
    if not len(vocab):  # no row to look up, and no gradient but an empty one
        partial = weight_vD.sum() + weight_vD.new_zeros(*tokens_BT.shape, weight_vD.shape[1])
    else:
        rows = F.embedding((tokens_BT - vocab.start).where(is_mine, 0), weight_vD)
        partial = rows * is_mine[..., None]
    return leave_parallel_region(partial, layout)


def vocab_cross_entropy(
    logits_Nv: Tensor, targets_N: Tensor, vocab_size: int, group: Group | None = None
) -> Tensor:
    """Return the sum over N tokens of the cross-entropy of their targets: one number, on every
    rank.

    logits_Nv: this rank's share of the vocabulary, as torch.tensor_split cuts `vocab_size`.
    targets_N: numbers of the whole vocabulary, the same on every rank (not checked), or IGNORED,
    -100: these add nothing, so a mean divides by the number of the others. Computed in float32
    for 16-bit logits.
    ValueError for logits of another share, or a target outside the vocabulary; TypeError for
    invalid targets and logits.
    Memory: softmax of this rank's share, kept for backward.
    Wire: two all-reduces, of N and of 2N numbers; backward nothing.
    """
    group = chosen(group)
    if targets_N.dtype not in (torch.int64, torch.int32) or targets_N.dim() != 1:
        raise TypeError(
            f"targets are {targets_N.dtype} of shape {tuple(targets_N.shape)}, not token numbers "
            "in a row; pass targets.flatten().long()"
        )
    if not logits_Nv.is_floating_point():
        raise TypeError(
            f"logits are {logits_Nv.dtype}, which have no gradient; pass logits.float()"
        )
    vocab = even_sharding(vocab_size, 0, group.size).ranges[group.rank]
    if logits_Nv.dim() != 2 or logits_Nv.shape != (len(targets_N), len(vocab)):
        raise ValueError(
            f"logits of shape {tuple(logits_Nv.shape)}, but rank {group.rank} of {group.size} has "
            f"{len(vocab)} of {vocab_size} tokens, for {len(targets_N)} targets; pass "
            f"({len(targets_N)}, {len(vocab)})"
        )
    _require_within("target", targets_N.where(counted(targets_N), 0), vocab_size)
    return _VocabCrossEntropy.apply(logits_Nv, targets_N, vocab, group)


def _require_within(what: str, numbers: Tensor, vocab_size: int) -> None:
    """ValueError on a CPU; on a GPU, where looking would wait for it, an assertion of the device.

    A number that is in no share would count as a token whose row, or logit, is 0.
    """
    is_outside = (numbers < 0) | (numbers >= vocab_size)
    if not numbers.is_cpu:
        torch._assert_async(~is_outside.any())
    elif is_outside.any():
        raise ValueError(f"{what} {int(numbers[is_outside][0])} is outside 0..{vocab_size - 1}")


class _VocabCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits_Nv: Tensor, targets_N: Tensor, vocab: range, group: Group
    ) -> Tensor:
        dtype = torch.promote_types(logits_Nv.dtype, torch.float32)
        # float32 logits are copied by the subtraction, others by the cast
        largest_N = _largest(logits_Nv, dtype)
        group.all_reduce(largest_N, "max", out=largest_N)
        shifted_Nv = logits_Nv.to(dtype) - largest_N[:, None]
        column_N = targets_N - vocab.start
        is_mine = (column_N >= 0) & (column_N < len(vocab))
        column_N = column_N.where(is_mine, 0)
        sums_2N = shifted_Nv.new_zeros(2, len(targets_N))
        if len(vocab):
            sums_2N[1] = shifted_Nv.gather(1, column_N[:, None])[:, 0] * is_mine
        softmax_Nv = shifted_Nv.exp_()
        sums_2N[0] = softmax_Nv.sum(1)
        group.all_reduce(sums_2N, out=sums_2N)
        softmax_Nv.div_(sums_2N[0, :, None])
        counts_N = counted(targets_N)
        ctx.save_for_backward(softmax_Nv, column_N, is_mine, counts_N)
        ctx.dtype = logits_Nv.dtype
        return (sums_2N[0].log() - sums_2N[1]).where(counts_N, 0).sum()

    @staticmethod
    @first_order_only
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        """Return the softmax, minus 1 at the target on the rank that has it."""
        softmax_Nv, column_N, is_mine, counts_N = ctx.saved_tensors
        grad_Nv = softmax_Nv * (grad * counts_N)[:, None]
        if grad_Nv.shape[1]:
            grad_Nv.scatter_add_(1, column_N[:, None], -(is_mine * grad).to(grad_Nv)[:, None])
        return grad_Nv.to(ctx.dtype), None, None, None


def _largest(logits_Nv: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the largest logit of each row; -inf without columns."""
    if not logits_Nv.shape[1]:
        return logits_Nv.new_full(logits_Nv.shape[:1], -torch.inf, dtype=dtype)
    return logits_Nv.amax(1).to(dtype)
