"""GRPO: advantages within a group of answers, and a clipped loss over all their tokens.

    prompt            3+9=                                 7+8=
    answers           12.    11.   12.   9.                15.   15.   15.   15.
    rewards           1      0     1     0                 1     1     1     1
    advantages        1      -1    1     -1                0     0     0     0

A group is the G answers to one prompt. The advantage of an answer is its reward minus the group's
mean, divided by the group's standard deviation. So the group replaces PPO's critic. A group whose
rewards are all equal teaches nothing.

The loss, over the N tokens of all answers of all ranks (prompts and padding are masked):

    r       exp(log p(token) - log p_g(token))      p_g: the policy that generated this token
    k       exp(log p_ref - log p) - (log p_ref - log p) - 1      estimates KL(p || p_ref), >= 0
    loss    1/N sum of  -min(r A, clip(r, 1 - eps, 1 + eps) A) + beta k

p_g is the version that was sampled from, by token. Log-probabilities that the trainer computes
again, later, belong to a policy that never sampled: r is 1 then, and nothing is clipped.
Every token has the weight 1/N. The paper divides by each answer's own length first, a mean of
means, under which a token of a long wrong answer counts less (DAPO and Dr. GRPO change this).

Papers: Shao et al., DeepSeekMath, arXiv:2402.03300 (GRPO); Schulman et al., arXiv:1707.06347 (the
clip); Yu et al., DAPO, arXiv:2503.14476, and Liu et al., Dr. GRPO, arXiv:2503.20783 (the mean).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

_LEAST_STD = 1e-4
"""Added to a standard deviation, so that a group of equal rewards has advantages of 0."""


def group_advantages(rewards_PG: Tensor) -> Tensor:
    """Return the advantages of G answers to each of P prompts, (P, G)."""
    centred_PG = rewards_PG - rewards_PG.mean(1, keepdim=True)
    return centred_PG / (rewards_PG.std(1, correction=0, keepdim=True) + _LEAST_STD)


class Terms(NamedTuple):
    """The loss by token, (B, T), 0 where the mask is."""

    loss: Tensor
    ratio: Tensor
    kl: Tensor
    """The estimate k of the divergence from the reference model."""


def grpo_terms(
    log_probs_BT: Tensor,
    generated_BT: Tensor,
    reference_BT: Tensor,
    advantages_B: Tensor,
    mask_BT: Tensor,
    clip: float = 0.2,
    kl_weight: float = 0.0,
) -> Terms:
    """Return the loss of each token; its sum divided by the number of tokens is GRPO's loss.

    log_probs_BT: of the tokens, with a gradient. generated_BT: of the policy that generated them,
    as the generator recorded them. reference_BT: of the reference model. advantages_B: by answer.
    mask_BT: True for tokens of answers. clip: eps. kl_weight: beta.
    """
    zeros = torch.zeros_like(log_probs_BT)
    # Masked before exp: an inf there would make the gradient nan.
    ratio_BT = (log_probs_BT - generated_BT).where(mask_BT, zeros).exp()
    above_BT = (reference_BT - log_probs_BT).where(mask_BT, zeros)
    kl_BT = above_BT.exp() - above_BT - 1
    advantages_B1 = advantages_B[:, None]
    clipped_BT = ratio_BT.clamp(1 - clip, 1 + clip)
    gain_BT = torch.minimum(ratio_BT * advantages_B1, clipped_BT * advantages_B1)
    loss_BT = (kl_weight * kl_BT - gain_BT).where(mask_BT, zeros)
    return Terms(loss_BT, ratio_BT.detach().where(mask_BT, zeros), kl_BT.detach())


def grpo_loss(
    log_probs_BT: Tensor,
    generated_BT: Tensor,
    reference_BT: Tensor,
    advantages_B: Tensor,
    mask_BT: Tensor,
    clip: float = 0.2,
    kl_weight: float = 0.0,
) -> Tensor:
    """Return the mean over all tokens of the batch; see grpo_terms. Without a token: 0."""
    terms = grpo_terms(
        log_probs_BT, generated_BT, reference_BT, advantages_B, mask_BT, clip, kl_weight
    )
    return terms.loss.sum() / mask_BT.sum().clamp(min=1)


def effective_sample_size(ratio_X: Tensor) -> Tensor:
    """Return (sum r)^2 / (n sum r^2), (): 1 where all n ratios are equal, 1/n where one is all."""
    return ratio_X.sum().square() / (len(ratio_X) * ratio_X.square().sum())
