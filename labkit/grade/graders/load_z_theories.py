"""Mistakes in the router's z-loss, by the numbers that come of them."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from labkit.grade.graders.load_theories import Given, Mistake


def z_loss(given: Given, logits_TE: Tensor) -> Tensor:
    """As it should be."""
    return torch.logsumexp(logits_TE, 1).square().mean()


Z: Sequence[Mistake] = (
    Mistake(
        "z is the square of the mean",
        "tokens with a log-sum-exp of 10 and of -10 have a mean of 0: square each, and then take "
        "the mean",
        lambda given, logits: torch.logsumexp(logits, 1).mean().square(),
        3,
    ),
    Mistake(
        "z without the square",
        "the mean of the log-sum-exp as it is pushes logits to minus infinity: its square has its "
        "least value where the log-sum-exp is 0",
        lambda given, logits: torch.logsumexp(logits, 1).mean(),
    ),
    Mistake(
        "z is a sum over tokens",
        "the sum grows with the batch: it is the mean over tokens",
        lambda given, logits: torch.logsumexp(logits, 1).square().sum(),
    ),
    Mistake(
        "z is divided by E, too",
        "there is one log-sum-exp for each token: divide by T alone",
        lambda given, logits: z_loss(given, logits) / given.num_experts,
    ),
    Mistake(
        "z of normalised logits",
        "the log-sum-exp of a log-softmax is 0, and that of a softmax is nearly a constant: what "
        "z is to keep small has been subtracted before. It is of the logits as they come",
        lambda given, logits: torch.logsumexp(torch.log_softmax(logits, 1), 1).square().mean(),
    ),
    Mistake(
        "z of normalised logits",
        "the log-sum-exp of probabilities lies between log E and log E + 1, whatever the logits "
        "are: it is of the logits as they come",
        lambda given, logits: torch.logsumexp(torch.softmax(logits, 1), 1).square().mean(),
    ),
    Mistake(
        "z is the mean of squared logits",
        "that is another penalty, on every logit: z is on the log-sum-exp of each token",
        lambda given, logits: logits.square().mean(),
    ),
    Mistake(
        "z squares the logits",
        "the square is of the log-sum-exp, and not of what is in it",
        lambda given, logits: torch.logsumexp(logits.square(), 1).mean(),
    ),
    Mistake(
        "the logarithm of a mean",
        "the sum over experts of exp(logit) has been divided by E: that is log E less",
        lambda given, logits: (
            (torch.logsumexp(logits, 1) - math.log(given.num_experts)).square().mean()
        ),
    ),
    Mistake(
        "z over the tokens of an expert",
        "the log-sum-exp is over a token's experts, dim=1, and here it is over an expert's tokens",
        lambda given, logits: torch.logsumexp(logits, 0).square().mean(),
    ),
    Mistake(
        "z of the largest logit",
        "the largest logit is near the log-sum-exp only where it stands out: the sum is over all",
        lambda given, logits: logits.amax(1).square().mean(),
    ),
)
