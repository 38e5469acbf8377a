"""Grade quantile_sketch: bounds of merged summaries, and entries that a pruning keeps."""

import itertools
from collections.abc import Iterator

from labkit.grade import grader as g

Entry = tuple[float, int, int, int]


def cases(draw: g.Draw) -> Iterator[g.Case]:
    """Small merges first; then shared values, sets beside each other, empty ones, and prunings.

    size - 1 is a power of two, so that ranks are exact in every order of computing.
    """
    for label, sizes, values in (
        ("different values", (3, 3), range(100)),
        ("shared values", (6, 5), range(8)),
        ("many values", (40, 25), range(60)),
    ):
        one, other = (exact(draw, size, list(values)) for size in sizes)
        yield merging(label, one, other)
        yield merging(f"{label}, pruned summaries", pruned(one, 3), pruned(other, 5))
    low, high = exact(draw, 5, list(range(10))), exact(draw, 7, list(range(10, 30)))
    yield merging("one set below the other", low, high)
    yield merging("one set above the other", pruned(high, 3), pruned(low, 3))
    yield merging("an empty summary", [], exact(draw, 4, list(range(9))))
    yield merging("an empty summary", pruned(exact(draw, 9, list(range(20))), 3), [])
    for size, number in ((3, 9), (5, 30), (2, 12), (9, 64), (17, 90)):
        yield pruning("equal weights", exact(draw, number, list(range(200)), most=1), size)
        yield pruning("unequal weights", exact(draw, number, list(range(200))), size)
        heavy = exact(draw, number, list(range(200)), heavy=draw.rng.randrange(number))
        yield pruning("one heavy value", heavy, size)
    yield pruning("pruned before", pruned(exact(draw, 70, list(range(90))), 17), 5)
    yield pruning("as many entries as asked for", exact(draw, 5, list(range(9))), 5)
    yield pruning("an empty summary", [], 3)


def merging(label: str, one: list[Entry], other: list[Entry]) -> g.Case:
    """Return a case of merge."""
    return g.Case(f"{label}: {shown(one)} and {shown(other)}", one, other, function="merge")


def pruning(label: str, summary: list[Entry], size: int) -> g.Case:
    """Return a case of prune."""
    return g.Case(f"{label}: {shown(summary)}, {size=}", summary, size, function="prune")


def shown(summary: list[Entry]) -> str:
    """Write a summary, or how many entries it has."""
    return str(summary) if len(summary) < 5 else f"{len(summary)} entries"


def exact(
    draw: g.Draw, number: int, values: list[int], *, most: int = 9, heavy: int | None = None
) -> list[Entry]:
    """Return the summary of `number` values; `heavy`: the place of one with most of the weight."""
    entries, below = [], 0
    for place, value in enumerate(sorted(draw.rng.sample(values, min(number, len(values))))):
        weight = 200 if place == heavy else draw.rng.randint(1, most)
        entries.append((float(value), below, below + weight, weight))
        below += weight
    return entries


def right_merge(one: list[Entry], other: list[Entry]) -> list[Entry]:
    """Return the entries of both; each bound by the entries at a value, below it and above it."""
    values = sorted({value for value, *_ in itertools.chain(one, other)})
    columns = [[known(summary, value) for value in values] for summary in (one, other)]
    return [
        (value, *(a + b for a, b in zip(ours, theirs)))
        for value, ours, theirs in zip(values, *columns)
    ]


def known(summary: list[Entry], value: float) -> tuple[int, int, int]:
    """Return what a summary says of a value."""
    at = [entry for entry in summary if entry[0] == value]
    before = [entry for entry in summary if entry[0] < value]
    after = [entry for entry in summary if entry[0] > value]
    if at:
        return at[0][1:]
    low = before[-1][1] + before[-1][3] if before else 0
    high = after[0][2] - after[0][3] if after else low
    return low, high, 0


def pruned(summary: list[Entry], size: int) -> list[Entry]:
    """Return the entries of the ranks k * total / (size - 1), in whole numbers."""
    if len(summary) <= size:
        return list(summary)
    steps, total = size - 1, summary[-1][2]
    kept = [summary[0], summary[-1]]
    for k in range(1, steps):
        twice = 2 * k * total  # times steps
        left, right = summary[0], summary[1]
        for entry, following in itertools.pairwise(summary):
            if (entry[1] + entry[2]) * steps <= twice:
                left, right = entry, following
        limit = left[1] + left[3] + right[2] - right[3]
        kept.append(left if twice < limit * steps else right)
    return sorted(set(kept))


