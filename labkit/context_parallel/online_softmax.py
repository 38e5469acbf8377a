"""Attention over some of the keys, and how two such results become one. The first rung.

The softmax of a row needs the sum over all of its keys. Keys that come in parts need no second
look: with the output of each part goes the logarithm of its sum, and both merge exactly:

    S   = Q K^T / sqrt(K)                       scores of one block, masked ones -inf
    lse = log sum_s exp(S_s)                    taken as m + log sum_s exp(S_s - m), m = max S
    O   = sum_s exp(S_s - lse) V_s

    lse = log(exp(lse_a) + exp(lse_b))
    O   = exp(lse_a - lse) O_a + exp(lse_b - lse) O_b

Merging is associative and commutative, so blocks may come in any order. Backward needs no softmax
either: P = exp(S - lse) with the final lse, and the D of each row, sum over K of dO * O, stands for
its sum over all keys of P * dP:

    dV = P^T dO     dP = dO V^T     dS = P (dP - D) / sqrt(K)     dQ = dS K     dK = dS^T Q

Layout: q_XtK, k_XsK, v_XsK, out_XtK, lse_Xt; X stands for any leading dims, which broadcast.
Wire: nothing. Memory: a few tensors of the block's t x s.
Papers: Milakov and Gimelshein, "Online normalizer calculation for softmax", arXiv:1805.02867; Dao
et al., "FlashAttention", arXiv:2205.14135, appendix B.2 for the gradients.
"""

import math

import torch
from torch import Tensor

from labkit import arguments


def attend(
    q_XtK: Tensor, k_XsK: Tensor, v_XsK: Tensor, mask_ts: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """out_XtK and lse_Xt of these queries over these keys, of which there is at least one.

    mask_ts: true where a query may look at a key; None: everywhere. A row that may look at none
    has the output 0 and the log-sum-exp -inf, which changes nothing where it is merged. TypeError
    for what is no tensor, or no mask.
    """
    for name, x in {"q_XtK": q_XtK, "k_XsK": k_XsK, "v_XsK": v_XsK}.items():
        arguments.instance(name, x, Tensor, "give a tensor, (..., tokens, head features)")
    if mask_ts is not None:
        _require_mask(mask_ts, q_XtK.shape[-2], k_XsK.shape[-2])
    weights_Xts = _scores(q_XtK, k_XsK, mask_ts)
    # Without this exp overflows from scores of 89 on. Of a row of -inf, -inf - -inf would be nan.
    max_Xt = _finite(weights_Xts.amax(-1))
    weights_Xts.sub_(max_Xt[..., None]).exp_()
    sum_Xt = weights_Xts.sum(-1)
    # The largest score has the weight 1: only the sum of a row without keys is below that.
    out_XtK = (weights_Xts @ v_XsK) / sum_Xt.clamp(min=1)[..., None]
    return out_XtK, max_Xt + sum_Xt.log()


def merge(a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """out_XtK and lse_Xt over the keys of both: each part counts by its share of the sum.

    TypeError for what is no such pair.
    """
    for name, part in {"a": a, "b": b}.items():
        if not isinstance(part, tuple | list) or len(part) != 2:
            raise TypeError(f"{name}={part!r:.60}: give (out_XtK, lse_Xt), what attend returns")
    (out_a, lse_a), (out_b, lse_b) = a, b
    lse_Xt = torch.logaddexp(lse_a, lse_b)
    whole_Xt = _finite(lse_Xt)
    share_a, share_b = ((lse - whole_Xt).exp()[..., None] for lse in (lse_a, lse_b))
    return share_a * out_a + share_b * out_b, lse_Xt


def attend_backward(
    q_XtK: Tensor,
    k_XsK: Tensor,
    v_XsK: Tensor,
    grad_XtK: Tensor,
    lse_Xt: Tensor,
    dot_Xt: Tensor,
    mask_ts: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """What this block adds to dQ, dK and dV, of their broadcast shapes.

    grad_XtK: dO. lse_Xt and dot_Xt: over all keys, not only these: the final log-sum-exp of each
    row, and its D, the sum over K of dO * O.
    """
    weights_Xts = _scores(q_XtK, k_XsK, mask_ts).sub_(_finite(lse_Xt)[..., None]).exp_()
    grad_v_XsK = weights_Xts.mT @ grad_XtK
    grad_scores_Xts = (grad_XtK @ v_XsK.mT).sub_(dot_Xt[..., None]).mul_(weights_Xts)
    grad_scores_Xts.mul_(1 / math.sqrt(q_XtK.shape[-1]))
    return grad_scores_Xts @ k_XsK, grad_scores_Xts.mT @ q_XtK, grad_v_XsK


def _scores(q_XtK: Tensor, k_XsK: Tensor, mask_ts: Tensor | None) -> Tensor:
    scores_Xts = (q_XtK @ k_XsK.mT).mul_(1 / math.sqrt(q_XtK.shape[-1]))
    return scores_Xts if mask_ts is None else scores_Xts.masked_fill_(~mask_ts, -math.inf)


def _require_mask(mask_ts: Tensor, t: int, s: int) -> None:
    """TypeError unless it holds booleans, ValueError where it has no place for each score."""
    instead = f"give booleans ({t}, {s}), true where a query may look at a key"
    arguments.instance("mask_ts", mask_ts, Tensor, instead)
    if mask_ts.dtype != torch.bool:
        raise TypeError(f"mask_ts is {mask_ts.dtype}: {instead}")
    if mask_ts.dim() < 2 or mask_ts.shape[-2] not in (1, t) or mask_ts.shape[-1] not in (1, s):
        raise ValueError(f"mask_ts of shape {tuple(mask_ts.shape)}: {instead}")


def _finite(x: Tensor) -> Tensor:
    """0 instead of -inf: what is subtracted from -inf to leave -inf."""
    return x.masked_fill(x == -math.inf, 0)
