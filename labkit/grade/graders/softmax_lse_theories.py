"""Mistakes in online_softmax that show in the log-sum-exp alone: the output is right."""

import math

import torch
from torch import Tensor

from labkit.grade.graders.softmax_inputs import Given
from labkit.grade.graders.softmax_rules import Rules, follow
from labkit.grade.graders.softmax_theories import Mistake


def of_lse() -> list[Mistake]:
    """In the order in which they are tried."""
    last = Mistake(
        "the log-sum-exp is the last block's",
        "it is that of the last block alone",
        lambda given: follow(Rules(), given.q, given.blocks[-1:], given.scale)[1],
        3,
    )
    return [*_of_the_maximum(), *_of_the_logarithm(), last]


def _maximum(given: Given) -> Tensor:
    return given.scores.amax(1)


def _lse(given: Given) -> Tensor:
    return given.expected[1]


def _of_the_maximum() -> list[Mistake]:
    return [
        Mistake(
            "the log-sum-exp lacks the maximum",
            "it is log(sum of exp(score - maximum)): the maximum that was subtracted is to be "
            "added again, after the logarithm",
            lambda given: _lse(given) - _maximum(given),
            3,
        ),
        Mistake(
            "the log-sum-exp is the maximum",
            "it is the largest score; the logarithm of the sum of weights is to be added",
            _maximum,
            3,
        ),
        Mistake(
            "the log-sum-exp subtracts the maximum",
            "it is log(sum of weights) - maximum; the maximum is to be added",
            lambda given: _lse(given) - 2 * _maximum(given),
            3,
        ),
    ]


def _of_the_logarithm() -> list[Mistake]:
    lacks, base = "the log-sum-exp lacks the logarithm", "the log-sum-exp is in another base"
    rows = [
        (
            lacks,
            "it is the sum of the weights; its logarithm, plus the maximum, is wanted",
            lambda given: torch.exp(_lse(given) - _maximum(given)),
        ),
        (
            lacks,
            "it is the sum of exp(score); its logarithm is wanted",
            lambda given: torch.exp(_lse(given)),
        ),
        (
            base,
            "it is the logarithm to base 2; the natural one is wanted",
            lambda given: _lse(given) / math.log(2),
        ),
        (
            base,
            "the maximum is natural, and the logarithm that is added to it to base 2",
            lambda given: _maximum(given) + (_lse(given) - _maximum(given)) / math.log(2),
        ),
    ]
    return [Mistake(*row, 3) for row in rows]
