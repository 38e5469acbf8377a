"""Grade critical_path: drawn runs, replayed with each operation made longer in turn."""

from collections.abc import Iterator
from random import Random
from typing import Any

from labkit.grade import grader as g

Ranks = list[list[tuple[str, str, int, int]]]
Place = tuple[int, int]
"""Of an operation: its rank, and where it is in the rank's list."""
LONG = 10**9


def cases(draw: g.Draw) -> Iterator[g.Case]:
    """Runs of 2, 4 and 5 ranks. In all but the first some collectives have slack."""
    runs = [drawn_run(draw.rng, number) for number in range(12)]
    for place, function in enumerate(("critical_path", "slack")):
        for number, (ranks, *answers) in enumerate(runs):
            label = f"run {number}, {len(ranks)} ranks"
            yield g.Case(label, ranks, function=function, known=answers[place])


def drawn_run(rng: Random, number: int) -> tuple[Ranks, Any, Any]:
    """A run with one critical path, the path, and the slack of all operations."""
    everyone = range(rng.choice((4, 5)) if number else 2)
    ranks: Ranks = [[] for _ in everyone]
    now, order = [0 for _ in everyone], rng.sample(everyone, len(everyone))

    def do(kind: str, name: str, rank: int, end: int) -> None:
        ranks[rank].append((kind, name, now[rank], end))
        now[rank] = end

    # Two parts of the ranks, each by itself, and then all: the first to be done has slack.
    groups = [order[:2], order[2:], order][-1 if number == 0 else 0 :]
    groups += [rng.sample(order, rng.randrange(2, len(order) + 1)) for _ in range(number % 4)]
    for step, group in enumerate(groups):
        for rank in group:
            for part in "xy"[: rng.randrange(1, 3)]:
                longest = rng.choice((40, 200))
                do("work", f"{part}{step}", rank, now[rank] + rng.randrange(1, longest))
        end = max(now[rank] for rank in group) + rng.randrange(5, 60)
        for rank in group:
            do("collective", f"sum{step}", rank, end)
    for rank in everyone:
        if number % 3:
            do("work", "last", rank, now[rank] + rng.randrange(1, 200))
    slack = [[spare(ranks, r, i) for i in range(len(ops))] for r, ops in enumerate(ranks)]
    path = dict.fromkeys(last(ranks, r, i) for r, i in places(ranks) if not slack[r][i])
    if sum(takes(ranks, *at) for at in path) > max(now):  # there are two
        return drawn_run(rng, number)
    return ranks, [(r, ranks[r][i][1]) for r, i in path], slack


def places(ranks: Ranks) -> list[Place]:
    """All operations, in order of their ends."""
    by_end = sorted((op[3], r, i) for r, ops in enumerate(ranks) for i, op in enumerate(ops))
    return [(r, i) for _, r, i in by_end]


def members(ranks: Ranks, r: int, i: int) -> list[Place]:
    """The same operation on all ranks that take part in it."""
    if ranks[r][i][0] == "work":
        return [(r, i)]
    names = [[op[:2] for op in ops] for ops in ranks]
    return [(q, its.index(names[r][i])) for q, its in enumerate(names) if names[r][i] in its]


def last(ranks: Ranks, r: int, i: int) -> Place:
    """An operation on the member that arrived last."""
    return max(members(ranks, r, i), key=lambda at: ranks[at[0]][at[1]][2])


def takes(ranks: Ranks, r: int, i: int) -> int:
    """The length of an operation, without the wait for its last member."""
    rank, place = last(ranks, r, i)
    return ranks[r][i][3] - ranks[rank][place][2]


def run_end(ranks: Ranks, longer: Place | None = None) -> int:
    """When the run ends if one operation takes LONG more."""
    now = [0] * len(ranks)
    for at in places(ranks):
        its = members(ranks, *at)
        if at == min(its):
            end = max(now[r] for r, _ in its) + takes(ranks, *at) + LONG * (longer in its)
            for r, _ in its:
                now[r] = end
    return max(now)


