"""Grade critical_path: drawn runs, replayed with each operation made longer in turn."""

from collections.abc import Iterator
from itertools import pairwise
from random import Random
from typing import Any, NamedTuple

from labkit.grade import grader as g

Ranks = list[list[tuple[str, str, int, int]]]
LONG = 10**9


class Operation(NamedTuple):
    """Work of one rank, or a collective of several; `takes` is its time without waiting."""

    kind: str
    name: str
    members: list[int]
    takes: int


def cases(draw: g.Draw) -> Iterator[g.Case]:
    """Yield cases on runs of 2, 4 and 5 ranks. Some collectives have slack, except on 2 ranks."""
    runs = [run_with_answers(draw.rng, number) for number in range(12)]
    runs.sort(key=lambda run: sum(map(len, run[0])))  # a verdict shows the first that goes wrong
    for function in ("critical_path", "slack"):
        for number, (ranks, answers) in enumerate(runs):
            label = f"run {number}, {len(ranks)} ranks"
            yield g.Case(label, ranks, function=function, known=answers[function])


def run_with_answers(rng: Random, number: int) -> tuple[Ranks, dict[str, Any]]:
    """Return a run with one critical path, the path, and the slack of all operations."""
    n = rng.choice((4, 5)) if number else 2
    run = drawn_run(rng, number, n)
    ranks = replayed(run, n)
    spares = [LONG + end_of(ranks) - end_of(replayed(run, n, longer)) for longer in run]
    decisive = [op for op, spare in zip(run, spares) if not spare]
    if sum(op.takes for op in decisive) > end_of(ranks):  # there are two paths
        return run_with_answers(rng, number)
    arrival = {(r, op[1]): op[2] for r, ops in enumerate(ranks) for op in ops}
    path = [max((arrival[r, op.name], r, op.name) for r in op.members)[1:] for op in decisive]
    slack = [[spare for op, spare in zip(run, spares) if r in op.members] for r in range(n)]
    return ranks, {"critical_path": path, "slack": slack}


def drawn_run(rng: Random, number: int, n: int) -> list[Operation]:
    """Draw a run in which two groups of ranks work apart, then all: the faster group has slack."""
    run, order = [], rng.sample(range(n), n)
    groups = [order[:2], order[2:], order] if number else [order]
    groups += [rng.sample(order, rng.randrange(2, n + 1)) for _ in range(number % 4)]
    for step, group in enumerate(groups):
        for rank in group:
            for part in "xy"[: rng.randrange(1, 3)]:
                takes = rng.randrange(1, rng.choice((40, 200)))
                run.append(Operation("work", f"{part}{step}", [rank], takes))
        run.append(Operation("collective", f"sum{step}", group, rng.randrange(5, 60)))
    if number % 3:
        run += [Operation("work", "last", [rank], rng.randrange(1, 200)) for rank in range(n)]
    return run


def replayed(run: list[Operation], n: int, longer: Operation | None = None) -> Ranks:
    """Return the trace of a run in which one operation takes LONG more."""
    ranks: Ranks = [[] for _ in range(n)]
    now = [0] * n
    for op in run:
        end = max(now[r] for r in op.members) + op.takes + LONG * (op is longer)
        for r in op.members:
            ranks[r].append((op.kind, op.name, now[r], end))
            now[r] = end
    return ranks


def end_of(ranks: Ranks) -> int:
    """Return the end of the last operation."""
    return max(ops[-1][3] for ops in ranks)


def picture(s: g.Observed) -> str:
    """Return a line for each rank, with the start and the end of its operations."""
    lines = []
    for rank, ops in enumerate(s.xs):
        words = [f"{name} {a}-{b}" + " (collective)" * (kind != "work") for kind, name, a, b in ops]
        lines.append(f"rank {rank}: {', '.join(words)}")
    return "\n".join(lines)


def leaves_a_rank_at_a_work(s: g.Observed) -> bool:
    """Return whether the answer takes works of the same name for one operation.

    The path goes from such a work to another rank. Their slack lets all of them end together.
    """
    if s.case.function == "slack":
        latest: dict[str, set[int]] = {}
        for ops, spares in zip(s.xs, s.y, strict=True):
            for (kind, name, _, end), spare in zip(ops, spares, strict=True):
                latest.setdefault(name, set()).update([end + spare] * (kind == "work"))
        is_one = all(len(ends) <= 1 for ends in latest.values())
        return is_one and len(set().union(*latest.values())) > 1  # not all at the end of the run
    kinds = {(r, op[1]): op[0] for r, ops in enumerate(s.xs) for op in ops}
    before = dict(pairwise([*kinds][::-1]))
    return any(
        other != rank
        and before.get((rank, name)) == (rank, work)
        and kinds[rank, work] == "work"
        and (kinds[rank, name] == "work" or (rank, name) in s.right[0])
        for (other, work), (rank, name) in pairwise(s.y)
    )


