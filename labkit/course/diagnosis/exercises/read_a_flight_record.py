"""Grade read_a_flight_record: dumps of jobs that hang, with groups of two ranks and the world."""

import itertools
from collections.abc import Iterator
from random import Random
from typing import Any

from labkit.grade import grader as g

Dumps = list[dict[str, Any]]
OTHER = [
    {"input_sizes": [[2048]]},
    {"input_dtypes": ["BFloat16"]},
    {"profiling_name": "nccl:all_gather"},
]
"""Possible differences of a rank from the others."""


def cases(draw: g.Draw) -> Iterator[g.Case]:
    """Yield jobs in which ranks are missing, disagree, or wait for the network. In the first
    mismatch the culprit is rank 0. Each fifth turn hangs in the first collectives."""
    whats = itertools.product(range(12), ("missing", "mismatch", "running"))
    for number, (turn, what) in enumerate(whats):
        dumps, answer = job(draw.rng, what, turn)
        yield g.Case(f"job {number} of {len(dumps)} ranks", dumps, known=answer)


def entry(
    log: list[dict[str, Any]], group: tuple[str, str], state: str, is_p2p: bool = False
) -> dict[str, Any]:
    """Return the entry that a rank's next all-reduce leaves. Messages do not count."""
    is_in_group = [each["process_group"] == group and not each["is_p2p"] for each in log]
    return {
        "process_group": group,
        "collective_seq_id": sum(is_in_group) + (not is_p2p),
        "profiling_name": "nccl:all_reduce",
        "input_sizes": [[4096]],
        "input_dtypes": ["Float"],
        "state": state,
        "is_p2p": is_p2p,
    }


