"""Grade straggler_or_deadlock: stuck jobs, with the evidence that a cluster's tools show.

The jobs are small programs. `evidence` works out where each rank gets stuck;
tests/grade/test_straggler_cases.py compares that with real runs.
"""

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from labkit.grade import grader as g

Rank = dict[str, Any]
Program = list[tuple[str, Any]]
"""Actions of a rank: ("all_reduce", group), ("send", rank), ("compute", None)."""
WORLD = "world"
STORIES = {
    "compute": "a: isend b, compute; c: start_all_reduce world, compute; others: all_reduce world",
    "input": "a: input; b: recv a; c: recv b; d: recv c; others:",
    "pair": "a: compute; b: all_reduce pair; others: recv b",
    "ahead": "a: compute; b: start_all_reduce world, start_all_reduce world, recv last; "
    "others: all_reduce world",
    "left": "a:; others: all_reduce world",
    "silent": "a:; b: send a; others: barrier world",
    "sends": "a: send b; b: send c; c: send a; d: recv a; others: recv d",
    "aside": "a: send b; b: send a; c: compute; d: recv a; others: recv d",
    "crossed": "b: barrier world; others: all_reduce pair, barrier world",
}
"""Actions of each role after some steps that all ranks share. A role without any has returned."""
RUNNING = {"compute": "x = (x @ x).clamp(0, 1)", "input": "batch = next(batches)"}
STARTED = {"start_all_reduce": "all_reduce", "isend": "send"}
"""Operations that do not block, and their names in the evidence."""
MATCHING = {"send": "recv", "recv": "send"}


def cases(draw: g.Draw) -> list[g.Case]:
    """Draw twelve jobs of each story, shuffled. In half of them the pairs have posted nothing."""
    stories = 6 * [(story, steps) for story in STORIES for steps in (0, 7)]
    draw.rng.shuffle(stories)
    return [g.Case(f"job {i}", job(*its, draw.rng)) for i, its in enumerate(stories, start=1)]


def job(story: str, num_pair_steps: int, rng: random.Random) -> list[Rank]:
    """Return the evidence of one job of 5 to 8 ranks, with any rank as the culprit."""
    n = rng.randrange(5, 9)
    order = rng.sample(range(n), n)
    groups, programs = job_programs(story, order, rng.randrange(1, 4), num_pair_steps)
    ranks = evidence(groups, programs)
    data_loader = rng.choice(order[1:]) if story in ("left", "crossed") else None
    waited_s, late_s = rng.uniform(60, 600), [rng.uniform(0, 5) for _ in order]
    culprit = order[0]
    late_s[culprit] = 6 if story == "compute" else 3 if ranks[culprit]["state"] == "blocked" else 0
    for rank, its in enumerate(ranks):
        last = programs[rank][-1][0]
        is_busy = rank == data_loader or last == "compute"
        its["seconds"] = round(waited_s - late_s[rank], 3)
        its["cpu"] = round(rng.uniform(0.9, 1.1) if is_busy else rng.uniform(0, 0.04), 2)
        stuck = f"group.{its['operation']}(...)" if its["state"] == "blocked" else ""
        its["stack"] = RUNNING.get(last, stuck)
    return ranks


def job_programs(
    story: str, order: Sequence[int], num_steps: int, num_pair_steps: int
) -> tuple[dict[str, list[int]], list[Program]]:
    """Return the groups of a job, and each rank's program. order: the ranks in the roles a, b, c,
    ..."""
    groups = {WORLD: list(range(len(order)))}
    programs: list[Program] = [[] for _ in order]
    for place, rank in enumerate(order):
        pair = f"{WORLD}.1.{place // 2}"
        groups[pair] = sorted(order[place - place % 2 :][:2])
        targets = {**dict(zip("abcd", order)), "last": order[-1], WORLD: WORLD, "pair": pair}
        by_role = dict(its.split(":") for its in STORIES[story].split("; "))
        ending = by_role.get("abcd"[place : place + 1], by_role["others"]).split(", ")
        programs[rank] = [
            ("split", WORLD),
            *[("all_reduce", WORLD)] * num_steps,
            *[("all_reduce", pair)] * num_pair_steps,
            *((step.split()[0], targets.get(step.split()[-1])) for step in ending if step),
        ]
    return groups, programs


