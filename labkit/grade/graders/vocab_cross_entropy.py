"""Grade vocab_cross_entropy: loss and gradient, 3 numbers per position, no tensor above a shard."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from labkit.grade import grader as g


def cases(n: int, draw: g.Draw) -> list[g.Case]:
    """Plain logits, large ones of either sign, other dtypes, and empty shards."""
    even = n * draw.rng.randrange(20, 30)
    uneven = even + (draw.rng.randrange(1, n) if n > 1 else 0)
    high, turns = torch.tensor([1e4]), torch.tensor([[1e4], [-1e4]])
    one_shard = 1000.0 * (torch.arange(even) >= even - even // n)
    return [
        case("float32", uneven, 0 * high, n, draw),
        case("logits around 10,000", even, high, n, draw),
        case("logits around -10,000", even, -high, n, draw),
        case("one shard 1,000 above the others", even, one_shard, n, draw),
        case("positions around 10,000 and -10,000", even, turns, n, draw),
        case("bfloat16", uneven, 0 * high, n, draw, torch.bfloat16),
        case("logits around -10,000", max(1, n - 1), -high, n, draw),
        case("float16", even, 0 * high, n, draw, torch.float16),
    ]


def case(
    label: str, V: int, level: Tensor, n: int, draw: g.Draw, dtype: torch.dtype = torch.float32
) -> g.Case:
    """The ends of each shard are among the targets: a number that is off by one shows there."""
    parts = torch.arange(V).tensor_split(n)
    ends = [int(part[i]) for part in parts if len(part) for i in (0, -1)]
    targets = ends + [draw.rng.randrange(V) for _ in range(2)]
    draw.rng.shuffle(targets)
    logits = 2 * draw.same(len(targets) // 2, 2, V) + level
    shards = g.ByRank(x.contiguous() for x in logits.flatten(0, 1).to(dtype).tensor_split(n, 1))
    firsts = g.ByRank(sum(map(len, parts[:rank])) for rank in range(n))
    return g.Case(f"V = {V}, {label}", shards, firsts, torch.tensor(targets))


def right(shards: g.ByRank, firsts: g.ByRank, targets_N: Tensor) -> g.ByRank:
    """One process with all logits, in float64."""
    shards_Nv = [x.double().requires_grad_() for x in shards]
    loss = cross_entropy(torch.cat(shards_Nv, 1), targets_N)
    loss.backward()
    return g.ByRank((loss.detach().float(), x.grad.to(shards[0].dtype)) for x in shards_Nv)


def same(got: Any, expected: Any, case: g.Case) -> bool:
    """Within some roundings of float32, at the size of the largest logit; a gradient's over N."""
    if not g.close(got, expected, steps=math.inf):  # types, shapes and dtypes
        return False
    shards, _, targets_N = case.args
    room = 2**-20 * (1 + max(float(x.abs().max()) for x in shards if x.numel()))
    return all(
        torch.allclose(x.double(), y.double(), torch.finfo(x.dtype).eps, room / size + 2**-24)
        for x, y, size in zip(got, expected, (1, len(targets_N)))
    )


def budget(s: g.Observed) -> g.Budget:
    """Of two or more ranks. One column more, for a maximum beside the logits, will do."""
    if s.n == 1:
        return g.Budget()
    N, widest = len(s.args[2]), max(s.xs[0].shape[1], 3 * s.n)
    return g.Budget(collectives=3, payload_bytes=12 * N, largest=N * (widest + 1))


HIGHEST = 'group.all_reduce(highest_N, op="max")'
BOTH = "group.all_reduce(torch.stack([exp_Nv.sum(1), target_N]))"
LOGIT, UNSHIFTED = "x_Nv[rows, columns]", "logits_Nv[rows, columns].float()"
ONE_LESS = "gradient_Nv[rows, columns] -= 1"
OWN_MAXIMUM = "total_N.log()", "total_N.log() + highest_N"
ALL_MAXIMUM = "total_N.log()", f"total_N.log() + {HIGHEST}"
OWN_FIRST = "    rows = (", "    first = group.rank * num_tokens\n    rows = ("
LOSS, GRADIENT = "return loss", "gradient_Nv / num_positions"
COLUMNS = ["(targets_N - first).clamp(0, num_tokens - 1)", "(targets_N - first) % num_tokens"]
PLACES = [f"[range(num_positions), {each}]" for each in COLUMNS]
OTHER_LOGITS = [(f"target_N[rows] = {LOGIT}", f"target_N = x_Nv{each}") for each in PLACES]
OTHER_ONES = [(ONE_LESS, f"gradient_Nv{each} -= 1") for each in PLACES]