def job(rng: Random, what: str, turn: int) -> tuple[Dumps, Any]:
    """Return dumps of a job, and the right answer. At odd turns the job hangs in the world."""
    everyone = list(range((4, 8, 12)[turn % 3]))
    order = rng.sample(everyone, len(everyone))
    pairs = {str(at // 2 + 1): sorted(order[at : at + 2]) for at in everyone[::2]}
    groups = {"0": everyone, **pairs}
    description = {"0": "default_pg", **dict.fromkeys(pairs, "mesh_tp")}
    logs: list[list[dict[str, Any]]] = [[] for _ in everyone]

    def call(rank: int, group: str, state: str = "completed", **other: Any) -> None:
        its = entry(logs[rank], (group, description[group]), state, other.get("is_p2p", False))
        logs[rank].append(its | other)

    num_layers = rng.sample(range(2, 9), len(pairs))
    last_step = [0 for _ in everyone]
    for _ in range((turn + 1) % 5):
        last_step = [len(log) for log in logs]
        for (pair, members), layers in zip(pairs.items(), num_layers):
            for rank in members * layers:
                call(rank, pair)
        for rank in everyone:
            call(rank, "0")

    group = "0" if what == "mismatch" or turn % 2 else rng.choice(list(pairs))
    members = groups[group]
    number = entry(logs[members[0]], (group, description[group]), "")["collective_seq_id"]
    num_odd = rng.randrange(1, 3) if what == "missing" and group == "0" else 1
    odd = sorted(members[(turn // 2 * 5 + i) % len(members)] for i in range(num_odd))
    state = rng.choice(("completed", "scheduled"))
    for rank in everyone:
        call(rank, "0", state, profiling_name="nccl:recv 0<-1", is_p2p=True)
        if what == "missing" and rank in odd:
            continue
        here, other = group if rank in members else "0", {}
        if what == "mismatch" and rank in odd:
            other = OTHER[turn // 3 % 3]
        elif what == "running" and here == group == "0":
            other = {"profiling_name": "nccl:all_to_all", "input_sizes": [[rng.randrange(99)]]}
        call(rank, here, rng.choice(("started", "scheduled")), **other)
        if rng.random() < 0.5:
            call(rank, here, "scheduled")
    for pair, members in pairs.items():  # the other rank of a pair waits in the world's collective
        if group == "0" and not set(members) & set(odd):
            call(members[0], pair, "scheduled")

    dumps = []
    for rank, log in enumerate(logs):
        own = {name: ranks for name, ranks in groups.items() if rank in ranks}
        config = {
            name: {"name": name, "desc": description[name], "ranks": str(ranks)}
            for name, ranks in own.items()
        }
        entries = log[rng.randrange(last_step[rank] + 1) :]  # older ones are overwritten
        dumps.append({"pg_config": config, "entries": entries})
    return dumps, (what, group, number, [] if what == "running" else odd)


def describe(s: g.Observed) -> str:
    """Return the two answers, and the last entries of each member of the group to look at."""
    form = "#{collective_seq_id} {profiling_name} {input_dtypes[0]} {input_sizes[0]} {state}"
    group = s.right[0][1]
    lines = [f"got {s.y!r}, expected {s.right[0]!r}"]
    for rank, dump in enumerate(s.xs):
        its = [form.format(**each) for each in dump["entries"] if each["process_group"][0] == group]
        if its:
            lines.append(f"rank {rank}, group {group}: {', '.join(its[-2:])}")
    return "\n".join(lines)


def forgets_a_silent_rank(s: g.Observed) -> bool:
    """Return whether the answer omits missing ranks that called nothing in the group."""
    what, group, _, missing = s.right[0]
    called = {
        rank
        for rank in missing
        for each in s.xs[rank]["entries"]
        if each["process_group"][0] == group and not each["is_p2p"]
    }
    silent = {*missing} - called
    return what == "missing" and bool(silent) and not silent & {*s.y[3]}


MEMBERS, CALLED = 'json.loads(config["ranks"])', 'each["process_group"][0] == group'
MEANING = 'each["profiling_name"], each["input_dtypes"], sizes'
NO_P2P = ' if not each["is_p2p"]'
ANY_CAUSE = ("if not pending or any(waits[rank] for rank in missing):", "if not pending:")
MISTAKES = [
    g.Mistake(
        "compares numbers of different groups",
        "Each process group counts its own collectives. Number 7 of a pair and number 7 of the "
        "world are unrelated. Sort the entries by group first.",
        g.patch(
            "missing = [rank for rank in members if max(called[rank], default=0) < number]",
            'far = [max([0, *(e["collective_seq_id"] for e in its)]) for its in collectives]\n'
            "        missing = [rank for rank in members if far[rank] == min(far)]",
            *ANY_CAUSE,
        ),
    ),
    g.Mistake(
        "blames the ranks that wait",
        "The ranks with an entry for the collective have called it, and wait. The rank to look at "
        "is the one that has no entry with that number.",
        g.patch("number, missing)", "number, [r for r in members if r not in missing])"),
    ),
    g.Mistake(
        "takes a later collective than the first",
        "A rank may have called several collectives without waiting. The first one that is not "
        "completed holds up the later ones, so take the smallest number in the group.",
        [
            g.patch("number = min(pending", "number = max(pending", *cause)
            for cause in ((), ANY_CAUSE)
        ],
        hint=2,
    ),
    g.Mistake(
        "takes the ranks with entries for the members of a group",
        "A rank that has called nothing in a group has no entry there, and may be the one that is "
        "missing. The members are in pg_config.",
        [
            g.patch(MEMBERS, f"[r for r in {MEMBERS} if any({CALLED} for each in {its})]")
            for its in ("collectives[r]", 'dumps[r]["entries"]')
        ],
        wrong=forgets_a_silent_rank,
        hint=2,
    ),
    g.Mistake(
        "takes sends and receives for collectives",
        "A P2P entry has the number of the collective before it, and says nothing about that one. "
        "Leave out entries with is_p2p.",
        g.patch(NO_P2P, ""),
        hint=2,
    ),
    g.Mistake(
        "misunderstands `scheduled`",
        "A scheduled collective has been called and is not over. The rank waits in it, as in one "
        "that has started. Only `completed` is over.",
        [
            g.patch(NO_P2P + "]", NO_P2P + ' and each["state"] != "scheduled"]'),
            g.patch(
                "[[each for",
                '[[each | {"state": each["state"].replace("scheduled", "completed")} for',
            ),
        ],
        hint=2,
    ),
    g.Mistake(
        "takes dropped entries for missing calls",
        "The ring buffer has dropped old entries, more on some ranks than on others, so do not "
        "count entries. A rank has called all collectives up to its last number in the group.",
        g.patch(
            "max(called[rank], default=0) < number",
            "len(called[rank]) < max(map(len, called.values()))",
        ),
        hint=2,
    ),
    g.Mistake(
        "takes a consequence for the cause",
        "A rank is missing there because it waits in another group's collective. Go on to this.",
        g.patch(*ANY_CAUSE),
        hint=2,
    ),
    g.Mistake(
        "does not find the ranks that disagree",
        "All have called the collective, but a few with another name, dtype or sizes. Compare all "
        "three with what more than half have.",
        [
            *g.patches("max(meanings, key=meanings.count)", "meanings[0]", "members = []"),
            *g.patches(MEANING, *(MEANING.replace(part, "0") for part in MEANING.split(", "))),
        ],
        hint=3,
    ),
    g.Mistake(
        "takes an uneven all_to_all for a mismatch",
        "In an all_to_all each rank may send another number of rows, as with experts.",
        g.patch('is_uneven = each["profiling_name"] == "nccl:all_to_all"', "is_uneven = 0"),
        hint=3,
    ),
]

GRADER = g.Questions(
    cases=cases,
    right=lambda dumps, known: known,
    mistakes=MISTAKES,
    describe=describe,
    unexplained=(
        "another collective, or other ranks",
        "write down for each group the first collective in which a member waits, who has called "
        "it, and where the others wait",
    ),
    shown="you find the collective that holds up the others, among several groups and with old "
    "entries gone, and say which rank is missing there, which disagrees, or that it is the network",
)
