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
    logits.flatten(0, 1)[range(len(targets)), targets] += 5  # softmax - 1 is small there
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
    """Return the budget of two or more ranks.

    One more column is allowed, for a maximum beside the logits.
    """
    if s.n == 1:
        return g.Budget()
    N, widest = len(s.args[2]), max(s.xs[0].shape[1], 3 * s.n)
    return g.Budget(collectives=3, payload_bytes=12 * N, largest=N * (widest + 1))


HIGHEST = 'group.all_reduce(highest_N, op="max")'
SUMS = "torch.stack([exp_Nv.sum(1), target_N])"
LOGIT, ONE_LESS = "target_N[rows] = x_Nv[rows, columns]", "gradient_Nv[rows, columns] -= 1"
LOG, GRADIENT = "total_N.log()", "gradient_Nv / num_positions"
UNSHIFTED = LOGIT.replace("x_Nv", "logits_Nv.float()")
CLAMPED = "[range(num_positions), (targets_N - first).clamp(0, num_tokens - 1)]"

MISTAKES = [
    g.Mistake(
        "does not subtract the highest logit of each position",
        "exp(10,000) is infinite in float32, and exp(-10,000) is 0. Take the highest logit of each "
        'position, over all ranks (op="max"), off its logits before exp.',
        g.patch(f"x_Nv = x_Nv - {HIGHEST}[:, None]", "pass"),
        wrong=lambda s: not all(y[1].isfinite().all() for y in s.ys),
        hint=2,
    ),
    g.Mistake(
        "normalizes over its own shard",
        "Softmax is over the whole vocabulary. Reduce the maximum first, so that all ranks "
        "subtract the same number before exp, and then the sum of exp.",
        [
            g.patch(HIGHEST, "highest_N"),
            g.patch(HIGHEST, "highest_N", LOGIT, UNSHIFTED, LOG, f"{LOG} + highest_N"),
            g.patch(f"group.all_reduce({SUMS})", "exp_Nv.sum(1), group.all_reduce(target_N)"),
        ],
        hint=2,
    ),
    g.Mistake(
        "divides by another number than that of the positions",
        "Loss and gradient are those of the mean over N positions: both are divided by N. The "
        "positions are the same on all ranks, so nothing is divided by n.",
        [
            *g.patches(GRADIENT, "gradient_Nv", f"{GRADIENT} / group.size"),
            g.patch(".mean()", ".sum()"),
            g.patch(".mean()", ".sum()", GRADIENT, "gradient_Nv"),
            g.patch(f"{SUMS})", f'{SUMS}, op="mean")'),
        ],
        hint=3,
    ),
    g.Mistake(
        "has the wrong columns for targets",
        "A target is in one shard only, in column target - first. The other ranks add 0 to its "
        "logit, and subtract no 1 from any column of that position. `first` is an argument: it is "
        "not rank * v, since shards before this one may have one token more.",
        [
            g.patch(ONE_LESS, f"gradient_Nv{CLAMPED} -= 1"),
            g.patch(
                *(ONE_LESS, f"gradient_Nv{CLAMPED} -= 1"),
                *(LOGIT, f"target_N = logits_Nv.float(){CLAMPED}"),
                *(LOG, f"{LOG} + {HIGHEST}"),
            ),
            g.patch("< first", "<= first", "] - first", "].sub(first).clip(0, num_tokens - 1)"),
            g.patch("    rows = (", "    first = group.rank * num_tokens\n    rows = ("),
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
        "has another logit for the target",
        "The loss is log(sum of exp) - target's logit, with one maximum off both. One rank has "
        "that logit. The others add 0, and the sum over the ranks gives it to all of them.",
        [
            g.patch(f"group.all_reduce({SUMS})", "group.all_reduce(exp_Nv.sum(1)), target_N"),
            g.patch(LOGIT, UNSHIFTED),
        ],
        hint=3,
    ),
    g.Mistake(
        "crashes on an empty shard",
        "A shard may be (N, 0), without columns: its maximum counts as -inf, its sum as 0.",
        g.patch(" if num_tokens else x_Nv.new_full((num_positions,), -torch.inf)", ""),
        crashed=lambda s: any(not x.shape[1] for x in s.xs),
        hint=3,
    ),
    g.Mistake(
        "sends more than three numbers per position",
        "Reduce over this rank's tokens first. All that is needed from the other shards is the "
        "maximum, the sum of exp and the target's logit of each position.",
        g.patch("[exp_Nv.sum(1), target_N]))", "[exp_Nv.sum(1), target_N, target_N]))[:2]"),
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
