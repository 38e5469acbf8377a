"""Grade read_a_flight_record: dumps of jobs that hang, with groups of two ranks and the world.

absent        one or two ranks have not called a collective of the world
behind        a rank has not called its pair's collective; the others wait in the world's
other call    a rank calls another collective, or passes another size or dtype
slow network  all have called the same in the world; slow pair: in a pair
uneven        all have called an all_to_all of the world, with other sizes
"""

import json
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from labkit.grade.grader import Case, Draw, Mistake, Observed, Questions, close, patch

Entry = dict[str, Any]
Dumps = list[dict[str, Any]]
WHAT = {
    "absent": "missing",
    "behind": "missing",
    "other call": "mismatch",
    "slow network": "running",
    "slow pair": "running",
    "uneven": "running",
}
"""By story, the first part of the answer."""
WHAT_FIRST = list(WHAT).index("other call")
OTHER = [
    {"input_sizes": [[2048]]},
    {"input_dtypes": ["BFloat16"]},
    {"profiling_name": "nccl:all_gather"},
]
"""What a rank may do differently."""


def cases(draw: Draw) -> Iterator[Case]:
    """Four jobs of each story. In the first mismatch rank 0 is the odd one."""
    for number, story in enumerate(4 * list(WHAT)):
        dumps, answer = job(draw.rng, story, [0] if number == WHAT_FIRST else None)
        yield Case(f"job {number} of {len(dumps)} ranks", dumps, known=answer)