MISTAKES = [
    g.Mistake(
        "does not subtract the highest logit of each position",
        "exp(10,000) is infinite in float32, and exp(-10,000) is 0. Take the highest logit of each "
        'position, over all ranks (op="max"), off its logits before exp.',
        g.patch(f"x_Nv = x_Nv - {HIGHEST}[:, None]", "pass"),
        seen=lambda s: not all(y[1].isfinite().all() for y in s.ys),
        hint=2,
    ),
    g.Mistake(
        "normalizes over its own shard",
        "Softmax is over the whole vocabulary. Reduce the maximum first, so that all ranks "
        "subtract the same number before exp, and then the sum of exp.",
        [
            g.patch(HIGHEST, "highest_N"),
            g.patch(HIGHEST, "highest_N", LOGIT, UNSHIFTED),
            g.patch(HIGHEST, "highest_N", LOGIT, UNSHIFTED, *OWN_MAXIMUM),
            g.patch(BOTH, "exp_Nv.sum(1), group.all_reduce(target_N)"),
            g.patch(BOTH, "exp_Nv.sum(1), target_N"),
            g.patch("exp_Nv / total_N[:, None]", "exp_Nv / exp_Nv.sum(1, keepdim=True)"),
        ],
        hint=2,
    ),
    g.Mistake(
        "does not divide by the number of positions",
        "The loss is the mean over the N positions, and the gradient is that of the mean: both are "
        "divided by N.",
        [
            g.patch(LOSS, f"{LOSS} * num_positions"),
            g.patch(LOSS, f"{LOSS} * num_positions", GRADIENT, "gradient_Nv"),
            g.patch(GRADIENT, "gradient_Nv"),
        ],
        hint=3,
    ),
    g.Mistake(
        "divides or multiplies by the number of ranks",
        'The sum of exp and the target\'s logit are sums over the ranks (op="sum"), and the '
        "positions are the same on all of them. Loss and gradient have no factor n.",
        [
            *(g.patch(LOSS, f"{LOSS} {f} group.size") for f in "*/"),
            *(g.patch(GRADIENT, f"{GRADIENT} {f} group.size") for f in "*/"),
            g.patch(BOTH, f'{BOTH[:-1]}, op="mean")'),
            g.patch("[exp_Nv.sum(1), target_N]", "[exp_Nv.sum(1), target_N / group.size]"),
            g.patch(LOGIT, f"{UNSHIFTED} / group.size", *ALL_MAXIMUM),
            g.patch("[exp_Nv.sum(1), target_N]", "[exp_Nv.sum(1) / group.size, target_N]"),
        ],
        hint=3,
    ),
    g.Mistake(
        "looks up targets of other shards",
        "A target is in one shard only. The other ranks add 0 to its logit, and subtract no 1 from "
        "any column of that position.",
        [
            *(g.patch(*logit) for logit in OTHER_LOGITS),
            *(g.patch(*one) for one in OTHER_ONES),
            *(g.patch(*logit, *one) for logit, one in zip(OTHER_LOGITS, OTHER_ONES)),
            *(
                g.patch(
                    *(f"target_N[rows] = {LOGIT}", f"target_N = logits_Nv.float(){place}"),
                    *ALL_MAXIMUM,
                    *one,
                )
                for place, one in zip(PLACES, OTHER_ONES)
            ),
        ],
        hint=3,
    ),
    g.Mistake(
        "takes rank * v for the shard's first token",
        "The first V % n ranks have one token more, so the shards before this one may be larger "
        "than its own. `first` is an argument.",
        [g.patch(*OWN_FIRST), g.patch(*OWN_FIRST, LOGIT, UNSHIFTED, *ALL_MAXIMUM)],
        hint=3,
    ),
    g.Mistake(
        "has another logit for the target",
        "The loss is log(sum of exp) - target's logit, with one maximum off both. One rank has "
        "that logit. The others add 0, and the sum over the ranks gives it to all of them.",
        [
            g.patch(BOTH, "group.all_reduce(exp_Nv.sum(1)), target_N"),
            g.patch(LOGIT, UNSHIFTED),
            g.patch(*ALL_MAXIMUM),
        ],
        hint=3,
    ),
    g.Mistake(
        "does not subtract one at the target",
        "The gradient is softmax / N, and (softmax - 1) / N at the target.",
        g.patch(ONE_LESS, "pass"),
        hint=2,
    ),
    g.Mistake(
        "crashes on an empty shard",
        "With fewer tokens than ranks a shard is (N, 0). It has no maximum and no columns. Its "
        "maximum counts as -inf, its sum as 0.",
        g.patch(" if num_tokens else x_Nv.new_full((num_positions,), -torch.inf)", ""),
        crashed=lambda s: any(not x.shape[1] for x in s.xs),
        hint=3,
    ),
    g.Mistake(
        "has a column that is not in the shard",
        "Targets are numbers in the whole vocabulary. The column is target - first, and only where "
        "first <= target < first + v. A negative column counts from the end of the shard.",
        [
            g.patch("targets_N[rows] - first", "targets_N[rows]"),
            g.patch("(first <= targets_N) & ", ""),
        ],
        crashed=lambda s: "out of" in s.error or "Class values" in s.error,
        hint=3,
    ),
    g.Mistake(
        "sends more than three numbers per position",
        "Reduce over this rank's tokens first. All that is needed from the other shards is the "
        "maximum, the sum of exp and the target's logit of each position.",
        g.patch(BOTH, "group.all_reduce(torch.stack([exp_Nv.sum(1)] + 2 * [target_N]))[:2]"),
        over_budget=lambda s: s.n > 1 and s.payload_bytes(0) > budget(s).payload_bytes,
    ),
]

GRADER = g.OnRanks(
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