def spare(ranks: Ranks, r: int, i: int) -> int:
    """The slack of an operation."""
    return LONG + run_end(ranks) - run_end(ranks, (r, i))


TURN, APPEND = 'if kind == "collective":', "path.append((rank, name))"
FOUND, BEGIN = "found[r][i] = spare", "next_begin[r] = arrived + spare"
FIRST = "[max(ops[-1][3] for ops in ranks)] * len(ranks)"
OWN = "found[r][i] = spare = next_begin[r] - end"
WORK = f'if kind == "work": {APPEND}'
MISTAKES = [
    g.Mistake(
        "takes the busiest rank for the path",
        "The path may change from rank to rank at each collective. A busy rank may do work for "
        "which no rank waits.",
        [
            g.patch(
                "ranks[r][-1][3])\n",
                'sum((op[3] - op[2]) * (op[0] == "work") for op in ranks[r]))\n',
                TURN,
                "if False:",
                APPEND,
                append,
            )
            for append in (APPEND, WORK)
        ],
    ),
    g.Mistake(
        "stays on the rank that ends last",
        "Where that rank waited in a collective, its own work before it did not decide. The path "
        "goes on with the rank that arrived last there.",
        [g.patch(TURN, "if False:", APPEND, append) for append in (APPEND, WORK)],
    ),
    g.Mistake(
        "follows the rank that waited",
        "The first to arrive waits longest, and could have come later. The last to arrive decides "
        "when the transfer begins.",
        [g.patch("place = max(", "place = min(", APPEND, append) for append in (APPEND, WORK)],
    ),
    g.Mistake(
        "a collective is missing, or has another rank",
        "The work is right. The transfer of a collective takes time, too: it comes once, with the "
        "rank that arrived last.",
        [
            g.patch(APPEND, WORK),
            g.patch(TURN, f"before = rank\n        {TURN}", APPEND, "path.append((before, name))"),
        ],
        hint=3,
    ),
    g.Mistake(
        "takes the next wait for the slack",
        "The rank may be late by that much for the next collective. That collective may have slack "
        "itself, since a later one waits for other ranks. Go on to the end of the run.",
        [g.patch(BEGIN, f"{BEGIN} * (len(places) == 1)", FOUND, found) for found in (FOUND, OWN)],
        hint=2,
    ),
    g.Mistake(
        "measures the slack to the end of the run",
        "After this operation come others, which take their time. Go back from the end, and take "
        "off what each of them takes.",
        [
            g.patch(BEGIN, "pass"),
            g.patch(FOUND, "found[r][i] = ranks[r][-1][3] - end"),
            g.patch(FOUND, "found[r][i] = max(ops[-1][3] for ops in ranks) - ranks[r][-1][3]"),
        ],
    ),
    g.Mistake(
        "looks at one rank only",
        "If a rank arrives last, the other members wait for it. The slack of a collective is the "
        "least that any of its members has after it.",
        [g.patch(FOUND, OWN, FIRST, first) for first in (FIRST, "[ops[-1][3] for ops in ranks]")],
        hint=2,
    ),
    g.Mistake(
        "counts waiting as work",
        "A wait becomes shorter when the rank arrives later. Only the transfer keeps its length: "
        "the end, less the arrival of the last member.",
        [
            g.patch(BEGIN, "next_begin[r] = ranks[r][i][2] + spare"),
            g.patch(
                BEGIN,
                "next_begin[r] = ranks[r][i][2] + spare",
                FIRST,
                "[ops[-1][3] for ops in ranks]",
            ),
        ],
        hint=3,
    ),
]

GRADER = g.Questions(
    functions=("critical_path", "slack"),
    cases=cases,
    right=lambda ranks, known: known,
    picture=lambda s: "\n".join(f"rank {r}: {ops}" for r, ops in enumerate(s.xs)),
    mistakes=MISTAKES,
    closed=("labkit.profile",),
    shown="you follow what decided from rank to rank, and know for each operation how much of a "
    "delay the run would not notice",
)
