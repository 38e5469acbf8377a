"""Grade straggler_or_deadlock: stuck jobs, as a cluster's tools would show them.

The jobs are small programs. `evidence` works out where each rank gets stuck;
tests/grade/test_straggler_cases.py compares that with real runs.

    compute   a computes; the others wait in an all_reduce of the world
    input     a waits for its input; b receives from a, c from b, d from c; e has returned
    pair      a computes; b waits for it in their pair's group, the others in the world's
    ahead     a computes; the others have posted an all_reduce. b has also posted the next one, and
              waits for a message from the last rank
    left      a has returned; the others wait in an all_reduce of the world
    silent    a has returned; b waits for a message from it, the others at a barrier
    sends     a sends to b, b to c, c to a; d receives from a, e from d
    aside     a sends to b, b to a; d and e as in sends; c computes, and nobody waits for it
    crossed   a waits for b in the pair's group, b for a at a barrier; the others at that barrier
"""

import functools
import itertools
import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from labkit.grade.grader import Case, Draw, Mistake, Observed, Outcome, Patch, Questions, patch
from labkit.grade.outcome import Finding

Rank = dict[str, Any]
Program = list[tuple[str, Any]]
"""What a rank does: ("all_reduce", group), ("send", rank), ("compute", None)."""
STORIES = ("compute", "input", "pair", "ahead", "left", "silent", "sends", "aside", "crossed")
WORLD = "world"
JOBS_PER_STORY = 12
IS_RUNNING = {"compute": "x = (x @ x).clamp(0, 1)", "input": "batch = next(batches)"}
STARTED = {"start all_reduce": "all_reduce", "isend": "send"}
"""Operations that do not block, and their names in the evidence."""


def cases(draw: Draw) -> list[Case]:
    """Several jobs of each story, in any order, with any rank as the culprit."""
    rng = draw.rng
    stories = rng.sample(STORIES * JOBS_PER_STORY, len(STORIES) * JOBS_PER_STORY)
    return [Case(f"job {i}", job(story, rng)) for i, story in enumerate(stories, start=1)]


def job(story: str, rng: random.Random) -> list[Rank]:
    """The evidence of one job of 5 to 8 ranks."""
    n = rng.randrange(5, 9)
    order = rng.sample(range(n), n)
    groups, programs = job_programs(story, order, rng.randrange(1, 4), rng.choice((0, 5, 6, 7, 8)))
    ranks = evidence(groups, programs)
    busy = rng.choice(order[1:]) if story in ("left", "crossed") else None  # a data loader's core
    waited_s, late_s = rng.uniform(60, 600), [rng.uniform(0, 5) for _ in order]
    late_s[order[0]] = (
        6 if story == "compute" else 0 if ranks[order[0]]["state"] != "blocked" else 3
    )
    for rank in ranks:
        is_busy = rank["rank"] == busy or programs[rank["rank"]][-1][0] == "compute"
        rank["seconds"] = round(waited_s - late_s[rank["rank"]], 3)
        rank["cpu"] = round(rng.uniform(0.9, 1.1) if is_busy else rng.uniform(0, 0.04), 2)
        rank["stack"] = stack(rank, programs[rank["rank"]][-1][0])
    return ranks


def stack(rank: Rank, last: str) -> str:
    """The line of code that a rank is at."""
    if rank["state"] != "blocked":
        return IS_RUNNING[last] if rank["state"] == "running" else ""
    group = "world" if rank["group"] == WORLD else "pair"
    return f"{group}.{rank['operation']}({'' if rank['operation'] == 'barrier' else 'x'})"


def job_programs(
    story: str, order: Sequence[int], num_steps: int, num_pair_steps: int
) -> tuple[dict[str, list[int]], list[Program]]:
    """The groups of a job, and each rank's program. order: the ranks in the roles a, b, c, ..."""
    groups = {WORLD: list(range(len(order)))}
    programs: list[Program] = [[] for _ in order]
    for place, rank in enumerate(order):
        pair = f"{WORLD}.1.{place // 2}"
        groups.setdefault(pair, sorted(order[place - place % 2 :][:2]))
        steps = [("split", WORLD)] + [("all_reduce", WORLD)] * num_steps
        steps += [("all_reduce", pair)] * num_pair_steps
        programs[rank] = steps + ending(story, "abcde"[min(place, 4)], order, pair)
    return groups, programs


