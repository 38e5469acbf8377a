"""Grade weighted_shares: the gradient of all tokens, from ranks with unequal numbers."""

import math

import torch
from torch import Tensor

from labkit.grade import grader as g

NONE = "no tokens on any rank"


def cases(n: int, draw: g.Draw) -> list[g.Case]:
    """Equal counts and unequal ones, large ones, and ranks that have none."""
    equal, unequal = [6] * n, [(rank + 1) * draw.rng.randrange(2, 9) for rank in range(n)]
    unequal[0] = sum(unequal) + 1  # no two weights are near each other
    draw.rng.shuffle(unequal)
    listed = [
        case(draw, "unequal counts", unequal, torch.float32),
        case(draw, "equal counts", equal, torch.float64),
        # Above float32's 2**24, where counts would be rounded; and float16 would overflow.
        case(
            draw, "tens of millions of tokens", [2**24 + 3 * r * r for r in unequal], torch.float64
        ),
        case(draw, "large numbers in float16", [4096 * each for each in unequal], torch.float16),
    ]
    if n > 1:
        without = list(unequal)
        without[draw.rng.randrange(n)] = 0
        listed.append(case(draw, "a rank without tokens", without, torch.float32))
        alone = [0] * n
        alone[draw.rng.randrange(n)] = 5
        listed.append(case(draw, "one rank has all tokens", alone, torch.float64))
    listed.append(case(draw, NONE, [0] * n, torch.float32))
    return listed


def case(draw: g.Draw, what: str, counts: list[int], dtype: torch.dtype) -> g.Case:
    """counts: tokens by rank."""
    size = 2.0**12 if dtype == torch.float16 else 8.0
    gradients = [
        (size * (1 + x.abs()) if count else x * math.nan).to(dtype)
        for x, count in zip(draw.normal(7, dtype=torch.float64), counts, strict=True)
    ]
    label = f"{what}: {', '.join(f'{each:,}' for each in counts)}, {str(dtype)[6:]}"
    return g.Case(label, g.ByRank(gradients), g.ByRank(counts))


def right(gradients: g.ByRank, counts: g.ByRank) -> Tensor:
    """Sum over all tokens, one rank after the other, in float64."""
    total = torch.zeros(gradients[0].shape, dtype=torch.float64)
    for gradient, count in zip(gradients, counts, strict=True):
        if count:
            total += count * gradient.double()
    return (total / max(1, sum(counts))).to(gradients[0].dtype)


def budget(s: g.Observed) -> g.Budget:
    """The gradient, and a number."""
    return g.Budget(collectives=2, payload_bytes=s.right[0].nbytes + 8)


COUNT = "total = int(group.all_reduce(count))"
ZEROS = "gradient = torch.zeros_like(gradient)"
WEIGHT = "num_tokens / max(1, total)"
SUM = "return group.all_reduce(gradient * weight)"
MISTAKES = [
    g.Mistake(
        "a mean of means",
        "All ranks count the same here, so a token of a slow rank, which has few, weighs more than "
        "a token of a fast one. Weigh each gradient by its tokens over the tokens of all ranks.",
        [
            g.patch(WEIGHT, "1 / group.size"),
            g.patch(WEIGHT, "1 / group.size", ZEROS, "pass"),
        ],
    ),
    g.Mistake(
        "the weights of a mean, and then a sum",
        "n times the share is the weight where a mean over ranks follows, as in DDP. all_reduce "
        "returns a sum, for which the weights add up to 1.",
        g.patch(WEIGHT, "group.size * num_tokens / max(1, total)"),
        hint=2,
    ),
    g.Mistake(
        "the counts are left in",
        "A sum of count times gradient is the gradient of a sum over tokens. Divide it by the "
        "tokens of all ranks.",
        g.patch(WEIGHT, "num_tokens"),
    ),
    g.Mistake(
        "divides by this rank's own tokens",
        "Each rank divides by another number, and replicas diverge. The tokens of all ranks are "
        "the same number everywhere, and need an all-reduce of their own.",
        g.patch(WEIGHT, "num_tokens", SUM, SUM + " / max(1, num_tokens)"),
        hint=2,
    ),
    g.Mistake(
        "nan times zero",
        "A weight of 0 does not remove nan: 0 * nan is nan, and the sum gives it to every rank. A "
        "rank without tokens sends zeros.",
        g.patch(ZEROS, "pass"),
        hint=3,
    ),
    g.Mistake(
        "counts ranks and not tokens",
        "Ranks without tokens have weight 0, but the others still differ in their weights. Divide "
        "by tokens, not by the number of ranks that have some.",
        g.patch(COUNT, "total = int(group.all_reduce((count > 0).long()))", WEIGHT, "1 / total"),
    ),
    g.Mistake(
        "rounds the counts",
        "bfloat16 holds whole numbers exactly up to 256, and float16 up to 2,048. Counts of tokens "
        "are larger: sum them as integers.",
        g.patch("dtype=torch.int64", "dtype=torch.bfloat16"),
        hint=3,
    ),
    g.Mistake(
        "count times gradient overflows in float16",
        "The product with a count of thousands is beyond 65,504 and becomes inf. Divide the count "
        "by the total first: that weight is at most 1.",
        [
            g.patch(SUM, "return group.all_reduce(gradient * num_tokens / max(1, total))"),
            g.patch(SUM, "return group.all_reduce(gradient * num_tokens) / max(1, total)"),
        ],
        hint=2,
    ),
    g.Mistake(
        "a rank without tokens skips the all-reduce",
        "All ranks make the same calls. A rank without tokens sends zeros, and needs the result "
        "for its own replica.",
        g.patch(ZEROS, "return torch.zeros_like(gradient)"),
        hung=lambda s: len({len(s.operations(rank)) for rank in range(s.n)}) > 1,
        hint=2,
    ),
    g.Mistake(
        "sends the gradient twice as wide",
        "Weights of at most 1 need no wider dtype on the wire: send the gradient in its own.",
        g.patch(SUM, "return group.all_reduce((gradient * weight).double()).to(gradient.dtype)"),
        over_budget=lambda s: s.payload_bytes(0) > budget(s).payload_bytes,
        hint=2,
    ),
]

GRADER = g.OnRanks(
    cases=cases,
    right=right,
    budget=budget,
    same=g.within(64),
    mistakes=MISTAKES,
    allowed=("all_reduce",),
    closed=("labkit.data_parallel",),
    shown="every rank has the gradient of the mean over all tokens, whatever their numbers are; a "
    "rank without tokens sends zeros, and the gradient travels once, in its own dtype",
)
