"""V-trace: values and advantages of one policy, from steps that an older one took.

    mu     the policy that acted            pi     the policy that is trained
    ratio = pi(a) / mu(a)                   how much more likely the action is now

    rho_t = min(ratio_t, 1)                 c_t = min(ratio_t, 1)
    d_t   = rho_t (r_t + gamma V(o_t+1) - V(o_t))
    v_t   = V(o_t) + d_t + gamma c_t (v_t+1 - V(o_t+1))          from the last step to the first
    A_t   = rho_t (r_t + gamma v_t+1 - V(o_t))                   the actor's advantage

gamma counts as 0 at a step that ended its episode. After the rollout v = V.

    pi = mu           both ratios are 1, and v_t is the n-step return: rewards, then the critic
    ratio near 0      pi would hardly do that: the step counts little, and cuts off what follows it
    ratio above 1     counts as 1: a product of T ratios would have a variance that grows with T

rho decides which policy's values v converges to. With the limit infinite that would be pi's; with 1
it is one between mu's and pi's. c decides only how fast, since it weighs later errors.
Paper: Espeholt et al., "IMPALA: scalable distributed deep-RL with importance weighted actor-learner
architectures", arXiv:1802.01561, section 4.1.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class VTrace(NamedTuple):
    """Targets of a rollout, (T, E) each. No gradient flows into them."""

    values: Tensor
    """v: the critic's targets."""
    advantages: Tensor
    """A: weights of the log-probabilities in the actor's loss."""


@torch.no_grad()
def v_trace(
    log_ratios_TE: Tensor,
    rewards_TE: Tensor,
    ended_TE: Tensor,
    values_TE: Tensor,
    last_value_E: Tensor,
    *,
    gamma: float,
    limit: float = 1.0,
) -> VTrace:
    """Return targets for the policy pi, from steps of the policy mu.

    log_ratios_TE: log pi(a) - log mu(a) of the actions taken; zeros correct nothing.
    ended_TE: bool, True where a step ended its episode. last_value_E: V after the last step.
    limit: the largest rho and c.
    """
    weight_TE = log_ratios_TE.exp().clamp(max=limit)
    discount_TE = gamma * (~ended_TE).to(values_TE.dtype)
    next_value_TE = torch.cat([values_TE[1:], last_value_E[None]])
    delta_TE = weight_TE * (rewards_TE + discount_TE * next_value_TE - values_TE)
    above_E, found = torch.zeros_like(last_value_E), []  # v - V of the step after
    for t in reversed(range(len(values_TE))):
        above_E = delta_TE[t] + discount_TE[t] * weight_TE[t] * above_E
        found.append(values_TE[t] + above_E)
    v_TE = torch.stack(found[::-1])
    next_v_TE = torch.cat([v_TE[1:], last_value_E[None]])
    return VTrace(v_TE, weight_TE * (rewards_TE + discount_TE * next_v_TE - values_TE))