def ending(story: str, role: str, order: Sequence[int], pair: str) -> Program:
    """What a rank does after all trained together for a while."""
    a, b, c, d = (*order, None)[:4]
    in_world, in_pair, barrier = ("all_reduce", WORLD), ("all_reduce", pair), ("barrier", WORLD)
    compute, wait_for_a = ("compute", None), {"d": [("recv", a)], "e": [("recv", d)]}
    chain = {"a": [("input", None)], "b": [("recv", a)], "c": [("recv", b)], "d": [("recv", c)]}
    ahead = [("start all_reduce", WORLD), ("start all_reduce", WORLD), ("recv", order[-1])]
    programs = {
        "compute": ({"a": [("isend", b), compute]}, [in_world]),
        "input": (chain, []),
        "pair": ({"a": [compute], "b": [in_pair, in_world]}, [in_world]),
        "ahead": ({"a": [compute], "b": ahead}, [in_world]),
        "left": ({"a": []}, [in_world]),
        "silent": ({"a": [], "b": [("recv", a)]}, [barrier]),
        "sends": ({"a": [("send", b)], "b": [("send", c)], "c": [("send", a)], **wait_for_a}, []),
        "aside": ({"a": [("send", b)], "b": [("send", a)], "c": [compute], **wait_for_a}, []),
        "crossed": ({"b": [barrier]}, [in_pair, barrier]),
    }
    by_role, others = programs[story]
    return by_role.get(role, others)


def evidence(groups: dict[str, list[int]], programs: Sequence[Program]) -> list[Rank]:
    """Perform the programs until no rank moves any more; what each has posted, and its state."""
    ranks: list[Rank] = [{"rank": rank, "posted": {}} for rank in range(len(programs))]
    messages: Counter[tuple[str, int, int]] = Counter()
    position, has_posted = [0] * len(ranks), [False] * len(ranks)

    def post(rank: int, what: str, target: Any) -> None:
        kind = STARTED.get(what, what)
        its = {"operation": kind, "peer": None, "group": target}
        if target in groups:
            number = ranks[rank]["posted"][target] = ranks[rank]["posted"].get(target, 0) + 1
        else:
            messages[kind, rank, target] += 1
            number, its = messages[kind, rank, target], {**its, "peer": target, "group": WORLD}
        ranks[rank] |= {**its, "members": groups[its["group"]], "number": number}

    def is_complete(rank: int, what: str, target: Any) -> bool:
        if what in STARTED:
            return True
        number = ranks[rank]["number"]
        if target in groups:
            return all(ranks[r]["posted"].get(target, 0) >= number for r in groups[target])
        return messages["recv" if what == "send" else "send", target, rank] >= number

    has_moved = True
    while has_moved:
        has_moved = False
        for rank, program in enumerate(programs):
            while position[rank] < len(program):
                what, target = program[position[rank]]
                if what in IS_RUNNING:
                    break
                if not has_posted[rank]:
                    post(rank, what, target)
                    has_posted[rank] = has_moved = True
                if not is_complete(rank, what, target):
                    break
                position[rank], has_posted[rank], has_moved = position[rank] + 1, False, True
    for rank, program in enumerate(programs):
        is_running = position[rank] < len(program) and program[position[rank]][0] in IS_RUNNING
        state = "returned" if position[rank] == len(program) else "blocked"
        ranks[rank]["state"] = "running" if is_running else state
    return ranks


Who = Callable[[list[Rank], Rank, int], bool]
"""Whether a rank that is blocked in a collective waits for another one."""


def posted(ranks: list[Rank], one: Rank, other: int) -> int:
    """The number of the last collective that a rank has posted in the group of `one`."""
    return int(ranks[other]["posted"].get(one["group"], 0))


def is_behind(ranks: list[Rank], one: Rank, other: int) -> bool:
    """Whether a rank has not posted the collective that `one` is blocked in."""
    return posted(ranks, one, other) < one["number"]


def is_missing(ranks: list[Rank], one: Rank, other: int) -> bool:
    """Whether it is also a member."""
    return other in one["members"] and is_behind(ranks, one, other)


def waits_for(ranks: list[Rank], one: Rank, who: Who = is_missing) -> list[int]:
    """The ranks that a rank waits for directly."""
    if one["state"] != "blocked":
        return []
    if one["peer"] is not None:
        return [one["peer"]]
    return [other for other in range(len(ranks)) if who(ranks, one, other)]


