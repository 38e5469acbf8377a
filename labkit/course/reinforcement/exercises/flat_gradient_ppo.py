"""Grade flat_gradient_ppo: the gradient of one process with all samples, in two all-reduces."""

from typing import Any

import torch
from torch import Tensor, nn

from labkit.grade import grader as g

OBSERVATION, HIDDEN, ACTIONS = 3, 5, 4
FEW = "shares that differ, one rank has none"


def cases(n: int, draw: g.Draw) -> list[g.Case]:
    """Equal shares and uneven ones; policies near the one that acted, and far from it."""
    uneven = [draw.rng.randrange(5, 12) + 7 * rank for rank in range(n)]
    draw.rng.shuffle(uneven)
    listed = [
        case(draw, "equal shares, the policy that acted", [16] * n, 0.0),
        case(draw, "equal shares, a newer policy", [24] * n, 0.5),
        case(draw, "shares that differ", uneven, 0.5),
        case(draw, "shares that differ, a tight clip", uneven, 0.3, clip=0.05),
    ]
    if n > 1:
        empty = draw.rng.randrange(n)
        shares = [0 if rank == empty else each for rank, each in enumerate(uneven)]
        listed.append(case(draw, FEW, shares, 0.4))
    return listed


def case(draw: g.Draw, what: str, shares: list[int], spread: float, clip: float = 0.2) -> g.Case:
    """shares: samples by rank. spread: of the log-ratios."""
    weights = [draw.same(*x.shape, dtype=torch.float64) / 2 for x in Policy().parameters()]
    policy, samples = filled(weights), []
    for rank, num_samples in enumerate(shares):
        x = draw.same(num_samples, OBSERVATION, dtype=torch.float64)
        actions = torch.tensor([draw.rng.randrange(ACTIONS) for _ in range(num_samples)]).long()
        with torch.no_grad():
            now = policy(x).gather(1, actions[:, None])[:, 0]
        before = now + spread * draw.same(num_samples, dtype=torch.float64)
        # The ranks' means differ, as those of different environments do.
        advantages = (1 + rank) * draw.same(num_samples, dtype=torch.float64) + 3 * rank
        samples.append((x, actions, before, advantages))
    columns = [g.ByRank(column) for column in zip(*samples)]
    label = f"{what}: {', '.join(map(str, shares))} samples, clip {clip}"
    return g.Case(label, weights, *columns, clip)


