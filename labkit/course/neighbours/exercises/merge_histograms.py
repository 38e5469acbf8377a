"""Grade merge_histograms: the split of all rows, its ties, missing values, and bytes."""

from collections.abc import Iterator
from fractions import Fraction

import torch
from torch import Tensor

from labkit.grade import grader as g


def cases(n: int, draw: g.Draw) -> list[g.Case]:
    """Unequal shards, an empty one, missing values that belong left, ties, and no gain at all."""
    rng = draw.rng
    uneven = rng.sample(range(4, 20), n)
    with_empty = [*uneven[:-1], 0] if n > 1 else uneven
    mixed = rng.choice((0.5, 3.0))
    return [
        case(draw, "present values", uneven, 5, 4, mixed, missing=0.0),
        case(draw, "a third of the values is missing", uneven, 5, 4, mixed),
        case(draw, "missing values", rng.sample(range(4, 20), n), 7, 6, mixed),
        case(draw, "missing values whose rows resemble low bins", uneven, 3, 4, mixed, resembles=0),
        case(
            draw, "missing values whose rows resemble high bins", uneven, 3, 4, mixed, resembles=3
        ),
        case(draw, "a rank without rows", with_empty, 5, 4, mixed),
        case(draw, "a feature that is on every rank's list", uneven, 2 * n, 3, mixed, copied=True),
        case(draw, "a large lambda", uneven, 4, 5, 50.0),
        case(draw, "the same gradient in all rows", uneven, 4, 5, mixed, constant=True),
        case(draw, "many rows", [200 + each for each in uneven], 9, 16, 1.0),
    ]


