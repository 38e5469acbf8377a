"""Grade critical_path: drawn runs, replayed with each operation made longer in turn."""

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from labkit.grade.grader import Case, Draw, Mistake, Observed, Questions, patch

Ranks = list[list[tuple[str, str, int, int]]]
Place = tuple[int, int]
"""Of an operation: its rank, and where it is in the rank's list."""
PATH, SLACK = FUNCTIONS = ("critical_path", "slack")
LONG = 10**9


def cases(draw: Draw) -> Iterator[Case]:
    """Runs of 2, 4 and 5 ranks. In all but the first some collectives have slack."""
    runs = [drawn_run(draw.rng, number) for number in range(12)]
    for place, function in enumerate(FUNCTIONS):
        for number, (ranks, *answers) in enumerate(runs):
            label = f"run {number}, {len(ranks)} ranks"
            yield Case(label, ranks, function=function, known=answers[place])


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


def is_path(path: Callable[[Ranks], Any]) -> Callable[[Observed], bool]:
    """Predicate: the path has the work of that one, in the same order."""

    def seen(s: Observed) -> bool:
        return bool(s.wrong_ranks) and works(s.xs, s.y) == works(s.xs, path(s.xs))

    return seen


def works(ranks: Ranks, path: Any) -> list[tuple[int, str]]:
    """A path without its collectives."""
    return [(r, n) for r, n in path if ("collective", n) not in [op[:2] for op in sum(ranks, [])]]


def own_path(ranks: Ranks, of: Callable[[int], int]) -> Any:
    """All work of one rank, the one with the most of something."""
    rank = max(range(len(ranks)), key=of)
    return [(rank, op[1]) for op in ranks[rank]]


def through_the_first(ranks: Ranks) -> Any:
    """Back from the end of the run, at each collective to the rank that arrived first."""
    (r, i), path = places(ranks)[-1], []
    while i >= 0:
        r, i = min(members(ranks, r, i), key=lambda at: ranks[at[0]][at[1]][2])
        path.append((r, ranks[r][i][1]))
        i -= 1
    return path[::-1]


def is_slack(*values: Callable[[Ranks, int, int], int]) -> Callable[[Observed], bool]:
    """Predicate: the work right before collectives, or before the end, has a wrong value."""

    def seen(s: Observed) -> bool:
        kinds = [[op[0] for op in ops] + ["collective"] for ops in s.xs]
        work = [(r, i) for r, i in places(s.xs) if kinds[r][i : i + 2] == ["work", "collective"]]
        is_one = (all(s.y[r][i] == value(s.xs, r, i) for r, i in work) for value in values)
        return bool(s.wrong_ranks) and any(is_one)

    return seen


def wait(ranks: Ranks, r: int, i: int) -> int:
    """How long a rank waits in an operation; after its last one, for the run to end."""
    if i == len(ranks[r]):
        return max(ops[-1][3] for ops in ranks) - ranks[r][-1][3]
    return ranks[r][i][3] - ranks[r][i][2] - takes(ranks, r, i)


def with_waits(ranks: Ranks, r: int, i: int) -> int:
    """The slack if waits kept their length."""
    if i + 1 == len(ranks[r]):
        return wait(ranks, r, i + 1)
    return min(with_waits(ranks, *at) for at in members(ranks, r, i + 1))


def busy(ranks: Ranks, r: int) -> int:
    """Microseconds of a rank's own work."""
    return sum(op[3] - op[2] for op in ranks[r] if op[0] == "work")


TURN, BEGIN = 'if kind == "collective":', "next_begin[r] = arrived + spare"
BUSY = 'sum((op[3] - op[2]) * (op[0] == "work") for op in ranks[r]))'
MISTAKES = [
    Mistake(
        "takes the busiest rank for the path",
        "The path may change from rank to rank at each collective. A busy rank may do work for "
        "which no rank waits.",
        function=PATH,
        seen=is_path(lambda ranks: own_path(ranks, lambda r: busy(ranks, r))),
        made_by=patch("ranks[r][-1][3])\n", f"{BUSY}\n", TURN, "if False:"),
    ),
    Mistake(
        "stays on the rank that ends last",
        "Where that rank waited in a collective, its own work before it did not decide. The path "
        "goes on with the rank that arrived last there.",
        function=PATH,
        seen=is_path(lambda ranks: own_path(ranks, lambda r: ranks[r][-1][3])),
        made_by=patch(TURN, "if False:"),
    ),
    Mistake(
        "follows the rank that waited",
        "The first to arrive waits longest, and could have come later. The last to arrive decides "
        "when the transfer begins.",
        function=PATH,
        seen=is_path(through_the_first),
        made_by=patch("place = max(", "place = min("),
    ),
    Mistake(
        "a collective is missing, or has another rank",
        "The work is right. The transfer of a collective takes time, too: it comes once, with the "
        "rank that arrived last.",
        hint=3,
        function=PATH,
        seen=lambda s: is_path(lambda ranks: s.right[0])(s),
        made_by=patch("path.append((rank, name))", 'if kind == "work": path.append((rank, name))'),
    ),
    Mistake(
        "takes the next wait for the slack",
        "The rank may be late by that much for the next collective. That collective may have slack "
        "itself, since a later one waits for other ranks. Go on to the end of the run.",
        hint=2,
        function=SLACK,
        seen=is_slack(lambda ranks, r, i: wait(ranks, r, i + 1)),
        made_by=patch(BEGIN, "next_begin[r] = arrived + spare * (len(places) == 1)"),
    ),
    Mistake(
        "measures the slack to the end of the run",
        "After this operation come others, which take their time. Go back from the end, and take "
        "off what each of them takes.",
        function=SLACK,
        seen=is_slack(
            lambda ranks, r, i: max(ops[-1][3] for ops in ranks) - ranks[r][i][3],
            lambda ranks, r, i: ranks[r][-1][3] - ranks[r][i][3],
            lambda ranks, r, i: wait(ranks, r, len(ranks[r])),
        ),
        made_by=patch(BEGIN, "pass"),
    ),
    Mistake(
        "looks at one rank only",
        "If a rank arrives last, the other members wait for it. The slack of a collective is the "
        "least that any of its members has after it.",
        hint=2,
        function=SLACK,
        seen=is_slack(
            lambda ranks, r, i: sum(wait(ranks, r, j) for j in range(i + 1, len(ranks[r]) + 1)),
            lambda ranks, r, i: sum(wait(ranks, r, j) for j in range(i + 1, len(ranks[r]))),
        ),
        made_by=patch("found[r][i] = spare", "found[r][i] = spare = next_begin[r] - end"),
    ),
    Mistake(
        "counts waiting as work",
        "A wait becomes shorter when the rank arrives later. Only the transfer keeps its length: "
        "the end, less the arrival of the last member.",
        hint=3,
        function=SLACK,
        seen=is_slack(with_waits),
        made_by=patch(BEGIN, "next_begin[r] = ranks[r][i][2] + spare"),
    ),
]

GRADER = Questions(
    name="critical_path",
    functions=FUNCTIONS,
    cases=cases,
    right=lambda ranks, known: known,
    picture=lambda s: "\n".join(f"rank {r}: {ops}" for r, ops in enumerate(s.xs)),
    mistakes=MISTAKES,
    closed=("labkit.profile",),
    shown="you follow what decided from rank to rank, and know for each operation how much of a "
    "delay the run would not notice",
)