LAST, OF_RANK = "[max(ops[-1][3] for ops in ranks)] * len(ranks)", "[o[-1][3] for o in ranks]"
COLLECTIVE_NAME = 'name if kind == "collective" else f"{r} {name}"'
TURN, APPEND = 'if kind == "collective":', "path.append((rank, name))"
FOUND, BEGIN = "found[r][i] = spare", "next_begin[r] = arrived + spare"
OWN = "found[r][i] = spare = next_begin[r] - end"
MISTAKES = [
    g.Mistake(
        "takes the busiest rank for the path",
        "The path may change from rank to rank at each collective. A busy rank may do work for "
        "which no rank waits.",
        g.patch(
            *("ranks[r][-1][3])\n", 'sum(op[3] - op[2] for op in ranks[r] if op[0] == "work"))\n'),
            *(TURN, "if False:"),
        ),
    ),
    g.Mistake(
        "stays on the rank that ends last",
        "Where that rank waited in a collective, its own work before it did not decide. The path "
        "goes on with the rank that arrived last there.",
        g.patch(TURN, "if False:"),
    ),
    g.Mistake(
        "follows the rank that waited",
        "The first to arrive waits longest, and could have come later. The last to arrive decides "
        "when the transfer begins.",
        g.patch("place = max(", "place = min("),
    ),
    g.Mistake(
        "a collective is missing, or has another rank",
        "The work is right. The transfer of a collective takes time, too: it comes once, with the "
        "rank that arrived last.",
        [
            g.patch(APPEND, f'if kind == "work": {APPEND}'),
            g.patch(TURN, f"before = rank\n        {TURN}", APPEND, "path.append((before, name))"),
        ],
        hint=3,
    ),
    g.Mistake(
        "takes the next wait for the slack",
        "The rank may be late by that much for the next collective. That collective may have slack "
        "itself, since a later one waits for other ranks. Go on to the end of the run.",
        [
            g.patch(BEGIN, f"{BEGIN} * (len(places) == 1)"),
            g.patch(BEGIN, f"{BEGIN} * (len(places) == 1)", FOUND, OWN),
            *(
                g.patch(BEGIN, "next_begin[r] = arrived", *found, *begin)
                for found in ((), (FOUND, OWN))
                for begin in ((), (LAST, OF_RANK))
            ),
        ],
        hint=2,
    ),
    g.Mistake(
        "measures the slack to the end of the run",
        "After this operation come others, which take their time. Go back from the end, and take "
        "off what each of them takes.",
        g.patch(BEGIN, "pass"),
    ),
    g.Mistake(
        "looks at one rank only",
        "If a rank arrives last, the other members wait for it. The slack of a collective is the "
        "least that any of its members has after it. A rank that ends before the others may be "
        "late until the run ends.",
        [
            g.patch(FOUND, OWN),
            g.patch(LAST, OF_RANK),
        ],
        hint=2,
    ),
    g.Mistake(
        "takes works of one name for one operation",
        "The name of a work is its rank's own: other ranks may have works of the same name. Only a "
        "collective is one operation on all members.",
        [
            g.patch(TURN, "if True:"),
            g.patch(
                *(COLLECTIVE_NAME, "name"),
                *("- end\n", "\n"),
                *(FOUND, "found[r][i] = spare - ranks[r][i][3]"),
                *(BEGIN, "next_begin[r] = spare - (end - arrived)"),
            ),
        ],
        wrong=leaves_a_rank_at_a_work,
        hint=3,
    ),
    g.Mistake(
        "counts waiting as work",
        "A wait becomes shorter when the rank arrives later. Only the transfer keeps its length: "
        "the end, less the arrival of the last member.",
        g.patch(BEGIN, "next_begin[r] = ranks[r][i][2] + spare"),
        hint=3,
    ),
]

GRADER = g.Questions(
    functions=("critical_path", "slack"),
    cases=cases,
    right=lambda ranks, known: known,
    picture=picture,
    mistakes=MISTAKES,
    closed=("labkit.profile",),
    shown="you follow what decided from rank to rank, and know for each operation how much of a "
    "delay the run would not notice",
)