def case(
    draw: g.Draw,
    label: str,
    sizes: list[int],
    num_features: int,
    num_bins: int,
    lam: float,
    *,
    missing: float = 1 / 3,
    resembles: int | None = None,
    copied: bool = False,
    constant: bool = False,
) -> g.Case:
    """Return a node's rows. copied: the last half of the features repeats the first."""
    generator = torch.Generator().manual_seed(draw.rng.randrange(2**31))
    total = sum(sizes)
    bins = torch.randint(num_bins, (total, num_features), generator=generator)
    gradients = torch.randint(-10_000, 10_001, (total,), generator=generator)
    if resembles is not None:
        gradients += 6_000 * (2 * bins[:, 0] - num_bins + 1)
    bins[torch.rand(bins.shape, generator=generator) < missing] = num_bins
    if resembles is not None:
        low = gradients < gradients.double().mean()
        bins[:, 0] = torch.where(low if resembles == 0 else ~low, num_bins, bins[:, 0])
        keep = torch.rand(total, generator=generator) < 0.3
        bins[keep, 0] = torch.where(low[keep], 0, num_bins - 1)
    if copied:
        bins[:, num_features // 2 :] = bins[:, : num_features // 2]
    second = torch.randint(1, 2_000, (total,), generator=generator)
    if constant:
        gradients = second * 7
    pairs = torch.stack([gradients, second], dim=1)
    named = f"{label}: {sizes} rows, {num_features} features, {num_bins} bins, lambda {lam:g}"
    shards = zip(bins.split(sizes), pairs.split(sizes))
    bins_by_rank, pairs_by_rank = zip(*((each.clone(), own.clone()) for each, own in shards))
    return g.Case(named, g.ByRank(bins_by_rank), g.ByRank(pairs_by_rank), num_bins, lam)


def right(bins: g.ByRank, pairs: g.ByRank, num_bins: int, lam: float) -> Tensor:
    """Try every split in fractions, row by row."""
    rows = list(zip(torch.cat(bins).tolist(), torch.cat(pairs).tolist()))
    best, found = Fraction(-1), None
    for split in splits(len(rows[0][0]), num_bins):
        sides = {True: [0, 0], False: [0, 0]}
        for row, pair in rows:
            side = sides[goes_left(row, split, num_bins)]
            side[:] = [ours + more for ours, more in zip(side, pair)]
        if sides[True][1] and sides[False][1]:
            score = sum(
                Fraction(each[0] ** 2) / (each[1] + Fraction(lam)) for each in sides.values()
            )
            if score > best:
                best, found = Fraction(score), split
    assert found is not None, "a case without a split"
    return torch.tensor(found)


def splits(num_features: int, num_bins: int) -> Iterator[tuple[int, int, int]]:
    """Yield every split, in the order that decides ties."""
    for feature in range(num_features):
        for bin_ in range(num_bins):
            yield from ((feature, bin_, 1), (feature, bin_, 0))


def goes_left(row: list[int], split: tuple[int, int, int], num_bins: int) -> bool:
    """Return whether a row goes left."""
    feature, bin_, missing_left = split
    return bool(missing_left) if row[feature] == num_bins else row[feature] <= bin_


def sums_bytes(s: g.Observed) -> float:
    """Return the bytes of a reduce-scatter of the sums."""
    num_features, num_bins = s.xs[0].shape[1], s.args[2]
    return (s.n - 1) / s.n * -(-num_features // s.n) * s.n * num_bins * 2 * 8


def budget(s: g.Observed) -> g.Budget:
    """Half of an all-reduce, and 64 bytes to each other rank, in three calls."""
    if s.n == 1:
        return g.Budget()
    return g.Budget(collectives=3, sent_bytes=sums_bytes(s) + 64 * (s.n - 1))


def reduces(s: g.Observed, what: str) -> bool:
    """Return whether a rank hands more than a few numbers to this collective."""
    return s.n > 1 and any(each.what == what and each.nbytes > 64 for each in s.operations(0))


MERGE = "group.reduce_scatter(sums_FB2[:, :num_bins].contiguous())"
OWN = "sums_FB2[group.rank * width :][:width, :num_bins]"
SIDES = "torch.stack([through_WB2 + missing_W12, through_WB2], dim=2)"
BEST = "all_n4[all_n4[:, 0].argmax(), 1:]"
MISTAKES = [
    g.Mistake(
        "finds splits in its own rows",
        "Sums of gradients decide a split, and only the sums of all ranks are those of the node. "
        "A good split of one shard need not be good for the rest. Merge the sums first.",
        [
            g.patch(MERGE, f"{OWN}.clone()"),
            g.patch("group.all_reduce(pairs_N2.sum(0))", "pairs_N2.sum(0)"),
        ],
        hint=1,
    ),
    g.Mistake(
        "sends missing values to one side always",
        "Their rows may resemble those on either side. Try each split with the missing values on "
        "the left and on the right, and keep the better one as the default direction.",
        [
            g.patch("score.argmax())", "score.view(-1, 2)[:, 1].argmax()) * 2 + 1"),
            g.patch("score.argmax())", "score.view(-1, 2)[:, 0].argmax()) * 2"),
        ],
        hint=2,
    ),
    g.Mistake(
        "counts missing values as a bin or as none",
        "A missing value is in no bin, so the sums of the bins do not have it. It still belongs to "
        "the node: its sums are those of the node less those of all bins of the feature.",
        [
            g.patch("missing_W12 = total_2 - through_WB2[:, -1:]", "missing_W12 = 0 * total_2"),
            g.patch("right = total_2 - left", "right = through_WB2[:, -1:, None] - left"),
            g.patch("sums_FB2[:, :num_bins]", "sums_FB2[:, 1:]"),
        ],
        hint=2,
    ),
    g.Mistake(
        "returns the number of a feature on its own rank",
        "After the reduce-scatter rank r has the features from r * width on. The number that all "
        "ranks use is that plus the place in the rank's block.",
        g.patch("group.rank * width + feature", "feature"),
        hint=3,
    ),
    g.Mistake(
        "chooses another one of equal splits",
        "Every rank must choose the same one, and the same as one process: the lowest feature, "
        "then the lowest bin, then missing values on the left. Candidates come in rank order, the "
        "order of features: the first of the largest scores is right.",
        [
            g.patch(BEST, "all_n4[len(all_n4) - 1 - all_n4[:, 0].flip(0).argmax(), 1:]"),
            g.patch("score.argmax()", "len(score) - 1 - int(score.flip(0).argmax())"),
        ],
        hint=3,
    ),
    g.Mistake(
        "allows a side without rows",
        "With lambda, a split that puts all rows on one side can have the largest score. It "
        "separates nothing. h is 1 or more, so a side with H = 0 has no row.",
        g.patch(
            "is_split = (left[..., 1] > 0) & (right[..., 1] > 0)", "is_split = left[..., 1] >= 0"
        ),
        hint=3,
    ),
    g.Mistake(
        "computes another score",
        "The score of a side is G^2 / (H + lambda), with the square, and with lambda on each side.",
        [
            g.patch("(side[..., 1] + lam)", "side[..., 1].clamp(min=1)"),
            g.patch("side[..., 0].double() ** 2", "side[..., 0].double().abs()"),
        ],
        hint=1,
    ),
    g.Mistake(
        "a rank without rows returns early",
        "It has no rows, but it has features to merge, and the others wait for it. Its sums are "
        "zeros. Every rank calls the same collectives.",
        g.patch(
            "    width = -(",
            "    if not len(bins_NF):\n        return torch.zeros(3, dtype=torch.int64)\n"
            "    width = -(",
        ),
        hung=lambda s: {len(own) for own, rank in zip(s.xs, s.ranks) if rank.returned} == {0},
    ),
    g.Mistake(
        "all-reduces the sums",
        "An all-reduce gives every rank all features. Each rank can search its own n-th of them: a "
        "reduce-scatter sends half the bytes, and a candidate per rank is 32 bytes.",
        g.patch(
            MERGE,
            "group.all_reduce(sums_FB2[:, :num_bins].contiguous())"
            "[group.rank * width :][:width].clone()",
        ),
        over_budget=lambda s: reduces(s, "all_reduce"),
        hint=2,
    ),
    g.Mistake(
        "gathers what could be summed",
        "An all-gather of rows or of histograms brings each rank the data of all others: it grows "
        "with the rows, or with the ranks. Sums do not.",
        g.patch(
            MERGE,
            "group.all_gather(sums_FB2[None, :, :num_bins].contiguous()).sum(0)"
            "[group.rank * width :][:width].clone()",
        ),
        over_budget=lambda s: reduces(s, "all_gather"),
    ),
]

GRADER = g.OnRanks(
    cases=cases,
    right=right,
    budget=budget,
    mistakes=MISTAKES,
    allowed=("all_reduce", "reduce_scatter", "all_gather"),
    closed=("labkit.trees",),
    shown="all ranks choose the split that one process with all rows chooses, ties and missing "
    "values included, and each sent half of an all-reduce",
)