def evidence(groups: dict[str, list[int]], programs: Sequence[Program]) -> list[Rank]:
    """Perform the programs until no rank moves any more; what each has posted, and its state."""
    ranks: list[Rank] = [{"rank": rank} for rank in range(len(programs))]
    posted: list[Counter[Any]] = [Counter() for _ in programs]
    """By rank, the number of its last collective in a group, or of its last message of a kind to or
    from another rank."""

    def perform(rank: int) -> Iterator[str]:
        """Yield the state of a rank, again and again."""
        for what, target in programs[rank]:
            while what in RUNNING:
                yield "running"
            kind = STARTED.get(what, what)
            its, theirs, group, peer = target, target, target, None
            if kind in MATCHING:  # a message in the smallest group that has both ranks
                its, theirs, peer = (kind, target), (MATCHING[kind], rank), target
                group = next(x for x in reversed(groups) if {rank, peer} <= {*groups[x]})
            others = groups[group] if peer is None else [peer]
            posted[rank][its] += 1
            ranks[rank] |= {
                "operation": kind,
                "peer": peer,
                "group": group,
                "members": groups[group],
                "number": (number := posted[rank][its]),
            }
            while what not in STARTED and any(posted[r][theirs] < number for r in others):
                yield "blocked"
        while True:
            yield "returned"

    states = [perform(rank) for rank in range(len(programs))]
    for _ in range(1 + sum(map(len, programs))):  # in each round a rank moves, if any still can
        for its, state in zip(ranks, states, strict=True):
            its["state"] = next(state)
    for its, numbers in zip(ranks, posted, strict=True):
        its["posted"] = {group: numbers[group] for group in groups if numbers[group]}
    return ranks


def waits_for(ranks: list[Rank], one: Rank) -> set[int]:
    """Return the ranks that a rank waits for directly."""
    if one["state"] != "blocked":
        return set()
    if one["peer"] is not None:
        return {one["peer"]}
    posted = {r: ranks[r]["posted"].get(one["group"], 0) for r in one["members"]}
    return {r for r, number in posted.items() if number < one["number"]}


def culprits(ranks: list[Rank]) -> tuple[str, list[int]]:
    """Return the fault, and every rank that may be named: a cycle, or where all waits end."""
    waits = {one["rank"]: waits_for(ranks, one) for one in ranks}
    reached = dict(waits)
    for _ in ranks:
        reached = {r: its.union(*(reached[other] for other in its)) for r, its in reached.items()}
    if cycle := [rank for rank in waits if rank in reached[rank]]:
        return "deadlock", cycle
    ends = sorted({end for its in reached.values() for end in its if not waits[end]})
    return ("straggler" if ranks[ends[0]]["state"] == "running" else "deadlock"), ends


def right(ranks: list[Rank]) -> tuple[str, int]:
    """One of the right answers."""
    fault, named = culprits(ranks)
    return fault, named[0]


def same(got: Any, right: Any, case: g.Case) -> bool:
    """Return whether an answer is the same, or names another rank of the cycle."""
    fault, rank = got
    if fault != right[0] or rank == right[1]:
        return fault == right[0]
    return {rank, right[1]} <= set(culprits(case.args[0])[1])


