"""Mistakes in online_softmax that show in the log-sum-exp alone: the output is right."""

import math

import torch
from torch import Tensor

from labkit.grade.graders.softmax_inputs import Given
from labkit.grade.graders.softmax_rules import Rules, follow
from labkit.grade.graders.softmax_theories import Mistake


def of_lse() -> list[Mistake]:
    """In the order in which they are tried."""

    def maximum(given: Given) -> Tensor:
        return given.scores.amax(1)

    def lse(given: Given) -> Tensor:
        return given.expected[1]

    return [
        Mistake(
            "the log-sum-exp lacks the maximum",
            "it is log(sum of exp(score - maximum)): the maximum that was subtracted is to be "
            "added again, after the logarithm",
            lambda given: lse(given) - maximum(given),
            3,
        ),
        Mistake(
            "the log-sum-exp lacks the logarithm",
            "it is the sum of the weights; its logarithm, plus the maximum, is wanted",
            lambda given: torch.exp(lse(given) - maximum(given)),
            3,
        ),
        Mistake(
            "the log-sum-exp lacks the logarithm",
            "it is the sum of exp(score); its logarithm is wanted",
            lambda given: torch.exp(lse(given)),
            3,
        ),
        Mistake(
            "the log-sum-exp is the maximum",
            "it is the largest score; the logarithm of the sum of weights is to be added",
            maximum,
            3,
        ),
        Mistake(
            "the log-sum-exp subtracts the maximum",
            "it is log(sum of weights) - maximum; the maximum is to be added",
            lambda given: lse(given) - 2 * maximum(given),
            3,
        ),
        Mistake(
            "the log-sum-exp is in another base",
            "it is the logarithm to base 2; the natural one is wanted",
            lambda given: lse(given) / math.log(2),
            3,
        ),
        Mistake(
            "the log-sum-exp is in another base",
            "the maximum is natural, and the logarithm that is added to it to base 2",
            lambda given: maximum(given) + (lse(given) - maximum(given)) / math.log(2),
            3,
        ),
        Mistake(
            "the log-sum-exp is the last block's",
            "it is that of the last block alone",
            lambda given: follow(Rules(), given.q, given.blocks[-1:], given.scale)[1],
            3,
        ),
    ]