class Policy(nn.Module):
    """Log-probabilities by one hidden layer."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(OBSERVATION, HIDDEN).double()
        self.output = nn.Linear(HIDDEN, ACTIONS).double()

    def forward(self, x: Tensor) -> Tensor:
        """(N, O) -> (N, A)."""
        return self.output(self.hidden(x).tanh()).log_softmax(-1)


def filled(weights: list[Tensor]) -> Policy:
    """Return a policy with these parameters."""
    policy = Policy()
    with torch.no_grad():
        for parameter, weight in zip(policy.parameters(), weights):
            parameter.copy_(weight)
    return policy


def call(watch: Any, args: tuple[Any, ...]) -> dict[str, Any]:
    """Return the gradients, and whether a parameter has changed."""
    weights, *samples, clip = args
    policy = filled(weights)
    watch.function(policy, *samples, clip, watch.group)
    is_changed = not all(map(torch.equal, policy.parameters(), weights))
    return {name: x.grad for name, x in policy.named_parameters()} | {"changed": is_changed}


def right(weights: list[Tensor], *columns: Any) -> dict[str, Any]:
    """Return the gradients of one process with all samples, sample by sample."""
    *by_rank, clip = columns
    x, actions, before, advantages = (torch.cat(list(each)) for each in by_rank)
    policy = filled(weights)
    gains = (advantages - advantages.mean()) / (advantages.std(correction=0) + 1e-8)
    losses = []
    for row, action, old, gain in zip(policy(x), actions, before, gains):
        ratio = row[action].exp() / old.exp()
        # Beyond the limit, in the direction that pays, there is no gradient.
        beyond = ratio > 1 + clip if gain > 0 else ratio < 1 - clip
        losses.append(-gain * (ratio.detach() if beyond else ratio))
    torch.stack(losses).mean().backward()
    return {name: p.grad for name, p in policy.named_parameters()} | {"changed": False}


def budget(s: g.Observed) -> g.Budget:
    """Two all-reduces: three numbers, and all gradients."""
    return g.Budget(collectives=2, payload_bytes=flat_bytes(s) + 24)


def flat_bytes(s: g.Observed) -> int:
    """Return the bytes of all gradients."""
    return sum(x.nbytes for x in s.right[0].values() if isinstance(x, Tensor))


STATISTICS = "count, total, squares = group.all_reduce(torch.stack(sums))"
NORMAL = "advantages = (advantages - mean) / (deviation + 1e-8)"
BACKWARD = "(-gain.sum() / count).backward()"
GAIN = "torch.minimum(ratio * advantages, clipped * advantages)"
FLAT = "    group.all_reduce(flat, out=flat)\n"
OWN = "own = max(1, len(actions))\n    "
MISTAKES = [
    g.Mistake(
        "normalises by the rank's own mean",
        "With its own mean and deviation each rank judges its samples by themselves: the worst "
        "rank's best action looks as good as the best rank's. Sum up count, sum and squares over "
        "the ranks, and compute both from these.",
        [
            g.patch(
                STATISTICS,
                "_, total, squares = torch.stack(sums)\n"
                "    count = torch.tensor(float(max(1, len(actions))))",
                BACKWARD,
                "everyone = group.all_reduce(sums[0])\n    (-gain.sum() / everyone).backward()",
            ),
            g.patch(
                "mean = total / count",
                f"{OWN}mean = sums[1] / own",
                "(squares / count",
                "(sums[2] / own",
            ),
        ],
    ),
    g.Mistake(
        "normalises otherwise",
        "Subtract the mean of all samples, and divide by the root of their mean squared difference "
        "from it. The deviation of a sample divides by one less. Advantages that are not "
        "normalised make the step as long as the rewards are large.",
        [
            g.patch("(squares / count - mean**2)", "((squares - count * mean**2) / (count - 1))"),
            g.patch(f"    {NORMAL}\n", ""),
            g.patch(NORMAL, "advantages = advantages - mean"),
            g.patch(NORMAL, "advantages = advantages / (deviation + 1e-8)"),
        ],
        hint=3,
    ),
    g.Mistake(
        "averages the ranks' means",
        "Ranks with few samples would count as much as those with many. Divide each rank's sum by "
        "the number of all samples, and add up.",
        g.patch(BACKWARD, f"{OWN}(-gain.sum() / own / group.size).backward()"),
        hint=2,
    ),
    g.Mistake(
        "divides by another number than that of all samples",
        "The loss is a mean over all samples of all ranks: one division, by their number. A sum "
        "of means over ranks, or a mean of sums, has a gradient of another length, and the clip of "
        "its norm hides it.",
        [
            g.patch(BACKWARD, "(-gain.sum()).backward()"),
            g.patch(BACKWARD, "(-gain.sum() / count / group.size).backward()"),
            g.patch(BACKWARD, f"{OWN}(-gain.sum() / own).backward()"),
        ],
        hint=2,
    ),
    g.Mistake(
        "takes the clipped term alone",
        "Where the ratio has left the interval, the clipped term has no gradient: an action that "
        "became too likely and turned out bad could not be corrected. The minimum keeps that "
        "gradient, and drops only the one that would go further.",
        g.patch(GAIN, "clipped * advantages"),
        hint=2,
    ),
    g.Mistake(
        "does not clip",
        "Without the clip, later epochs over the same samples move the policy as far as they like "
        "from the one that acted.",
        g.patch(GAIN, "ratio * advantages"),
    ),
    g.Mistake(
        "takes the maximum",
        "PPO's bound is pessimistic: the smaller of the two gains counts. As a loss, with the sign "
        "turned, it is the larger of the two losses.",
        g.patch("torch.minimum", "torch.maximum"),
        hint=3,
    ),
    g.Mistake(
        "walks away from good actions",
        "The gain is to grow, and an optimizer makes the loss smaller: the loss is minus the gain.",
        g.patch("-gain.sum()", "gain.sum()"),
        hint=3,
    ),
    g.Mistake(
        "turns the ratio around",
        "The ratio is the probability now over the one when the action was taken: the exponential "
        "of log-probability now minus the recorded one.",
        g.patches("(now - log_probs).exp()", "(log_probs - now).exp()", "1 + now - log_probs"),
        hint=3,
    ),
    g.Mistake(
        "gradients stay the rank's own",
        "Each rank has the gradient of its own samples. Without the sum over the ranks their "
        "policies differ after the first step, and nothing raises an error.",
        [
            g.patch(FLAT, ""),
            g.patch(", out=flat)", ")"),
        ],
    ),
    g.Mistake(
        "a rank without samples does not take part",
        "All ranks make the same all-reduces. A rank without samples sends zeros for its counts, "
        "and zero gradients: the sum over no samples has a gradient, which is 0.",
        g.patch("    sums = [", "    if not len(actions):\n        return\n    sums = ["),
        hung=lambda s: len({len(s.operations(rank)) for rank in range(s.n)}) > 1,
        hint=2,
    ),
    g.Mistake(
        "sends a message per parameter",
        "Small messages cost latency each. All gradients fit into one flat tensor: join them, sum "
        "them, and cut the sum.",
        g.patch(
            FLAT,
            "",
            "parameter.grad = part.view_as(parameter)",
            "parameter.grad = group.all_reduce(part.view_as(parameter))",
        ),
        over_budget=lambda s: s.num_collectives(0) > 2,
    ),
]

GRADER = g.OnRanks(
    cases=cases,
    right=right,
    call=call,
    budget=budget,
    same=g.within(1000),
    mistakes=MISTAKES,
    allowed=("all_reduce",),
    world_sizes=(3, 2, 1),
    closed=("labkit.rl", "labkit.data_parallel"),
    shown="every rank has the gradient of one process with all samples, with shares that differ "
    "and with none, in one message of gradients and one of three numbers",
)
