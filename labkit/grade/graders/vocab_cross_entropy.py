"""Grade vocab_cross_entropy: loss and gradient, 3 numbers per position, no tensor above a shard."""

import math
import re
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import one_hot

from labkit.grade.grader import (
    Budget,
    ByRank,
    Case,
    Draw,
    Mistake,
    Observed,
    OnRanks,
    Outcome,
    patch,
)

Tensor = torch.Tensor
HIGH, LARGE = 10_000.0, 500.0


def cases(n: int, draw: Draw) -> list[Case]:
    """Plain logits, large ones of either sign, other dtypes, and empty shards."""
    even = n * draw.rng.randrange(20, 30)
    uneven = even + (draw.rng.randrange(1, n) if n > 1 else 0)
    few = max(1, n - 1)
    zeros = torch.zeros(1, 1)
    one_shard = torch.zeros(1, even).index_fill_(1, torch.arange(even)[-even // n :], 1000.0)
    turns = HIGH * torch.tensor([[1.0], [-1.0]])
    return [
        case("float32", uneven, zeros, n, draw),
        case("logits around 10,000", even, zeros + HIGH, n, draw),
        case("logits around -10,000", even, zeros - HIGH, n, draw),
        case("one shard 1,000 above the others", even, one_shard, n, draw),
        case("positions around 10,000 and -10,000", even, turns, n, draw),
        case("bfloat16", uneven, zeros, n, draw, torch.bfloat16),
        case("logits around -10,000", few, zeros - HIGH, n, draw),
        case("float16", even, zeros, n, draw, torch.float16),
    ]


def case(
    label: str, V: int, offset: Tensor, n: int, draw: Draw, dtype: torch.dtype = torch.float32
) -> Case:
    """The ends of each shard are among the targets: a number that is off by one shows there."""
    parts = torch.arange(V).tensor_split(n)
    ends = [int(part[i]) for part in parts if len(part) for i in (0, -1)]
    targets = ends + [draw.rng.randrange(V) for _ in range(len(ends) % 2 + 2)]
    draw.rng.shuffle(targets)
    logits = 2 * draw.same(len(targets), V) + offset.repeat(len(targets) // len(offset), 1)
    shards = ByRank(x.contiguous() for x in logits.to(dtype).tensor_split(n, 1))
    firsts = ByRank(sum(map(len, parts[:rank])) for rank in range(n))
    return Case(f"V = {V}, {label}", shards, firsts, torch.tensor(targets))


def right(shards: ByRank, firsts: ByRank, targets_N: Tensor) -> ByRank:
    """One process with all logits, in float64."""
    x_NV = torch.cat(shards, 1).double().requires_grad_()
    loss = torch.nn.functional.cross_entropy(x_NV, targets_N)
    loss.backward()
    gradients = x_NV.grad.split([x.shape[1] for x in shards], 1)
    return ByRank(
        (loss.detach().float(), gradient.to(x.dtype)) for gradient, x in zip(gradients, shards)
    )


def same(got: Any, expected: Any, case: Case) -> bool:
    """Right but for rounding."""
    if not isinstance(got, tuple | list) or len(got) != 2:
        return False
    for one, other in zip(got, expected):
        if not isinstance(one, Tensor) or (one.shape, one.dtype) != (other.shape, other.dtype):
            return False
    return near(got[0], expected[0], case) and near(got[1], expected[1], case)


def near(got: Tensor, expected: Tensor, case: Case) -> bool:
    """Within some roundings of float32, at the size of the largest logit; a gradient's over N."""
    shards, _, targets_N = case.args
    largest = max(float(x.abs().max()) for x in shards if x.numel())
    room = 8 * torch.finfo(torch.float32).eps * (1 + largest) / (len(targets_N) if got.dim() else 1)
    off = (got.double() - expected.double()).abs()
    return bool((off <= room + 2**-24 + torch.finfo(got.dtype).eps * expected.double().abs()).all())


def budget(s: Observed) -> Budget:
    """Of two or more ranks."""
    num_positions = len(s.args[2])
    if s.n == 1:
        return Budget()
    return Budget(collectives=3, payload_bytes=12 * num_positions, largest=most(s))


def most(s: Observed) -> int:
    """Elements that a tensor may have; a column more, for a maximum beside the logits, will do."""
    return len(s.args[2]) * (max(s.xs[0].shape[1], 3 * s.n) + 1)


class Whole:
    """All logits in one process, in float64, and what mistakes are made of."""

    def __init__(self, s: Observed) -> None:
        shards, firsts, targets_N = s.args
        self.n, self.N = s.n, len(targets_N)
        self.shards = [x.double() for x in shards]
        self.x_NV = torch.cat(self.shards, 1)
        self.columns = [targets_N - first for first in firsts]
        self.hits_NV = one_hot(targets_N, self.x_NV.shape[1])
        self.softmax_NV = self.x_NV.softmax(1)
        self.gradient_NV = (self.softmax_NV - self.hits_NV) / self.N
        self.high_N, self.lse_N = self.x_NV.amax(1), self.x_NV.logsumexp(1)
        self.target_N = self.x_NV[self.hits_NV.bool()]
        self.loss = (self.lse_N - self.target_N).mean()

    def cut(self, x_NV: Tensor) -> list[Tensor]:
        """Columns of each rank."""
        return list(x_NV.split([x.shape[1] for x in self.shards], 1))

    def losses(self, *losses: Tensor) -> list[list[Tensor]]:
        """The same loss on all ranks, several choices."""
        return [[loss] * self.n for loss in losses]


def gives(idea: Callable[[Whole], list[list[Tensor]]]) -> Callable[[Observed], bool]:
    """Whether losses, or gradients, are wrong, and one of the idea's, by rank."""

    def seen(s: Observed) -> bool:
        for values in idea(Whole(s)):
            part = int(values[0].dim() > 0)
            is_right = all(near(y[part], r[part], s.case) for y, r in zip(s.ys, s.right))
            if not is_right and all(near(y[part], v, s.case) for y, v in zip(s.ys, values)):
                return True
        return False

    return seen


def own_maximum(w: Whole) -> list[list[Tensor]]:
    """Each rank takes off the maximum of its own logits."""
    exps = [(x - x.amax(1, keepdim=True)).exp() for x in w.shards]
    total = sum(exp.sum(1, keepdim=True) for exp in exps)
    return [[(exp / total - hit) / w.N for exp, hit in zip(exps, w.cut(w.hits_NV))]]


def factor_of_ranks(w: Whole) -> list[list[Tensor]]:
    """A factor of n in the loss, the gradient, the sum of exp or the target's logit."""
    targets = [(w.lse_N - off - (w.target_N - off) / w.n).mean() for off in (0, w.high_N)]
    losses = w.losses(w.loss / w.n, w.loss * w.n, w.loss - math.log(w.n), *targets)
    return losses + [w.cut(w.gradient_NV * f) for f in (w.n, 1 / w.n)]


def own_target(w: Whole) -> list[list[Tensor]]:
    """A rank without the target takes 0 for its logit."""
    return [
        [(w.lse_N - off - hit.sum(1) * (w.target_N - off)).mean() for hit in w.cut(w.hits_NV)]
        for off in (0, w.high_N)
    ]


def looked_up(w: Whole) -> list[list[Tensor]]:
    """A rank without the target takes another column, for the logit or for the gradient."""
    ways: list[Callable[[Tensor, int], Tensor]] = [
        lambda i, size: i.clamp(0, size - 1),
        lambda i, size: torch.where((i >= 0) & (i < size), i, 0),
        lambda i, size: i % size,
    ]
    found = []
    for way in ways:
        columns = [way(i, x.shape[1])[:, None] for i, x in zip(w.columns, w.shards)]
        logits_N = sum(x.gather(1, i)[:, 0] for x, i in zip(w.shards, columns))
        found += w.losses(*((w.lse_N - logits_N + f * w.high_N).mean() for f in (0, w.n - 1)))
        ones = [one_hot(i[:, 0], x.shape[1]) for x, i in zip(w.shards, columns)]
        found += [[(p - one) / w.N for p, one in zip(w.cut(w.softmax_NV), ones)]]
    return found


def overflows(s: Observed) -> bool:
    """Whether a gradient has inf or NaN where logits are large."""
    is_large = max(float(x.abs().max()) for x in s.xs if x.numel()) > LARGE
    return is_large and not all(y[1].isfinite().all() for y in s.ys)


def is_rounded(s: Observed) -> bool:
    """Whether the results are right to two digits, of logits in 16 bits."""
    pairs = [pair for y, r in zip(s.ys, s.right) for pair in zip(y, r)]
    is_nearly = all((x - v).abs().max() < 0.03 * v.abs().max() for x, v in pairs)
    is_half = s.xs[0].dtype != torch.float32 and all(x.dtype == v.dtype for x, v in pairs)
    return is_half and is_nearly


HIGHEST = 'group.all_reduce(highest_N, op="max")'
BOTH = "group.all_reduce(torch.stack([exp_Nv.sum(1), target_N]))"
ROWS = "((first <= targets_N) & (targets_N < first + num_tokens)).nonzero().flatten()"
ONE_LESS = "gradient_Nv[rows, columns] -= 1"

MISTAKES = [
    Mistake(
        "does not subtract the highest logit of each position",
        "exp(10,000) is infinite in float32, and exp(-10,000) is 0. Take the highest logit of each "
        'position, over all ranks (op="max"), off its logits before exp.',
        hint=2,
        seen=overflows,
        made_by=patch(f"x_Nv = x_Nv - {HIGHEST}[:, None]", "pass"),
    ),
    Mistake(
        "subtracts the maximum of its own shard",
        "The ranks then sum exp(x - max) with different max. Reduce the maximum first, so that all "
        "ranks subtract the same number.",
        hint=2,
        seen=gives(own_maximum),
        made_by=patch(HIGHEST, "highest_N"),
    ),
    Mistake(
        "normalizes over its own shard",
        "Softmax divides by the sum of exp over the whole vocabulary. Sum it over the ranks.",
        hint=2,
        seen=gives(
            lambda w: [[(x.softmax(1) - hit) / w.N for x, hit in zip(w.shards, w.cut(w.hits_NV))]]
        ),
        made_by=patch(BOTH, "exp_Nv.sum(1), group.all_reduce(target_N)"),
    ),
    Mistake(
        "multiplies or divides by the number of ranks",
        "Sums of exp and target logits are summed over the ranks. Then every rank has the whole "
        "loss and its own part of the gradient: nothing is left to sum or to average.",
        hint=3,
        seen=gives(factor_of_ranks),
        made_by=patch("return loss,", "return loss / group.size,"),
    ),
    Mistake(
        "does not sum the target's logit over the ranks",
        "One rank has the target's logit. The others add 0, and the sum over the ranks gives it to "
        "all of them.",
        hint=2,
        seen=gives(own_target),
        made_by=patch(BOTH, "group.all_reduce(exp_Nv.sum(1)), target_N"),
    ),
    Mistake(
        "looks up targets of other shards",
        "A target is in one shard only. The other ranks add 0 to its logit, and subtract no 1 from "
        "any column of that position.",
        hint=3,
        seen=gives(looked_up),
        made_by=patch(
            *(ROWS, "torch.arange(num_positions if num_tokens else 0)"),
            *("targets_N[rows] - first", "(targets_N[rows] - first).clamp(0, num_tokens - 1)"),
        ),
    ),
    Mistake(
        "takes the maximum off one of the two",
        "The loss is log(sum of exp) - target's logit. If the maximum is off one of them, it must "
        "be off the other: then it cancels.",
        hint=3,
        seen=gives(lambda w: w.losses(w.loss - w.high_N.mean(), w.loss + w.high_N.mean())),
        made_by=patch("x_Nv[rows, columns]", "logits_Nv[rows, columns].float()"),
    ),
    Mistake(
        "does not divide by the number of positions",
        "The loss is the mean over the N positions. Both the loss and the gradient are divided by "
        "N.",
        hint=3,
        seen=gives(lambda w: w.losses(w.loss * w.N) + [w.cut(w.gradient_NV * w.N)]),
        made_by=patch("gradient_Nv / num_positions", "gradient_Nv"),
    ),
    Mistake(
        "does not subtract one at the target",
        "The gradient is softmax / N, and (softmax - 1) / N at the target.",
        hint=2,
        seen=gives(lambda w: [w.cut(w.softmax_NV / w.N)]),
        made_by=patch(ONE_LESS, "pass"),
    ),
    Mistake(
        "computes in the dtype of the logits",
        "The result is nearly right. A bfloat16 sum of exp loses its small terms: compute in "
        "float32, and convert only the gradient back.",
        hint=3,
        seen=is_rounded,
        made_by=patch("logits_Nv.float()", "logits_Nv", "return loss,", "return loss.float(),"),
    ),
    Mistake(
        "crashes on an empty shard",
        "With fewer tokens than ranks a shard is (N, 0). It has no maximum and no columns. Its "
        "maximum counts as -inf, its sum as 0.",
        hint=3,
        outcome=Outcome.CRASHED,
        seen=lambda s: any(not x.shape[1] for x in s.xs),
        made_by=patch(" if num_tokens else x_Nv.new_full((num_positions,), -torch.inf)", ""),
    ),
    Mistake(
        "takes a target for a column of the shard",
        "Targets are numbers in the whole vocabulary. The column is target - first, where "
        "first <= target < first + v.",
        hint=3,
        outcome=Outcome.CRASHED,
        seen=lambda s: (
            all(x.shape[1] for x in s.xs)
            and re.search("out of (bounds|range)|Class values", s.error) is not None
        ),
        made_by=patch("targets_N[rows] - first", "targets_N[rows]"),
    ),
    Mistake(
        "sends more than three numbers per position",
        "Reduce over this rank's tokens first. All that is needed from the other shards is the "
        "maximum, the sum of exp and the target's logit of each position.",
        outcome=Outcome.OVER_BUDGET,
        seen=lambda s: s.n > 1 and s.payload_bytes(0) > 12 * len(s.args[2]),
        made_by=patch(BOTH, "group.all_reduce(torch.stack([exp_Nv.sum(1)] + 2 * [target_N]))[:2]"),
    ),
    Mistake(
        "calls more than three collectives",
        "A maximum, a sum of exp and a target's logit per position are enough. Send all positions "
        "together: each call pays a latency.",
        outcome=Outcome.OVER_BUDGET,
        seen=lambda s: (
            s.n > 1 and 12 * len(s.args[2]) >= s.payload_bytes(0) and s.num_collectives(0) > 3
        ),
        made_by=patch(HIGHEST, "torch.stack([group.all_reduce(x, 'max') for x in highest_N])"),
    ),
    Mistake(
        "makes room for the whole vocabulary",
        "A tensor is larger than a shard. With 128,256 tokens and 32,768 positions it would have "
        "16.8 GB. Compute with this rank's columns only.",
        outcome=Outcome.OVER_BUDGET,
        seen=lambda s: (
            s.n > 1
            and 12 * len(s.args[2]) >= s.payload_bytes(0)
            and max(seen.largest for seen in s.ranks) > most(s)
        ),
        made_by=patch(
            ONE_LESS,
            "one_hot = torch.nn.functional.one_hot(targets_N, 1000)\n"
            "    gradient_Nv -= one_hot[:, first : first + num_tokens]",
        ),
    ),
]

GRADER = OnRanks(
    name="vocab_cross_entropy",
    cases=cases,
    right=right,
    same=same,
    budget=budget,
    mistakes=MISTAKES,
    allowed=("all_reduce", "all_gather"),
    closed=("labkit.tensor_parallel",),
    watch_memory=True,
    world_sizes=(3, 2, 1),
    shown="loss and gradient are those of one process with all logits, for large ones, in three "
    "dtypes and with empty shards; 3 numbers per position travel, and no tensor exceeds a shard",
)
