"""Grade read_a_flight_record: dumps of jobs that hang, with groups of two ranks and the world."""

from collections.abc import Iterator
from random import Random
from typing import Any

from labkit.grade import grader as g

Dumps = list[dict[str, Any]]
STORIES = {
    "absent": "missing",  # one or two ranks have not called a collective of the world
    "behind": "missing",  # a rank has not called its pair's; the others wait in the world's
    "other call": "mismatch",  # a rank calls another one, or passes another size or dtype
    "slow network": "running",
    "slow pair": "running",
    "uneven": "running",  # all have called an all_to_all of the world, with other sizes
}
"""The first part of the answer."""
OTHER = [
    {"input_sizes": [[2048]]},
    {"input_dtypes": ["BFloat16"]},
    {"profiling_name": "nccl:all_gather"},
]
"""What a rank may do differently."""


def cases(draw: g.Draw) -> Iterator[g.Case]:
    """Eight jobs of each story. In the first mismatch rank 0 is the odd one."""
    first = list(STORIES).index("other call")
    for number, story in enumerate(8 * list(STORIES)):
        dumps, answer = job(draw.rng, story, [0] if number == first else None)
        yield g.Case(f"job {number} of {len(dumps)} ranks", dumps, known=answer)


def job(rng: Random, story: str, odd: list[int] | None) -> tuple[Dumps, Any]:
    """The dumps of a job, and what happened. odd: the ranks to blame; None: drawn."""
    everyone = range(rng.choice((4, 6, 8)))
    order = rng.sample(everyone, len(everyone))
    pairs = {str(at // 2 + 1): sorted(order[at : at + 2]) for at in everyone[::2]}
    groups = {"0": list(everyone), **pairs}
    logs: list[list[dict[str, Any]]] = [[] for _ in everyone]
    counts = [dict.fromkeys(groups, 0) for _ in everyone]

    def call(rank: int, group: str, state: str = "completed", **other: Any) -> None:
        counts[rank][group] += "is_p2p" not in other
        usual = {
            "process_group": (group, description(group)),
            "collective_seq_id": counts[rank][group],
            "profiling_name": "nccl:all_reduce",
            "input_sizes": [[4096]],
            "input_dtypes": ["Float"],
            "state": state,
            "is_p2p": False,
        }
        logs[rank].append(usual | other)

    num_layers = rng.sample(range(2, 7), len(pairs))
    for _ in range(rng.randrange(2, 5)):
        for (group, members), layers in zip(pairs.items(), num_layers, strict=True):
            for rank in members * layers:
                call(rank, group)
        for rank in everyone:
            call(rank, "0")
    group = rng.choice(list(pairs)) if story in ("behind", "slow pair") else "0"
    number, what = counts[groups[group][0]][group] + 1, STORIES[story]
    num_odd = rng.randrange(1, 3) if story == "absent" else 1
    odd = odd or sorted(rng.sample(groups[group], num_odd))
    for rank in everyone:
        if what == "missing" and rank in odd:
            continue
        other = rng.choice(OTHER) if what == "mismatch" and rank in odd else {}
        if story == "uneven":
            other = {"profiling_name": "nccl:all_to_all", "input_sizes": [[rng.randrange(99)]]}
        state = rng.choice(("completed", "scheduled"))
        call(rank, "0", state, profiling_name="nccl:recv 0<-1", is_p2p=True)
        its = group if rank in groups[group] else "0"
        call(rank, its, rng.choice(("started", "scheduled")), **other)
        if rng.random() < 0.5:
            call(rank, its, "scheduled")
    for pair, members in pairs.items():  # the other one waits in the world's
        if story == "absent" and not set(members) & set(odd):
            call(members[0], pair, "scheduled")
    dumps = []
    for rank, log in enumerate(logs):
        own = {name: str(ranks) for name, ranks in groups.items() if rank in ranks}
        config = {n: {"name": n, "desc": description(n), "ranks": own[n]} for n in own}
        entries = log[rng.randrange(oldest_needed(log) + 1) :]
        dumps.append({"pg_config": config, "entries": entries})
    return dumps, (what, group, number, [] if what == "running" else odd)


def description(group: str) -> str:
    """As torch writes it."""
    return "default_pg" if group == "0" else "mesh_tp"


def oldest_needed(log: list[dict[str, Any]]) -> int:
    """What comes before may be gone: not the last of a group, nor what is not completed."""
    last = {each["process_group"]: i for i, each in enumerate(log) if not each["is_p2p"]}
    return min(*last.values(), *(i for i, e in enumerate(log) if e["state"] != "completed"))


def picture(s: g.Observed) -> str:
    """By rank, the last collectives of each group, with their states."""
    lines = []
    for rank, dump in enumerate(s.xs):
        called: dict[str, list[str]] = {}
        for each in dump["entries"]:
            if not each["is_p2p"]:
                its = called.setdefault(each["process_group"][0], [])
                its.append(f"#{each['collective_seq_id']} {each['state']}")
        last = (f"group {group}: {', '.join(its[-3:])}" for group, its in called.items())
        lines.append(f"rank {rank}  {'; '.join(last)}")
    return "\n".join(lines)


ANY_CAUSE = ("if not pending or any(waits[rank] for rank in missing):", "if not pending:")
MISTAKES = [
    g.Mistake(
        "compares numbers of different groups",
        "Each process group counts its own collectives. Number 7 of a pair and number 7 of the "
        "world are unrelated. Sort the entries by group first.",
        g.patch(
            "missing = [rank for rank in members if max(called[rank], default=0) < number]",
            'far = [max(each["collective_seq_id"] for each in its) for its in collectives]\n'
            "        missing = [rank for rank in members if far[rank] == min(far)]",
            *ANY_CAUSE,
        ),
    ),
    g.Mistake(
        "blames the ranks that wait",
        "The ranks with an entry for the collective have called it, and wait. The rank to look at "
        "is the one that has no entry with that number.",
        g.patch("number, missing)", "number, [r for r in members if r not in missing])"),
        seen=lambda s: (
            s.right[0][0] == "missing"
            and tuple(s.y[1:3]) == s.right[0][1:3]
            and not set(s.y[3]) & set(s.right[0][3])
        ),
    ),
    g.Mistake(
        "takes sends and receives for collectives",
        "A P2P entry has the number of the collective before it, and says nothing about that one. "
        "Leave out entries with is_p2p.",
        g.patch(' if not each["is_p2p"]', ""),
        hint=2,
    ),
    g.Mistake(
        "misunderstands `scheduled`",
        "A scheduled collective has been called and is not over. The rank waits in it, as in one "
        "that has started. Only `completed` is over.",
        [
            g.patch(
                'if not each["is_p2p"]]', 'if not each["is_p2p"] and each["state"] != "scheduled"]'
            ),
            g.patch(
                "= [[each for",
                '= [[each | {"state": each["state"].replace("scheduled", "completed")} for',
            ),
        ],
        hint=2,
    ),
    g.Mistake(
        "takes the last collective",
        "A rank may call several collectives without waiting. The later ones wait for the first "
        "that is not completed.",
        g.patch("min(pending, default=0)", "max(pending, default=0)", *ANY_CAUSE),
        seen=lambda s: s.y[1] == s.right[0][1] and s.y[2] > s.right[0][2],
        hint=2,
    ),
    g.Mistake(
        "takes a dropped entry for a missing call",
        "The ring buffer has dropped old entries, more on some ranks than on others. A rank has "
        "called all collectives up to the last number that it has in the group.",
        g.patch(
            'if each["state"] != "completed"\n        ]',
            "if any(number not in other for other in called.values())\n        ]",
            "max(called[rank], default=0) < number",
            "number not in called[rank]",
            *ANY_CAUSE,
        ),
        hint=2,
    ),
    g.Mistake(
        "takes a consequence for the cause",
        "A rank is missing there because it waits in a collective of another group. Go on to that "
        "one.",
        [
            g.patch(*ANY_CAUSE),
            g.patch(*ANY_CAUSE, "in configs.items()", "in list(configs.items())[::-1]"),
        ],
        hint=2,
    ),
    g.Mistake(
        "overlooks that the ranks disagree",
        "All have called the collective, but not with the same name, dtype and sizes. Compare all "
        "three.",
        g.patch("odd = [rank for", "odd = [] and [rank for"),
        seen=lambda s: s.right[0][0] == "mismatch" and s.y[0] == "running",
        hint=3,
    ),
    g.Mistake(
        "takes an uneven all_to_all for a mismatch",
        "In an all_to_all each rank may send another number of rows, as with experts.",
        g.patch('is_uneven = each["profiling_name"] == "nccl:all_to_all"', "is_uneven = 0"),
        seen=lambda s: s.right[0][0] == "running" and s.y[0] == "mismatch",
        hint=3,
    ),
]

GRADER = g.Questions(
    cases=cases,
    right=lambda dumps, known: known,
    mistakes=MISTAKES,
    describe=lambda s: f"got {s.y!r}, expected {s.right[0]!r}",
    picture=picture,
    shown="you find the collective that holds up the others, among several groups and with old "
    "entries gone, and say which rank is missing there, which disagrees, or that it is the network",
)