def job(rng: Random, story: str, odd: list[int] | None = None) -> tuple[Dumps, Any]:
    """The dumps of a job, and what happened. odd: the ranks to blame; None: drawn."""
    everyone = range(rng.choice((4, 6, 8)))
    order = rng.sample(everyone, len(everyone))
    pairs = {str(at // 2 + 1): sorted(order[at : at + 2]) for at in everyone[::2]}
    groups = {"0": list(everyone), **pairs}
    names = {name: (name, "mesh_tp" if name in pairs else "default_pg") for name in groups}
    logs: list[list[Entry]] = [[] for _ in everyone]
    counts = [dict.fromkeys(groups, 0) for _ in everyone]

    def call(rank: int, group: str, state: str = "completed", **other: Any) -> None:
        counts[rank][group] += "is_p2p" not in other
        entry = {"process_group": names[group], "collective_seq_id": counts[rank][group]}
        entry |= {"profiling_name": "nccl:all_reduce", "input_sizes": [[4096]]}
        entry |= {"input_dtypes": ["Float"], "state": state, "is_p2p": False}
        logs[rank].append(entry | other)

    num_layers = rng.sample(range(2, 7), len(pairs))
    for _ in range(rng.randrange(2, 5)):
        for (group, members), layers in zip(pairs.items(), num_layers, strict=True):
            for rank in members * layers:
                call(rank, group)
        for rank in everyone:
            call(rank, "0")
    group = rng.choice(list(pairs)) if story in ("behind", "slow pair") else "0"
    number, what = counts[groups[group][0]][group] + 1, WHAT[story]
    most = 2 if story == "absent" else 1
    culprits = odd or sorted(rng.sample(groups[group], rng.randrange(1, most + 1)))
    for rank in everyone:
        if what == "missing" and rank in culprits:
            continue
        other = rng.choice(OTHER) if what == "mismatch" and rank in culprits else {}
        if story == "uneven":
            other = {"profiling_name": "nccl:all_to_all", "input_sizes": [[rng.randrange(99)]]}
        state = rng.choice(("completed", "scheduled"))
        call(rank, "0", state, profiling_name="nccl:recv 0<-1", is_p2p=True)
        its = group if rank in groups[group] else "0"
        call(rank, its, rng.choice(("started", "scheduled")), **other)
        if rng.random() < 0.5:
            call(rank, its, "scheduled")
    dumps = []
    for rank, log in enumerate(logs):
        config = {n: {"name": n, "desc": names[n][1], "ranks": str(groups[n])} for n in groups}
        last = {each["process_group"]: i for i, each in enumerate(log) if not each["is_p2p"]}
        needed = [*last.values(), *(i for i, e in enumerate(log) if e["state"] != "completed")]
        own = {name: each for name, each in config.items() if rank in groups[name]}
        dumps.append({"pg_config": own, "entries": log[rng.randrange(min(needed) + 1) :]})
    return dumps, (what, group, number, [] if what == "running" else culprits)


def read(dumps: Dumps, is_cause_asked: bool = True) -> Any:
    """The answer; with the first group in which a rank waits, where the cause is not asked for."""
    logs = [[each for each in dump["entries"] if not each["is_p2p"]] for dump in dumps]
    busy = [any(each["state"] != "completed" for each in log) for log in logs]
    groups = {name: json.loads(its["ranks"]) for d in dumps for name, its in d["pg_config"].items()}
    for group, members in groups.items():
        its = {r: [e for e in logs[r] if e["process_group"][0] == group] for r in members}
        at = {r: {e["collective_seq_id"]: e for e in log} for r, log in its.items()}
        waits = [n for log in at.values() for n, e in log.items() if e["state"] != "completed"]
        if not waits:
            continue
        missing = [r for r in members if max(at[r], default=0) < min(waits)]
        if missing and not (is_cause_asked and any(busy[r] for r in missing)):
            return "missing", group, min(waits), missing
        if not missing:
            calls = [json.dumps(meaning(at[r][min(waits)])) for r in members]
            odd = [r for r, c in zip(members, calls) if calls.count(c) < len(calls) / 2]
            return "mismatch" if odd else "running", group, min(waits), odd
    return None


def meaning(entry: Entry) -> list[Any]:
    """What all ranks must agree on."""
    is_uneven = entry["profiling_name"] == "nccl:all_to_all"
    return [entry["profiling_name"], entry["input_dtypes"], is_uneven or entry["input_sizes"]]


def as_if(*changes: Callable[[Entry], list[Entry]]) -> Callable[[Observed], bool]:
    """Predicate: the answer is right if entries were other ones."""

    def seen(s: Observed) -> bool:
        changed = [
            [{**d, "entries": sum(map(change, d["entries"]), [])} for d in s.xs]
            for change in changes
        ]
        return bool(s.wrong_ranks) and any(close(s.y, read(dumps)) for dumps in changed)

    return seen


def is_dropped(s: Observed) -> bool:
    """Whether a rank has no entry of the collective named, and has one of a later one."""
    numbers = [
        [e["collective_seq_id"] for e in dump["entries"] if e["process_group"][0] == s.y[1]]
        for dump in s.xs
    ]
    return any(its and s.y[2] not in its and max(its) > s.y[2] for its in numbers)


def lowest(dumps: Dumps) -> list[int]:
    """The ranks with the lowest number, whatever its group."""
    numbers = [max(each["collective_seq_id"] for each in dump["entries"]) for dump in dumps]
    return [rank for rank, number in enumerate(numbers) if number == min(numbers)]


def picture(s: Observed) -> str:
    """By rank, each group with the numbers of its collectives that are not completed."""
    lines = []
    for rank, dump in enumerate(s.xs):
        found: dict[str, str] = {}
        for each in dump["entries"]:
            is_over = each["state"] == "completed"
            if not each["is_p2p"]:
                number = f"#{each['collective_seq_id']} {each['state']}"
                group = each["process_group"][0]
                found[group] = number if is_over else f"{found.get(group, '')}, {number}"
        its = "; ".join(f"group {group}: {text.strip(', ')}" for group, text in found.items())
        lines.append(f"rank {rank}  {its}")
    return "\n".join(lines)


ANY_CAUSE = ("if not pending or any(waits[rank] for rank in missing):", "if not pending:")
MISTAKES = [
    Mistake(
        "compares numbers of different groups",
        "Each process group counts its own collectives. Number 7 of a pair and number 7 of the "
        "world are unrelated. Sort the entries by group first.",
        seen=lambda s: s.y[3] == lowest(s.xs) != s.right[0][3],
        made_by=patch(
            "missing = [rank for rank in members if max(called[rank], default=0) < number]",
            'far = [max(each["collective_seq_id"] for each in its) for its in collectives]\n'
            "        missing = [rank for rank in members if far[rank] == min(far)]",
            *ANY_CAUSE,
        ),
    ),
    Mistake(
        "blames the ranks that wait",
        "The ranks with an entry for the collective have called it, and wait. The rank to look at "
        "is the one that has no entry with that number.",
        seen=lambda s: (
            s.right[0][0] == "missing"
            and tuple(s.y[1:3]) == s.right[0][1:3]
            and not set(s.y[3]) & set(s.right[0][3])
        ),
        made_by=patch("number, missing)", "number, [r for r in members if r not in missing])"),
    ),
    Mistake(
        "takes sends and receives for collectives",
        "A P2P entry has the number of the collective before it, and says nothing about that one. "
        "Leave out entries with is_p2p.",
        hint=2,
        seen=as_if(lambda e: [e | {"is_p2p": False}]),
        made_by=patch(' if not each["is_p2p"]', ""),
    ),
    Mistake(
        "misunderstands `scheduled`",
        "A scheduled collective has been called and is not over. The rank waits in it, as in one "
        "that has started. Only `completed` is over.",
        hint=2,
        seen=as_if(
            lambda e: [e | {"state": e["state"].replace("scheduled", "completed")}],
            lambda e: [e] if e["state"] != "scheduled" else [],
        ),
        made_by=patch(
            'if not each["is_p2p"]]', 'if not each["is_p2p"] and each["state"] != "scheduled"]'
        ),
    ),
    Mistake(
        "takes the last collective",
        "A rank may call several collectives without waiting. The later ones wait for the first "
        "that is not completed.",
        hint=2,
        seen=lambda s: s.y[1] == s.right[0][1] and s.y[2] > s.right[0][2],
        made_by=patch("min(pending, default=0)", "max(pending, default=0)", *ANY_CAUSE),
    ),
    Mistake(
        "takes a dropped entry for a missing call",
        "The ring buffer has dropped old entries, more on some ranks than on others. A rank has "
        "called all collectives up to the last number that it has in the group.",
        hint=2,
        seen=is_dropped,
        made_by=patch(
            'if each["state"] != "completed"\n        ]',
            "if any(number not in other for other in called.values())\n        ]",
            "max(called[rank], default=0) < number",
            "number not in called[rank]",
            *ANY_CAUSE,
        ),
    ),
    Mistake(
        "takes a consequence for the cause",
        "A rank is missing there because it waits in a collective of another group. Go on to that "
        "one.",
        hint=2,
        seen=lambda s: s.y[1] != s.right[0][1] and close(s.y, read(s.xs, is_cause_asked=False)),
        made_by=patch(*ANY_CAUSE),
    ),
    Mistake(
        "overlooks that the ranks disagree",
        "All have called the collective, but not with the same name, dtype and sizes. Compare all "
        "three.",
        hint=3,
        seen=lambda s: s.right[0][0] == "mismatch" and s.y[0] == "running",
        made_by=patch("odd = [rank for", "odd = [] and [rank for"),
    ),
    Mistake(
        "takes an uneven all_to_all for a mismatch",
        "In an all_to_all each rank may send another number of rows, as with experts.",
        hint=3,
        seen=lambda s: s.right[0][0] == "running" and s.y[0] == "mismatch",
        made_by=patch('is_uneven = each["profiling_name"] == "nccl:all_to_all"', "is_uneven = 0"),
    ),
]

GRADER = Questions(
    name="read_a_flight_record",
    cases=cases,
    right=lambda dumps, known: known,
    mistakes=MISTAKES,
    describe=lambda s: f"got {s.y!r}, expected {s.right[0]!r}",
    picture=picture,
    shown="you find the collective that holds up the others, among several groups and with old "
    "entries gone, and say who is missing there, who disagrees, or that it is the network",
)
