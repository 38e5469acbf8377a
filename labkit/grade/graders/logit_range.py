"""Logits of 1,000 and of -1,000: tokens that are far out as a whole, and tokens with both.

moved together    whatever is subtracted from a token (its mean, its first logit), exp() is fine
apart             exp(1,000 - mean) is inf: only the token's largest logit will do
"""

import torch
from torch import Tensor

_FAR = 1000.0

OVERFLOWS = "numbers that are none"
NOT_THE_LARGEST = (
    "subtracts something else than the largest",
    "all is well where a token's logits are far out together, and not where it has 1,000 and "
    "-1,000: with the mean or the first logit subtracted, the largest may still be 2,000, and its "
    "exp is inf. With a token's largest logit subtracted no exponent is above 0",
)


def moved_together(logits_TE: Tensor, signs_T: Tensor) -> Tensor:
    """Each token's logits, 1,000 more or less."""
    return logits_TE + _FAR * signs_T[:, None]


def moved_apart(logits_TE: Tensor) -> Tensor:
    """One or two experts of five at 1,000, the others at -1,000; the first expert has both."""
    num_tokens, num_experts = logits_TE.shape
    is_high = (torch.arange(num_tokens)[:, None] + torch.arange(num_experts)) % 3 == 0
    return logits_TE + _FAR * torch.where(is_high, 1.0, -1.0).to(logits_TE)


def are_apart(logits_TE: Tensor) -> bool:
    """Whether a token has numbers of both kinds."""
    return bool((logits_TE.amax(1) - logits_TE.amin(1)).max() > _FAR)