def right(ranks: list[Rank]) -> tuple[str, list[int]]:
    """The fault, and every rank that may be named: a cycle, or where all waits end."""
    waits = {one["rank"]: set(waits_for(ranks, one)) for one in ranks}
    reached = dict(waits)
    for _ in ranks:
        reached = {r: its.union(*(reached[other] for other in its)) for r, its in reached.items()}
    if cycle := [rank for rank in waits if rank in reached[rank]]:
        return "deadlock", cycle
    ends = sorted({end for its in reached.values() for end in its if not waits[end]})
    return ("straggler" if ranks[ends[0]]["state"] == "running" else "deadlock"), ends


def same(got: Any, expected: Any, case: Case) -> bool:
    """Whether an answer is one of those expected; None for the fault stands for both."""
    fault, ranks = expected
    return (
        isinstance(got, list | tuple)
        and len(got) == 2
        and got[0] in ("straggler", "deadlock")
        and fault in (None, got[0])
        and type(got[1]) is int
        and got[1] in ranks
    )


Rule = Callable[[list[Rank]], Any]


def fault_is(rule: Rule) -> Rule:
    """A formula that tells the fault only: a straggler where the rule holds."""
    return lambda ranks: ("straggler" if rule(ranks) else "deadlock", range(len(ranks)))


def most(key: Callable[[Rank], float], *states: str) -> Rule:
    """A formula for the rank with the largest key, of those in some states."""

    def rank(ranks: list[Rank]) -> tuple[None, list[int]]:
        asked = [one for one in ranks if not states or one["state"] in states]
        return None, [max(asked, key=key)["rank"]]

    return rank


def is_any(ranks: list[Rank], state: str) -> bool:
    """Whether any rank is in a state."""
    return any(one["state"] == state for one in ranks)


def is_busy(ranks: list[Rank]) -> bool:
    """Whether a rank that is right keeps a core busy."""
    return max(ranks[rank]["cpu"] for rank in right(ranks)[1]) > 0.5


def blocked(ranks: list[Rank]) -> list[Rank]:
    """The ranks that are blocked."""
    return [one for one in ranks if one["state"] == "blocked"]


def misread(*misreadings: Who) -> list[Rule]:
    """Formulas that follow the waits to their end, where a collective waits for other ranks."""

    def follow(ranks: list[Rank], who: Who, start: int, turn: int) -> tuple[str, list[int]]:
        rank, path = blocked(ranks)[start]["rank"], []
        while rank not in path:
            path.append(rank)
            following = waits_for(ranks, ranks[rank], who)
            if not following:
                return "straggler" if ranks[rank]["state"] == "running" else "deadlock", [rank]
            rank = following[turn]
        return "deadlock", path[path.index(rank) :]

    return [
        functools.partial(follow, who=who, start=start, turn=turn)
        for who in misreadings
        for start, turn in itertools.product((0, -1), (0, -1))
    ]


def is_behind_the_last(ranks: list[Rank], one: Rank, other: int) -> bool:
    """Whether a member has not posted the last collective of the group."""
    last = max(posted(ranks, one, each) for each in one["members"])
    return other in one["members"] and posted(ranks, one, other) < last


def is_elsewhere(ranks: list[Rank], one: Rank, other: int) -> bool:
    """Whether the last operation of a member is in another group, or has a lower number."""
    is_lower = ranks[other]["number"] < one["number"]
    return other in one["members"] and (ranks[other]["group"] != one["group"] or is_lower)


def has_lower_number(ranks: list[Rank], one: Rank, other: int) -> bool:
    """Whether the last operation of a member has a lower number, in whatever group."""
    return other in one["members"] and ranks[other]["number"] < one["number"]


def has_posted(ranks: list[Rank], one: Rank, other: int) -> bool:
    """Whether a member has posted the collective."""
    return other in one["members"] and not is_behind(ranks, one, other)


def is_level(ranks: list[Rank], one: Rank, other: int) -> bool:
    """Whether a member has posted this collective or is behind it."""
    return other in one["members"] and posted(ranks, one, other) <= one["number"]


def has_posted_too(ranks: list[Rank], one: Rank, other: int) -> bool:
    """Whether another member has posted the collective."""
    return other != one["rank"] and has_posted(ranks, one, other)


