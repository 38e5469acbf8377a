"""Grade v_trace: targets and advantages as the paper's sum, term by term."""

import math
from typing import Any

import torch
from torch import Tensor

from labkit.grade import grader as g


def cases(draw: g.Draw) -> list[g.Case]:
    """One step and several; on-policy, off-policy, far off; ends inside and at the last step."""
    return [
        case(draw, "one step, on-policy", 1, 0.0),
        case(draw, "one step that ends its episode", 1, 0.5, [0]),
        case(draw, "on-policy", 4, 0.0),
        case(draw, "on-policy, an end inside", 5, 0.0, [2]),
        case(draw, "off-policy", 4, 0.7),
        case(draw, "off-policy, two ends inside", 8, 0.7, [2, 5]),
        case(draw, "off-policy, an end at the last step", 6, 0.7, [5]),
        case(draw, "far off-policy", 7, 2.5),
        case(draw, "limits 2 and 1", 6, 1.0, [3], rho_limit=2.0),
        case(draw, "limits 1 and 0.6", 6, 1.0, c_limit=0.6),
        case(draw, "gamma 1", 5, 0.7, gamma=1.0),
    ]


def case(
    draw: g.Draw,
    what: str,
    num_steps: int,
    spread: float,
    ends: Any = (),
    gamma: float = 0.9,
    rho_limit: float = 1.0,
    c_limit: float = 1.0,
) -> g.Case:
    """spread: of the log-ratios, half of which are above 0. ends: steps that end an episode."""

    def drawn() -> Tensor:
        return draw.same(num_steps)

    log_mu = -drawn().abs() - 0.1
    signs = torch.tensor([1.0, -1.0] * num_steps)[:num_steps] * draw.rng.choice((1, -1))
    log_pi = log_mu + spread * signs * (drawn().abs() + 0.2)
    ended = torch.zeros(num_steps, dtype=torch.bool)
    ended[list(ends)] = True
    last = draw.same() + 3.0
    its = log_mu, log_pi, drawn() + 1.0, ended, 2.0 * drawn(), last, gamma, rho_limit, c_limit
    return g.Case(f"{num_steps} steps, {what}", *its)


