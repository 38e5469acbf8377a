"""Softmax block by block, by rules that can be other than they should be.

Shared by graders of attention: with the rules as they stand it is right, and with one of them
replaced it is what that mistake leads to.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor

from labkit.grade.graders.softmax_inputs import Block

Pair = tuple[Tensor, Tensor]
"""o_TK and lse_T."""


class Divides(Enum):
    """When the output is divided by the sum of weights."""

    AT_THE_END = "once"
    IN_EVERY_BLOCK = "and never at the end"
    IN_EVERY_BLOCK_AND_AT_THE_END = "again"
    NEVER = "the caller gets the numerator"


def larger(old_T1: Tensor, scores_TS: Tensor) -> Tensor:
    """The maximum so far, of each query."""
    return torch.maximum(old_T1, scores_TS.amax(1, keepdim=True))


def by_the_difference(old_T1: Tensor, new_T1: Tensor) -> Tensor:
    """What was summed with the old maximum counts exp(old - new) times as much."""
    return torch.exp(old_T1 - new_T1)


@dataclass(frozen=True)
class Rules:
    """How blocks are summed up. As it stands: right."""

    first_max: float = -math.inf
    next_max: Callable[[Tensor, Tensor], Tensor] = larger
    factor: Callable[[Tensor, Tensor], Tensor] = by_the_difference
    rescales_sum: bool = True
    rescales_output: bool = True
    divides: Divides = Divides.AT_THE_END
    hidden_score: float = -math.inf
    """In the place of the score of a key that is not seen."""
    seen: Callable[[Tensor], Tensor] = lambda mask_TS: mask_TS
    is_late: bool = False
    """Whether keys are hidden only after the maximum has been taken."""
    sums_hidden: bool = False
    """Whether hidden keys count in the sum of weights, though not in the output."""
    scale: Callable[[float, int], float] = lambda scale, num_features: scale


def follow(rules: Rules, q_TK: Tensor, blocks: Sequence[Block], scale: float) -> Pair:
    """Output and log-sum-exp by these rules, in q's dtype."""
    o_TK, sum_T1 = torch.zeros_like(q_TK), q_TK.new_zeros(len(q_TK), 1)
    max_T1 = torch.full_like(sum_T1, rules.first_max)
    lowest = torch.finfo(q_TK.dtype).min
    hidden = max(rules.hidden_score, lowest) if math.isfinite(rules.hidden_score) else -math.inf
    for k_SK, v_SK, mask_TS in blocks:
        all_TS = rules.scale(scale, len(q_TK[0])) * (q_TK @ k_SK.T)
        scores_TS = all_TS.masked_fill(~rules.seen(mask_TS), hidden)
        new_T1 = rules.next_max(max_T1, all_TS if rules.is_late else scores_TS)
        shift_T1 = new_T1.masked_fill(new_T1 == -math.inf, 0)
        weights_TS = torch.exp(scores_TS - shift_T1)
        factor_T1 = rules.factor(max_T1, shift_T1)
        counted_TS = torch.exp(all_TS - shift_T1) if rules.sums_hidden else weights_TS
        sum_T1 = sum_T1 * (factor_T1 if rules.rescales_sum else 1)
        sum_T1 = sum_T1 + counted_TS.sum(1, keepdim=True)
        o_TK = o_TK * (factor_T1 if rules.rescales_output else 1) + weights_TS @ v_SK
        max_T1 = new_T1
        if rules.divides in (Divides.IN_EVERY_BLOCK, Divides.IN_EVERY_BLOCK_AND_AT_THE_END):
            o_TK = _ratio(o_TK, sum_T1)
    if rules.divides in (Divides.AT_THE_END, Divides.IN_EVERY_BLOCK_AND_AT_THE_END):
        o_TK = _ratio(o_TK, sum_T1)
    return o_TK, (max_T1 + sum_T1.log()).squeeze(1)


def _ratio(o_TK: Tensor, sum_T1: Tensor) -> Tensor:
    return o_TK / sum_T1.masked_fill(sum_T1 == 0, 1)


def combined(
    weight: Callable[[Tensor, int], Tensor | float],
    q_TK: Tensor,
    blocks: Sequence[Block],
    scale: float,
) -> Tensor:
    """Each block's own softmax, and a weighted sum of their outputs.

    weight: of a block, from its (T,) log-sum-exps and the number of its keys.
    """
    o_TK = torch.zeros_like(q_TK)
    for block in blocks:
        its_TK, lse_T = follow(Rules(), q_TK, [block], scale)
        factor = weight(lse_T, len(block[0]))
        o_TK = o_TK + its_TK * (factor.unsqueeze(1) if isinstance(factor, Tensor) else factor)
    return o_TK
