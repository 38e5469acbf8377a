"""V-trace: what a learner makes of the steps that an older policy took.

An interviewer asks: "Actors send rollouts, and when the learner uses one, its policy is several
updates ahead of the one that acted. What is wrong with plain n-step returns then? How does V-trace
correct them? Why are the ratios cut off, and what do its two limits decide?"

Write `v_trace(log_mu, log_pi, rewards, ended, values, last_value, gamma, rho_limit, c_limit)`: the
critic's targets and the actor's advantages of T steps of one environment.

Contract
    log_mu      (T,) log-probability of each action taken, by the policy mu that acted
    log_pi      (T,) the same by the policy pi that is trained
    rewards     (T,) r_t, the reward of step t
    ended       (T,) bool: True where step t ended its episode. The next observation is then the
                first of another episode, which says nothing about this one
    values      (T,) V_t, the critic's value of the observation before step t
    last_value  () the value of the observation after the last step, V_T
    gamma       a float, 0 to 1. It counts as 0 in a step that ended its episode: call it g_t
    rho_limit, c_limit   floats above 0; usually both are 1
    returns     (v, advantages), two new tensors (T,)

        ratio_t = pi / mu of the action taken
        rho_t   = min(ratio_t, rho_limit)        c_t = min(ratio_t, c_limit)
        d_t     = rho_t (r_t + g_t V_t+1 - V_t)
        v_s     = V_s + sum over t >= s, up to the last step, of
                        (g_s c_s) (g_s+1 c_s+1) ... (g_t-1 c_t-1) d_t
        advantage_s = rho_s (r_s + g_s v_s+1 - V_s)        with v_T = V_T

    All tensors but `ended` are float32, and none requires a gradient. T is 1 or more. The arguments
    stay as they are. A loop over the steps is fine

Test. Your results must be right up to rounding, on-policy and far off it, with ends anywhere.

Not allowed: labkit.rl
Paper: Espeholt et al., "IMPALA", arXiv:1802.01561, section 4.1.
"""

import torch
from torch import Tensor


def v_trace(
    log_mu: Tensor,
    log_pi: Tensor,
    rewards: Tensor,
    ended: Tensor,
    values: Tensor,
    last_value: Tensor,
    gamma: float,
    rho_limit: float,
    c_limit: float,
) -> tuple[Tensor, Tensor]:
    """Return the critic's targets and the actor's advantages, (T,) each."""
    ### BEGIN SOLUTION
    ratio = (log_pi - log_mu).exp()
    rho, c = ratio.clamp(max=rho_limit), ratio.clamp(max=c_limit)
    discount = gamma * (~ended)
    next_values = torch.cat([values[1:], last_value.reshape(1)])
    delta = rho * (rewards + discount * next_values - values)
    v, above = torch.empty_like(values), 0.0  # above: v - V of the step after
    for t in reversed(range(len(values))):
        above = delta[t] + discount[t] * c[t] * above
        v[t] = values[t] + above
    next_v = torch.cat([v[1:], last_value.reshape(1)])
    return v, rho * (rewards + discount * next_v - values)
    ### END SOLUTION
