"""Grade grpo_loss: the loss and its gradient, against sums over single tokens."""

import math
from typing import Any

import torch
from torch import Tensor

from labkit.grade import grader as g


def cases(draw: g.Draw) -> list[g.Case]:
    """One version and one length first; then versions, lengths and groups that differ."""
    return [
        batch(draw, "one version, equal lengths", [2, 2], [4, 4, 4, 4], 1),
        batch(draw, "two versions", [2, 2], [3, 3, 3, 3], 2),
        batch(draw, "answers of different lengths", [3, 3], [1, 6, 3, 2, 5, 4], 1),
        batch(draw, "groups of different sizes", [2, 4, 3], [3, 1, 4, 2, 5, 3, 2, 6, 1], 3),
        batch(draw, "groups that are not neighbours", [3, 3], [2, 5, 3, 4, 1, 6], 3, shuffled=True),
        batch(draw, "a group of one, an answer without tokens", [1, 3], [3, 0, 4, 2], 2),
        batch(draw, "one token in all", [2], [0, 1], 3),
    ]


def batch(
    draw: g.Draw,
    label: str,
    groups: list[int],
    lengths: list[int],
    num_versions: int,
    shuffled: bool = False,
) -> g.Case:
    """Answers with a prompt before them and padding behind; ratios on both sides of the clip."""
    B, T = len(lengths), 2 + max(lengths) + 1

    def normal(*shape: int) -> Tensor:
        return draw.same(*shape, dtype=torch.float64)

    prompts = [number for number, size in enumerate(groups) for _ in range(size)]
    if shuffled:
        draw.rng.shuffle(prompts)
        prompts = prompts if prompts != sorted(prompts) else prompts[::2] + prompts[1::2]
    mask_BT = torch.zeros(B, T, dtype=torch.bool)
    versions_BT = torch.zeros(B, T, dtype=torch.int64)
    for row, length in enumerate(lengths):
        mask_BT[row, 2 : 2 + length] = True
        for place in range(length):  # versions only grow within an answer
            versions_BT[row, 2 + place] = min(num_versions - 1, place * num_versions // length)
    log_probs_BT = -normal(B, T).abs() - 0.1
    old_VBT = log_probs_BT + 0.35 * normal(num_versions + 1, B, T)
    rewards_B = torch.tensor([float(draw.rng.randrange(5)) for _ in range(B)], dtype=torch.float64)
    rewards_B[0] += 0.5  # not all equal
    more = (rewards_B, torch.tensor(prompts), mask_BT, draw.rng.choice((0.1, 0.2, 0.3)))
    return g.Case(label, log_probs_BT, old_VBT, versions_BT, *more)


def call(watch: Any, args: tuple[Any, ...]) -> tuple[Tensor, Tensor]:
    """Return the loss, and its gradient with respect to the log-probabilities."""
    log_probs_BT = args[0].clone().requires_grad_()
    loss = watch.function(log_probs_BT, *args[1:])
    if loss.requires_grad:
        loss.backward()
    gradient_BT = log_probs_BT.grad
    return loss.detach(), torch.zeros_like(log_probs_BT) if gradient_BT is None else gradient_BT


def right(
    log_probs_BT: Tensor,
    old_VBT: Tensor,
    versions_BT: Tensor,
    rewards_B: Tensor,
    prompts_B: Tensor,
    mask_BT: Tensor,
    clip: float,
) -> tuple[Tensor, Tensor]:
    """Token by token, with the gradient written out: r A where the clip does not hold, else 0."""
    rewards, prompts = rewards_B.tolist(), prompts_B.tolist()
    loss, gradient_BT, count = 0.0, torch.zeros_like(log_probs_BT), int(mask_BT.sum())
    for row, place in mask_BT.nonzero().tolist():
        mine = [reward for reward, p in zip(rewards, prompts) if p == prompts[row]]
        mean = sum(mine) / len(mine)
        deviation = math.sqrt(sum((each - mean) ** 2 for each in mine) / len(mine))
        advantage = (rewards[row] - mean) / (deviation + 1e-4)
        old = old_VBT[int(versions_BT[row, place]), row, place]
        ratio = math.exp(float(log_probs_BT[row, place] - old))
        clipped = min(max(ratio, 1 - clip), 1 + clip)
        loss -= min(ratio * advantage, clipped * advantage) / count
        if ratio * advantage <= clipped * advantage:
            gradient_BT[row, place] = -ratio * advantage / count
    return torch.tensor(loss, dtype=torch.float64), gradient_BT


OLD = "old_VBT.gather(0, versions_BT[None])[0]"
GROUP = "group = prompts_B == prompt"
RATIO = "(log_probs_BT - old_BT).where(mask_BT, 0.0).exp()"
MEAN = "losses_BT.sum() / mask_BT.sum()"
MASKED = ").where(mask_BT, 0.0)\n"
MISTAKES = [
    g.Mistake(
        "takes the ratio against log-probabilities that were computed again",
        "The trainer's own policy before this step did not sample these tokens, where an older "
        "version did. The clip must be anchored to the policy that generated each token.",
        [
            g.patch(OLD, "log_probs_BT.detach()"),
            g.patch(OLD, "old_VBT[-1]"),
        ],
    ),
    g.Mistake(
        "has the version of tokens off by one",
        "versions_BT counts as old_VBT does: old_VBT[v] belongs to version v, and version 0 is the "
        "first. An update that has just been made belongs to the next tokens only.",
        [
            g.patch(OLD, "old_VBT.gather(0, versions_BT[None] + 1)[0]"),
            g.patch(OLD, "old_VBT.gather(0, (versions_BT[None] - 1).clamp(min=0))[0]"),
            g.patch(OLD, "old_VBT.gather(0, (versions_BT[None] - 1) % len(old_VBT))[0]"),
        ],
        hint=3,
    ),
    g.Mistake(
        "takes one version for a whole answer",
        "The ratio is a token's. An answer that was interrupted by an update has tokens of several "
        "versions, and each has the log-probability of its own.",
        [
            g.patch(
                OLD,
                "old_VBT.gather(0, versions_BT.amax(1, keepdim=True).expand_as("
                "versions_BT)[None])[0]",
            ),
            g.patch(OLD, "old_VBT[0]"),
        ],
        hint=2,
    ),
    g.Mistake(
        "compares answers to different prompts",
        "The baseline of an answer is the mean reward of answers to the same prompt. The batch's "
        "mean punishes hard prompts, and neighbours need not be a group: prompts_B says which are.",
        [
            g.patch(GROUP, "group = prompts_B >= 0"),
            g.patch(
                *(
                    GROUP,
                    "size = len(prompts_B) // len(prompts_B.unique())\n"
                    "        group = torch.arange(len(prompts_B)) // size == prompt",
                ),
            ),
        ],
    ),
    g.Mistake(
        "counts masked tokens",
        "Prompts and padding were not sampled: they have no loss, and are not in the number that "
        "the sum is divided by.",
        [
            g.patch(MEAN, "losses_BT.mean()"),
            g.patch(
                "clipped_BT" + MASKED,
                "clipped_BT)\n",
                "old_BT" + MASKED[:-1],
                "old_BT)",
                MEAN,
                "losses_BT.mean()",
            ),
            g.patch("clipped_BT" + MASKED, "clipped_BT)\n", "old_BT" + MASKED[:-1], "old_BT)"),
        ],
        hint=2,
    ),
    g.Mistake(
        "takes a mean of means",
        "A mean over each answer first, and then over answers, gives a token of a long answer less "
        "weight than one of a short answer. The contract has one mean, over all tokens.",
        [
            g.patch(MEAN, "(losses_BT.sum(1) / mask_BT.sum(1).clamp(min=1)).mean()"),
            g.patch(MEAN, "(losses_BT.sum(1) / mask_BT.sum(1))[mask_BT.any(1)].mean()"),
        ],
    ),
    g.Mistake(
        "divides by another number than that of all tokens",
        "One count divides everything: the tokens of answers in the batch. With the number of "
        "answers, or with none, the step grows with their length.",
        [
            g.patch(MEAN, "losses_BT.sum(1).mean()"),
            g.patch(MEAN, "losses_BT.sum() / mask_BT.any(1).sum()"),
            g.patch(MEAN, "losses_BT.sum()"),
        ],
    ),
    g.Mistake(
        "takes one ratio for a whole answer",
        "Each token has its own ratio and its own clip. The ratio of a sequence, or its root by "
        "the number of tokens, belongs to another algorithm (GSPO).",
        [
            g.patch(
                RATIO,
                "((log_probs_BT - old_BT) * mask_BT).sum(1, keepdim=True)"
                ".exp().expand(*mask_BT.shape)",
            ),
            g.patch(
                RATIO,
                "(((log_probs_BT - old_BT) * mask_BT).sum(1, keepdim=True)"
                " / mask_BT.sum(1, keepdim=True).clamp(min=1)).exp().expand(*mask_BT.shape)",
            ),
        ],
        hint=2,
    ),
    g.Mistake(
        "multiplies by the log-probability",
        "PPO's loss has the ratio itself. Its gradient is the ratio times that of the "
        "log-probability. A constant ratio times the log-probability is another loss (CISPO), "
        "which drops no gradient where the clip holds.",
        [
            g.patch("-torch.minimum(gain_BT, clipped_BT)", "-(clipped_BT.detach() * log_probs_BT)"),
            g.patch("-torch.minimum(gain_BT, clipped_BT)", "-(gain_BT.detach() * log_probs_BT)"),
        ],
        hint=3,
    ),
    g.Mistake(
        "clips without the minimum",
        "The minimum keeps the gradient where the ratio is on the wrong side: a good token that "
        "has become too rare must be able to recover. With the clip alone its gradient is 0.",
        [
            g.patch("torch.minimum(gain_BT, clipped_BT)", "clipped_BT"),
            g.patch("torch.minimum(", "torch.maximum("),
        ],
        hint=3,
    ),
    g.Mistake(
        "turns the ratio or the sign round",
        "The ratio is new over old: exp(new - old). A loss is minimised, so it is minus the gain.",
        [
            g.patch("(log_probs_BT - old_BT)", "(old_BT - log_probs_BT)"),
            g.patch("-torch.minimum(", "torch.minimum("),
        ],
        hint=3,
    ),
    g.Mistake(
        "has another deviation",
        "Divide by the root of the mean square distance from the group's mean, and add 1e-4. The "
        "deviation of a sample divides by one less, and has no value for a group of one.",
        [
            g.patch("distances.square().mean().sqrt()", "rewards_B[group].std()"),
            g.patch("distances / (deviation + 1e-4)", "distances"),
            g.patch("distances.square().mean().sqrt()", "distances.square().mean()"),
        ],
        hint=3,
    ),
]

GRADER = g.Questions(
    cases=cases,
    right=right,
    call=call,
    same=g.within(1e5),
    mistakes=MISTAKES,
    closed=("labkit.rl",),
    shown="loss and gradient of GRPO, with tokens of several versions, groups of any size and "
    "order, answers of any length, and one mean over all tokens",
)