def fault(s: Observed) -> Finding | None:
    """What is wrong with a single answer, where no rule explains all of them."""
    if not s.wrong_ranks:
        return None
    kind, ranks = s.right[0]
    told = f"{s.label}: {describe(s)}"

    def finding(name: str, why: str, hint: int = 2) -> Finding:
        return Finding(Outcome.WRONG, name, why, told, hint, picture=table(s))

    if not isinstance(s.y, list | tuple) or not same(s.y, (None, range(len(s.xs))), s.case):
        why = "the contract is a pair such as ('straggler', 2) or ('deadlock', 0)"
        return finding("returns no fault and rank", why)
    if s.y[0] != kind:
        if kind == "straggler":
            why = "every wait leads to a rank that is running: it may still post its part"
            return finding("takes a slow rank for a deadlock", why)
        if s.xs[ranks[0]]["state"] == "returned":
            why = "ranks wait for a rank that has returned: it will not make another call"
            return finding("overlooks that a rank has returned", why)
        why = "ranks wait for each other in a cycle, and none of them can go first"
        return finding("overlooks a cycle", why)
    awaited = {other for one in s.xs for other in waits_for(s.xs, one)}
    if s.y[1] not in awaited:
        why = "no rank waits for this rank. Follow the waits of the blocked ranks to their end"
        return finding("names a rank for which no rank waits", why)
    if len(ranks) > 1:
        why = "this rank waits for the cycle, and is not in it: no wait leads back to it"
        return finding("names a rank that leads into a cycle", why)
    why = "ranks wait for this rank, but it is blocked itself. Go on from there"
    return finding("stops at the first wait", why)


def describe(s: Observed) -> str:
    """The answer and the right one, in words."""
    kind, ranks = s.right[0]
    its = "rank" if len(ranks) == 1 else "one of the ranks"
    return f"got {s.y!r}, expected {kind!r} and {its} {', '.join(map(str, ranks))}"


