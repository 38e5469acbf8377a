"""Mistakes in online_softmax, by the outputs that come of them."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from labkit.grade.graders.softmax_inputs import Given
from labkit.grade.graders.softmax_rules import Divides, Rules, combined, follow


@dataclass(frozen=True)
class Mistake:
    """A name for it, and what it leads to."""

    name: str
    explanation: str
    values: Callable[[Given], Tensor]
    hint: int = 2


def _by(name: str, explanation: str, rules: Rules, hint: int = 2) -> Mistake:
    return Mistake(name, explanation, lambda given: output(rules, given), hint)


def output(rules: Rules, given: Given) -> Tensor:
    """(T, K) by these rules."""
    return follow(rules, given.q, given.blocks, given.scale)[0]


def of_outputs() -> list[Mistake]:
    """Mistakes that show in the output, in the order in which they are tried."""
    return [*_of_scores(), *_of_masks(), *_of_rescaling(), *_of_divisions(), *_of_maxima()]


_NO_RESCALING = (
    "does not rescale what was summed before",
    "each block's weights are exp(score - maximum so far), and when the maximum grows, what was "
    "summed with the old one is too large: sum and output both count exp(old - new) times as much",
)


def _of_rescaling() -> list[Mistake]:
    return [
        _by(*_NO_RESCALING, Rules(rescales_sum=False, rescales_output=False)),
        _by(
            "rescales the sum and not the output",
            "the output is a sum of weights times values, and its weights have the old maximum in "
            "them, too: it takes the factor exp(old - new), as the sum of weights does",
            Rules(rescales_output=False),
        ),
        _by(
            "rescales the output and not the sum",
            "the sum of weights has the old maximum in it, too: it takes the factor exp(old - "
            "new), as the output does",
            Rules(rescales_sum=False),
        ),
        _by(
            "rescales by the wrong sign",
            "the factor is exp(old maximum - new maximum), which is 1 or less; here it is the "
            "inverse: what came earlier grows with each block",
            Rules(factor=_inverse),
        ),
    ]


def _inverse(old_T1: Tensor, new_T1: Tensor) -> Tensor:
    # Nothing has been summed up at first, and a mistake that is NaN everywhere says little.
    return torch.exp(new_T1 - old_T1).nan_to_num(1, 1, 1)


def _of_divisions() -> list[Mistake]:
    each = (
        "divides in every block",
        "the output was divided by the sum of weights in each block, and in the next one weights "
        "that are not divided are added to it: the two do not belong together. Divide once, at "
        "the end (or multiply by the old sum first)",
    )
    own = (
        "adds up the blocks' own softmaxes",
        "each block was divided by its own sum of weights, and the outputs were ",
    )
    return [
        _by(
            "never divides by the sum of weights",
            "the output is the sum of exp(score - maximum) v: attention divides by the sum of the "
            "weights, at the end",
            Rules(divides=Divides.NEVER),
        ),
        _by(*each, Rules(divides=Divides.IN_EVERY_BLOCK)),
        _by(*each, Rules(divides=Divides.IN_EVERY_BLOCK_AND_AT_THE_END)),
        Mistake(
            own[0],
            own[1] + "added: a weight in one block is no weight in all of them",
            lambda given: combined(lambda lse, size: 1, given.q, given.blocks, given.scale),
        ),
        Mistake(
            "averages the blocks' softmaxes",
            own[1] + "averaged: a block counts as much as exp of its log-sum-exp, and not as any "
            "other",
            lambda given: combined(
                lambda lse, size: 1 / len(given.blocks), given.q, given.blocks, given.scale
            ),
        ),
        Mistake(
            "averages the blocks' softmaxes",
            own[1] + "averaged by the number of keys: a block counts as much as exp of its "
            "log-sum-exp",
            lambda given: combined(
                lambda lse, size: size / len(given.whole[0]), given.q, given.blocks, given.scale
            ),
        ),
    ]


def _of_scores() -> list[Mistake]:
    def rules(scale: Callable[[float, int], float]) -> Rules:
        return Rules(scale=scale)

    why = "scores are scale * (q . k), with the scale that is given; here "
    first = Mistake(
        "only the first block counts",
        "the output is attention over the keys of the first block: the others are not in it",
        lambda given: follow(Rules(), given.q, given.blocks[:1], given.scale)[0],
    )
    last = Mistake(
        "only the last block counts",
        "the output is attention over the keys of the last block: what was summed before is lost",
        lambda given: follow(Rules(), given.q, given.blocks[-1:], given.scale)[0],
    )
    return [
        _by("forgets the scale", why + "they are q . k", rules(lambda scale, k: 1)),
        _by("takes a scale of its own", why + "it is K ** -0.5", rules(lambda s, k: k**-0.5)),
        _by("scales twice", why + "it is there twice", rules(lambda scale, k: scale * scale)),
        first,
        last,
    ]


def _of_masks() -> list[Mistake]:
    reached = (
        "masks with a number that scores reach",
        "the score of a hidden key is a number. That is a score like any other: where all that a "
        "query sees is as low, or where it sees nothing, hidden keys count. Use -inf",
    )
    return [
        _by(
            "ignores the mask",
            "the output is attention over all keys, those that a query may not see included",
            Rules(seen=torch.ones_like),
        ),
        _by(
            "takes the mask the wrong way round",
            "True is where a query may see a key; here the others are seen, and those hidden",
            Rules(seen=torch.logical_not),
        ),
        _by(
            "gives hidden keys a score of 0",
            "a product with the mask makes scores 0, and exp(0) is a weight like others: -inf is "
            "what exp makes 0 of",
            Rules(hidden_score=0.0),
        ),
        _by(
            "takes the maximum before it masks",
            "the maximum is over hidden keys, too. Where one of them scores 10,000 more than all "
            "that a query sees, exp(score - maximum) is 0 for every key that counts. Mask first",
            Rules(is_late=True),
            hint=3,
        ),
        _by(
            "counts hidden keys in the sum",
            "hidden keys are not in the output, and are in the sum that it is divided by: both "
            "are sums over the keys that a query may see",
            Rules(sums_hidden=True),
        ),
        *(
            _by(*reached, Rules(hidden_score=fill), hint=3)
            for fill in (-1e4, -1e9, -1e30, torch.finfo(torch.float64).min)
        ),
    ]


def _of_maxima() -> list[Mistake]:
    return [
        _by(
            "subtracts no maximum",
            "exp(10,000) is inf, and exp(-10,000) is 0: inf / inf and 0 / 0 are NaN. With the "
            "maximum subtracted the largest weight is 1, and the factor cancels in the division",
            Rules(first_max=0.0, next_max=lambda old, scores: old),
        ),
        _by(
            "begins with a maximum of 0",
            "where all scores of a query are around -10,000, exp(score - 0) is 0 for all of them: "
            "the maximum of what has been seen is not 0 before anything has, it is -inf",
            Rules(first_max=0.0),
            hint=3,
        ),
        _by(
            "keeps the maximum of the first block",
            "a later block has scores that are 200 higher, and exp(200) is inf in float32: the "
            "maximum is over all that has been seen, and grows",
            Rules(next_max=_of_the_first),
        ),
        _by(
            "takes one maximum for all queries",
            "the maximum is that of the query with the largest scores, and for the others every "
            "exp(score - maximum) is 0: each query has a maximum of its own",
            Rules(next_max=lambda old, scores: torch.maximum(old, scores.max())),
        ),
    ]


def _of_the_first(old_T1: Tensor, scores_TS: Tensor) -> Tensor:
    return torch.where(old_T1 == -math.inf, scores_TS.amax(1, keepdim=True), old_T1)