def table(s: g.Observed) -> str:
    """Write the job's table as the learner got it, one line per rank."""
    names = ("rank", "state", "operation", "peer", "group", "number", "posted")
    rows = [names, *([str(one[name]) for name in names] for one in s.xs)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


RANK = 'else "deadlock", rank)'
IS_SLOW = 'is_slow = ranks[rank]["state"] == "running"'
CONDITION = 'if ranks[member]["posted"].get(one["group"], 0) < one["number"]'


def names(*keys: str) -> list[g.Patch]:
    """Programs that find the right fault, and name the rank with the least or the most of a key."""
    picks = [f"{pick}(ranks, key=lambda o: {key})" for key in keys for pick in ("min", "max")]
    return [g.patch(RANK, RANK.replace("rank)", f"{pick}['rank'])")) for pick in picks]


MISTAKES = [
    g.Mistake(
        "does not follow the waits",
        "A running or returned rank waits for nothing. It matters only if a blocked rank waits for "
        "it, directly or through others. More time does not help ranks that form a cycle.",
        [
            g.patch('one["state"] != "blocked"', 'one["state"] == "returned"'),
            g.patch(IS_SLOW, "is_slow = any(one['state'] == 'running' for one in ranks)"),
            *(
                g.patch(
                    IS_SLOW,
                    f"others = [one['rank'] for one in ranks if one['state'] == {state}]\n"
                    f"    rank = (others or [rank])[{end}]\n    {IS_SLOW}",
                )
                for state in ("'running'", "'returned'", "ranks[rank]['state'] == 'running'")
                for end in (0, -1)
            ),
        ],
    ),
    g.Mistake(
        "goes by the CPU or the time",
        "A data loader keeps a core busy next to a rank that is blocked for ever, and a rank that "
        "waits for a disk uses no core. The rank that waits longest was only the first to be "
        "ready. Follow the waits instead.",
        [
            g.patch(IS_SLOW, "is_slow = ranks[rank]['cpu'] > 0.2"),
            *names("o['cpu']", "o['seconds']"),
        ],
    ),
    g.Mistake(
        "names a rank by its numbers",
        "Numbers count within one group, and messages have their own. Compare the number of a "
        "blocked rank with what the members of its group have posted in that group.",
        names("o['number']", "sum(o['posted'].values())"),
    ),
    g.Mistake(
        "overlooks that a message waits",
        "A blocked send or recv waits for its peer. Follow that wait like those of collectives.",
        [
            g.patch('["peer"]]', f'["peer"]] * (one["operation"] == "{followed}")')
            for followed in ("", "send", "recv")
        ],
    ),
    g.Mistake(
        "names a rank that leads into a cycle",
        "This rank waits for the cycle, and is not in it: no wait leads back to it. Go on until "
        "you come to a rank for the second time.",
        g.patch(RANK, RANK.replace("rank)", "path[0] if following else rank)")),
        wrong=lambda s: (
            s.y[0] == s.right[0][0]
            and len(culprits(s.xs)[1]) > 1
            and s.xs[s.y[1]]["state"] == "blocked"
        ),
        hint=2,
    ),
    g.Mistake(
        "looks at another count than that of the members in the group",
        "A rank blocked in number 4 of a group waits for the members whose number in `posted` for "
        "this group is absent or below 4. The last operation of a rank may be in another group, or "
        "follow one that is not complete, and a rank that is no member never posts there.",
        [
            g.patch('for member in one["members"]', "for member in range(len(ranks))"),
            *(
                g.patch(CONDITION, condition, "in ranks if", f"in ranks{way} if")
                for way in ("", "[::-1]")  # from the first rank or the last
                for condition in (
                    "if ranks[member]['group'] != one['group'] "
                    "or ranks[member]['number'] < one['number']",
                    "if ranks[member]['number'] < one['number']",
                    CONDITION.replace("<", ">="),
                    CONDITION.replace("0)", "one['number'])"),
                )
            ),
        ],
        hint=2,
    ),
    g.Mistake(
        "expects every group in `posted`",
        "A rank that has posted nothing in a group has no entry for it: posted.get(group, 0).",
        g.patch('["posted"].get(one["group"], 0) <', '["posted"][one["group"]] <'),
        crashed=lambda s: "KeyError" in s.error and "posted" not in s.error,  # no typing error
        hint=3,
    ),
    g.Mistake(
        "follows a cycle for ever",
        "In a cycle the waits lead back to a visited rank. Remember the path, and stop there.",
        g.patch("while rank not in path:", "while True:"),
        hung=lambda s: len(culprits(s.xs)[1]) > 1,
        hint=3,
    ),
]

GRADER = g.Questions(
    functions=("diagnose",),
    cases=cases,
    right=right,
    same=same,
    mistakes=MISTAKES,
    picture=table,
    shown="you tell stragglers, ranks that have returned and cycles of waits apart, over messages "
    "and several groups, and name the rank to look at",
)