def table(s: Observed) -> str:
    """What was shown of the job, one line per rank."""
    names = ("rank", "state", "operation", "peer", "group", "number", "posted")
    numbers = (", ".join(f"{g} {k}" for g, k in one["posted"].items()) for one in s.xs)
    shown = [{**one, "posted": its} for one, its in zip(s.xs, numbers, strict=True)]
    rows = [list(names), *([str(one[name]) for name in names] for one in shown)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def names(rank: str) -> Patch:
    """A program that finds the right fault, and names another rank."""
    return patch(
        '"deadlock", rank)\n        rank',
        f'"deadlock", {rank})\n        rank',
        END,
        END.replace("rank", rank),
    )


END = 'return ("deadlock", rank)'
CONDITION = 'if ranks[member]["posted"].get(one["group"], 0) < one["number"]'
MISTAKES = [
    Mistake(
        "calls everything a deadlock",
        "Waiting for a long time is no proof: others wait as long for a straggler. The proof is a "
        "cycle of waits, or a wait for a rank that has returned.",
        formula=fault_is(lambda ranks: False),
        made_by=patch('"straggler" if is_slow else "deadlock"', '"deadlock"'),
    ),
    Mistake(
        "calls everything a straggler",
        "More time does not help ranks that wait for each other, or for a rank that has returned.",
        formula=fault_is(lambda ranks: True),
        made_by=patch(
            *('"straggler" if is_slow else "deadlock"', '"straggler"'),
            *('return ("deadlock", rank)', 'return ("straggler", rank)'),
        ),
    ),
    Mistake(
        "goes by the CPU",
        "A data loader keeps a core busy next to a rank that is blocked for ever, and a rank that "
        "waits for a slow disk uses no core. Follow the waits instead.",
        formula=[
            fault_is(lambda ranks: max(one["cpu"] for one in ranks) > 0.5),
            fault_is(lambda ranks: is_busy(ranks) and len(right(ranks)[1]) == 1),
            most(lambda one: one["cpu"]),
            most(lambda one: -one["cpu"]),
            most(lambda one: -one["cpu"], "blocked"),
        ],
        made_by=patch(
            'is_slow = ranks[rank]["state"] == "running"', 'is_slow = ranks[rank]["cpu"] > 0.2'
        ),
    ),
    Mistake(
        "takes any running rank for a straggler",
        "A running rank is a straggler only if a blocked rank waits for it, directly or through "
        "others. Follow the waits and see where they end.",
        hint=2,
        formula=fault_is(lambda ranks: is_any(ranks, "running")),
        made_by=patch(
            "    rank = next(",
            '    if any(one["state"] == "running" for one in ranks):\n'
            '        return "straggler", [o["rank"] for o in ranks if o["state"] == "running"][0]\n'
            "    rank = next(",
        ),
    ),
    Mistake(
        "looks only for ranks that have returned",
        "A rank that has returned matters only if a blocked rank waits for it. A deadlock can also "
        "be a cycle of ranks that are all there.",
        hint=2,
        formula=[
            fault_is(lambda ranks: not is_any(ranks, "returned")),
            fault_is(lambda ranks: is_any(ranks, "running") and not is_any(ranks, "returned")),
        ],
        made_by=patch(
            *('"straggler" if is_slow else "deadlock"', "fault"),
            *('return ("deadlock", rank)', "return (fault, rank)"),
            "    rank = next(",
            '    gone = any(one["state"] == "returned" for one in ranks)\n'
            '    fault = "deadlock" if gone else "straggler"\n'
            "    rank = next(",
        ),
    ),
    Mistake(
        "goes by the time",
        "The rank that waits longest was the first to be ready. The last to arrive has arrived. "
        "The others wait for a rank that has not posted its part.",
        formula=[
            most(lambda one, sign=sign: sign * one["seconds"], *states)
            for sign in (1, -1)
            for states in ((), ("blocked",), ("blocked", "running"))
        ],
        made_by=names('max(ranks, key=lambda o: o["seconds"])["rank"]'),
    ),
    Mistake(
        "names the rank with the lowest number",
        "Numbers count within one group, and messages have their own. Compare the number of a "
        "blocked rank with what the members of its group have posted in that group.",
        formula=[
            most(lambda one: -one["number"]),
            most(lambda one: -one["number"], "blocked"),
            most(lambda one: -sum(one["posted"].values())),
            most(lambda one: -one["posted"][WORLD]),
        ],
        made_by=names('min(ranks, key=lambda o: o["number"])["rank"]'),
    ),
    Mistake(
        "asks ranks that are not members",
        "A collective waits for the members of its group only. A rank that is not in `members` "
        "has posted nothing there, and no rank waits for it.",
        hint=2,
        formula=misread(is_behind),
        made_by=patch('for member in one["members"]', "for member in range(len(ranks))"),
    ),
    Mistake(
        "compares with the group's last collective",
        "A rank may post a collective before an earlier one is complete. A rank blocked in number "
        "4 waits for the members that have not posted number 4, not for those behind the last.",
        hint=2,
        formula=misread(is_behind_the_last),
        made_by=patch(
            CONDITION,
            'if ranks[member]["posted"].get(one["group"], 0)\n'
            '            < max(r["posted"].get(one["group"], 0) for r in ranks)',
        ),
    ),
    Mistake(
        "looks at the last operation of the others",
        "A member may have posted this collective, and then an operation in another group. "
        "`posted` says for each group how far it has come.",
        hint=2,
        formula=misread(is_elsewhere, has_lower_number),
        made_by=patch(
            CONDITION,
            'if ranks[member]["group"] != one["group"] or ranks[member]["number"] < one["number"]',
        ),
    ),
    Mistake(
        "waits for members that have posted",
        "A collective waits for the members that have not posted it: those whose number in "
        "`posted` is below the number of the blocked rank.",
        hint=2,
        formula=misread(has_posted, has_posted_too, is_level),
        made_by=patch(CONDITION, CONDITION.replace("<", "<=")),
    ),
    Mistake(
        "expects every group in `posted`",
        "A rank that has posted nothing in a group has no entry for it: posted.get(group, 0).",
        hint=3,
        outcome=Outcome.CRASHED,
        seen=lambda s: "KeyError" in s.error,
        made_by=patch('["posted"].get(one["group"], 0) <', '["posted"][one["group"]] <'),
    ),
    Mistake(
        "follows a cycle for ever",
        "In a cycle the waits come back to a rank where you have been. Remember the path, and stop "
        "there.",
        hint=3,
        outcome=Outcome.HUNG,
        seen=lambda s: len(s.right[0][1]) > 1,
        made_by=patch("while rank not in path:", "while True:"),
    ),
]

GRADER = Questions(
    name="straggler_or_deadlock",
    functions=("diagnose",),
    cases=cases,
    right=right,
    same=same,
    mistakes=MISTAKES,
    fault=fault,
    describe=describe,
    picture=table,
    shown="you tell stragglers, ranks that have returned and cycles of waits apart, over messages "
    "and several groups, and name the rank to look at",
)