def right(first: list[Entry], second: list[Entry] | int) -> list[Entry]:
    """Return the summary that the contract describes."""
    return pruned(first, second) if isinstance(second, int) else right_merge(first, second)


STEP = "twice = 2 * k * total / (size - 1)"
BEFORE, AFTER = "low = entry[1] + entry[3]", "return low, entry[2] - entry[3], 0"
END, SUM = "    return low, high, 0\n", "ours + theirs for ours, theirs in bounds"
CHOICE = "kept.add(i if twice < low + weight + high - next_weight else i + 1)"
MISTAKES = [
    g.Mistake(
        "leaves the bounds of one summary alone",
        "The rank of a value in the union is its rank in one set plus its rank in the other. An "
        "entry of one summary lies somewhere in the other set as well: look there, and add.",
        [
            g.patch(AFTER, "return 0, 0, 0", END, "    return 0, 0, 0\n"),
            g.patch(SUM, "ours or theirs for ours, theirs in bounds"),
            g.patch(SUM, "max(ours, theirs) for ours, theirs in bounds"),
        ],
        hint=1,
    ),
    g.Mistake(
        "forgets the weight of the entry before",
        "A value above an entry has that entry's own weight below it, too: low + weight of the "
        "entry before. With low alone the bound is right, and not the tightest.",
        g.patch(BEFORE, "low = entry[1]"),
        hint=2,
    ),
    g.Mistake(
        "counts the weight of the entry after",
        "The high of an entry counts its own weight. A value below that entry has it above: high - "
        "weight of the entry after.",
        g.patch(AFTER, "return low, entry[2], 0"),
        hint=2,
    ),
    g.Mistake(
        "wrong beyond the ends",
        "Below the first entry lies nothing, so low, high and weight are 0. Above the last one all "
        "of the set lies below: low and high are its total weight.",
        [
            g.patch(END, "    return low, low if low == high else 0, 0\n", BEFORE, "low = 0"),
            g.patch(END, "    return 0, 0, 0\n"),
        ],
        hint=2,
    ),
    g.Mistake(
        "lists a shared value twice",
        "A value that both sets have is one entry, whose bounds and weights are the sums of both.",
        g.patch(
            "sorted({entry[0] for entry in one + other})",
            "sorted(entry[0] for entry in one + other)",
        ),
        hint=1,
    ),
    g.Mistake(
        "keeps every k-th entry",
        "Entries have different weights, and a heavy one stands for many rows. Prune by rank, in "
        "equal steps of weight.",
        g.patch(
            f"        {STEP}",
            f"        kept.add(k * last // (size - 1))\n        continue\n        {STEP}",
        ),
        hint=3,
    ),
    g.Mistake(
        "takes steps of another length",
        "The first and the last entry are kept, so `size` entries have size - 1 steps among them.",
        g.patches(STEP, STEP.replace("(size - 1)", "size"), STEP.replace("- 1", "+ 1")),
        hint=3,
    ),
    g.Mistake(
        "keeps the nearest middle",
        "An entry covers an interval of ranks, as wide as its weight. The limit between two "
        "neighbours lies halfway between the end of one interval and the beginning of the next, "
        "not halfway between their middles.",
        [
            g.patch(CHOICE, "kept.add(i if twice < (low + weight + high) else i + 1)"),
            g.patch(CHOICE, "kept.add(i)"),
            g.patch(
                CHOICE,
                "middles = [(e[1] + e[2]) for e in summary]\n"
                "        kept.add(i if 2 * twice < middles[i] + middles[i + 1] else i + 1)",
            ),
        ],
        hint=3,
    ),
    g.Mistake(
        "drops the least or the largest value",
        "The first entry and the last one tell where the set begins and ends, and its weight. Keep "
        "them in every pruning.",
        g.patches("kept = {0, last}", "kept = {0}", "kept = {last}", "kept = {1, last}"),
        hint=3,
    ),
]

GRADER = g.Questions(
    functions=("merge", "prune"),
    cases=cases,
    right=right,
    mistakes=MISTAKES,
    closed=("labkit.trees",),
    shown="merged bounds are the tightest that both summaries allow, and a pruning keeps the "
    "entries at equal steps of rank",
)