def right(
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
    """Return the contract's sums, in Python's floats."""
    steps = range(len(values))
    ratios = [math.exp(pi - mu) for pi, mu in zip(log_pi.tolist(), log_mu.tolist())]
    discounts = [0.0 if each else gamma for each in ended.tolist()]
    r, value = rewards.tolist(), [*values.tolist(), float(last_value)]
    rho = [min(each, rho_limit) for each in ratios]
    traces = [g_t * min(each, c_limit) for g_t, each in zip(discounts, ratios)]
    deltas = [rho[t] * (r[t] + discounts[t] * value[t + 1] - value[t]) for t in steps]
    v = [
        value[s] + sum(math.prod(traces[s:t]) * deltas[t] for t in range(s, len(value) - 1))
        for s in steps
    ] + [value[-1]]
    advantages = [rho[s] * (r[s] + discounts[s] * v[s + 1] - value[s]) for s in steps]
    return torch.tensor(v[:-1]), torch.tensor(advantages)


RATIO = "ratio = (log_pi - log_mu).exp()"
RHO, C = "ratio.clamp(max=rho_limit)", "ratio.clamp(max=c_limit)"
ABOVE = "above = delta[t] + discount[t] * c[t] * above"
DELTA = "rho * (rewards + discount * next_values - values)"
ADVANTAGE = "rho * (rewards + discount * next_v - values)"
MISTAKES = [
    g.Mistake(
        "does not cut off the ratios",
        "An action that has become likelier has a ratio above 1, and the product of several can "
        "be huge: one lucky step would decide the update. Both ratios have an upper limit.",
        [
            g.patch(RHO, "ratio", C, "ratio"),
            g.patch(RHO, "ratio"),
            g.patch(C, "ratio"),
        ],
    ),
    g.Mistake(
        "turns the ratio around",
        "Steps were drawn by mu, and count as if pi had drawn them: pi / mu. A step that pi would "
        "hardly take then counts little.",
        g.patch(RATIO, "ratio = (log_mu - log_pi).exp()"),
    ),
    g.Mistake(
        "corrects nothing",
        "With ratios of 1 these are n-step returns of the policy that acted. The learner's policy "
        "would be judged by actions that it does not take any more.",
        [
            g.patch(RATIO, "ratio = torch.ones_like(log_pi)"),
            g.patch(RHO, "torch.ones_like(ratio)"),
            g.patch(C, "torch.ones_like(ratio)"),
        ],
    ),
    g.Mistake(
        "exchanges the two limits",
        "rho weighs the error of a step, and decides which policy's values v converges to. c "
        "weighs how far later errors reach back, and decides how fast.",
        [
            g.patch(RHO, C, f", {C}", f", {RHO}"),
            g.patch(C, RHO),
            g.patch(RHO, C),
        ],
        hint=2,
    ),
    g.Mistake(
        "looks past the end of an episode",
        "After an end the next observation belongs to another episode. gamma counts as 0 there: in "
        "the error, in the product that carries later errors back, and in the advantage. ended[t] "
        "is that of step t, not of a step beside it.",
        [
            g.patch("gamma * (~ended)", "gamma * torch.ones_like(values)"),
            *g.patches(
                "gamma * (~ended)",
                "gamma * torch.cat([~ended[1:], torch.tensor([True])])",
                "gamma * torch.cat([torch.tensor([True]), ~ended[:-1]])",
            ),
            g.patch("delta[t] + discount[t] *", "delta[t] + gamma *"),
            g.patch("rewards + discount * next_values", "rewards + gamma * next_values"),
            g.patch("rewards + discount * next_v -", "rewards + gamma * next_v -"),
        ],
        hint=2,
    ),
    g.Mistake(
        "the advantage takes the critic's value of the next step",
        "The advantage compares with v_s+1, the corrected target of the next step: then it looks "
        "as far ahead as v does. With V_s+1 it would look one step ahead.",
        g.patch(ADVANTAGE, "rho * (rewards + discount * next_values - values)"),
        hint=2,
    ),
    g.Mistake(
        "the error of a step is not weighed by rho",
        "d_t has its rho: an error of a step that pi would hardly take counts little. c alone "
        "weighs how far errors reach back, not the errors.",
        [
            g.patch(DELTA, DELTA.removeprefix("rho * ")),
            g.patch(DELTA, DELTA.replace("rho", "c")),
        ],
        hint=2,
    ),
    g.Mistake(
        "the advantage is not weighed by rho",
        "The actor's gradient is an expectation over actions of mu, too. Each step's advantage has "
        "its rho.",
        [
            g.patch(ADVANTAGE, "rewards + discount * next_v - values"),
            g.patch(ADVANTAGE, "v - values"),
        ],
        hint=2,
    ),
    g.Mistake(
        "carries errors back with the wrong step's c",
        "The error of step t reaches step s by the c of steps s to t - 1, its own not included: "
        "in the recursion step s multiplies what comes after it by g_s c_s.",
        [
            g.patch(ABOVE, "above = delta[t] + discount[t] * (*c, 1.0)[t + 1] * above"),
            g.patch(ABOVE, "above = c[t] * (delta[t] + discount[t] * above)"),
        ],
        hint=3,
    ),
    g.Mistake(
        "counts the value after the last step twice",
        "The last step's error has V_T already. What is carried back is v - V of the step after, "
        "and that begins with 0.",
        [
            g.patch("torch.empty_like(values), 0.0", "torch.empty_like(values), last_value"),
            g.patch("* above", "* (v[t + 1] if t + 1 < len(v) else last_value)"),
        ],
        hint=3,
    ),
]

GRADER = g.Questions(
    cases=cases,
    right=right,
    same=g.within(64),
    mistakes=MISTAKES,
    closed=("labkit.rl",),
    shown="targets and advantages are those of the paper's sum, on-policy and far off it, with "
    "both limits and with ends anywhere",
)
