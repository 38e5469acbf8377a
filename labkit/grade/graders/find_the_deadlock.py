"""Grade find_the_deadlock: the calls of the five programs, crossed out as they meet.

tests/grade/test_deadlock_programs.py compares `waits` with real runs of the programs.
"""

import re
from collections.abc import Callable
from itertools import product
from typing import Any

from labkit.grade.grader import Case, Draw, Mistake, Observed, Questions, patch

Call = tuple[str, Any]
"""An operation, and the peer or the members of the group."""

CALLS: dict[str, Callable[[int, int], list[Call]]] = {
    "shift": lambda rank, n: [("recv", (rank - 1) % n), ("send", (rank + 1) % n)],
    "pass_it_on": lambda rank, n: [("send", (rank + 1) % n), ("recv", (rank - 1) % n)][
        :: 1 if rank else -1
    ],
    "log_the_loss": lambda rank, n: [("all_reduce", range(n))] * (1 if rank else 2),
    "epoch": lambda rank, n: [("all_reduce", range(n))] * len(range(rank, 10, n)),
    "two_groups": lambda rank, n: [("all_reduce", pair_of(rank, n)), ("barrier", range(n))][
        :: -1 if rank % 2 else 1
    ],
}
"""What a rank calls in each program, in order."""


def pair_of(rank: int, n: int) -> range:
    """The members of a rank's pair."""
    return range(rank - rank % 2, min(rank - rank % 2 + 2, n))


def waits(program: str, n: int) -> dict[int, str]:
    """Ranks that wait forever, and in what."""
    todo = [CALLS[program](rank, n) for rank in range(n)]
    while met := next((ranks for rank in range(n) if (ranks := met_by(todo, rank))), None):
        for rank in met:
            todo[rank] = todo[rank][1:]
    words = {"send": "send to {}", "recv": "recv from {}"}
    return {
        rank: words.get(calls[0][0], calls[0][0]).format(calls[0][1])
        for rank, calls in enumerate(todo)
        if calls
    }


def met_by(todo: list[list[Call]], rank: int) -> list[int]:
    """The ranks that complete a call together with this one; none where it has to wait."""
    if not todo[rank]:
        return []
    kind, whom = todo[rank][0]
    if kind in ("send", "recv"):
        other = ("recv" if kind == "send" else "send", rank)
        return [rank, whom] if todo[whom][:1] == [other] else []
    return list(whom) if all(todo[each][:1] == [(kind, whom)] for each in whom) else []


def cases(draw: Draw) -> list[Case]:
    """Each program on few ranks, and on many."""
    sizes = (2, 3, 4, 5, 6, 7, 10, 11, draw.rng.randrange(12, 30))
    return [
        Case(f"{n} ranks", n, function=f"waits_in_{program}", known=program)
        for program in CALLS
        for n in sizes
    ]


def right(n: int, known: str) -> dict[int, str]:
    """The right answer for the program `known`."""
    return waits(known, n)


def parsed(text: str) -> tuple[str, int | None]:
    """(operation, peer) of a text; another form raises ValueError."""
    found = re.fullmatch(r"(?:(send) to|(recv) from) (-?\d+)", text)
    if found is not None:
        return found[1] or found[2], int(found[3])
    if not re.fullmatch("[a-z_]+", text):
        raise ValueError(text)
    return text, None


def what_is_wrong(s: Observed) -> str:
    """The name of the mistake in an answer: first about its form, then ranks, then calls."""
    n, got, right = s.xs, s.y, s.right[0]
    if not all(type(rank) is int and 0 <= rank < n for rank in got):
        return "names a rank that does not exist"
    try:
        said = {rank: parsed(text) for rank, text in got.items()}
    except (TypeError, ValueError):
        return "names a call in another form"
    if not all(peer is None or 0 <= peer < n for _, peer in said.values()):
        return "names a neighbour that does not exist"
    if not right:
        return "sees a deadlock where there is none"
    if not got:
        return "overlooks a deadlock"
    if got.keys() - right:
        return "names ranks that return"
    if right.keys() - got:
        return "overlooks ranks that wait"
    pairs = [(said[rank], parsed(right[rank])) for rank in right if got[rank] != right[rank]]
    if all(one[0] == other[0] for one, other in pairs):
        return "names the wrong neighbour"
    return "names another call than the one it waits in"


SHIFT = 'f"recv from {(rank - 1) % world_size}"'
EPOCH, LOG = "range(10 % world_size)", 'return {0: "all_reduce"}'

MISTAKES = [
    Mistake(
        "gives the answer for one world size",
        "The answer does not depend on world_size, and is right for some sizes only. Work it out "
        "for 2, 3 and 4 ranks before you write a formula.",
        hint=2,
        formula=[
            lambda n, answer=answer: answer
            for program, size in product(CALLS, range(2, 12))
            if (answer := waits(program, size))
        ],
        made_by=patch(EPOCH, "range(1)"),
    ),
    Mistake(
        "names a rank that does not exist",
        "With n ranks the keys are the whole numbers 0 to n - 1.",
        hint=3,
        seen=lambda s: what_is_wrong(s) == "names a rank that does not exist",
        made_by=patch(f"{{rank: {SHIFT}", f"{{rank + 1: {SHIFT}"),
    ),
    Mistake(
        "names a call in another form",
        'Say "send to 2", "recv from 0", or the name of a collective, such as "all_reduce".',
        hint=3,
        seen=lambda s: what_is_wrong(s) == "names a call in another form",
        made_by=patch(SHIFT, SHIFT.replace("recv from", "waits for rank")),
    ),
    Mistake(
        "names a neighbour that does not exist",
        "The ranks form a ring. The left neighbour of rank 0 is (0 - 1) % n, so rank n - 1.",
        hint=3,
        seen=lambda s: what_is_wrong(s) == "names a neighbour that does not exist",
        made_by=patch(SHIFT, SHIFT.replace(" % world_size", "")),
    ),
    Mistake(
        "names the wrong neighbour",
        "The ranks are right, and so is the kind of the call. Put numbers into (rank - 1) % n and "
        "(rank + 1) % n, for rank 0 too.",
        hint=3,
        seen=lambda s: what_is_wrong(s) == "names the wrong neighbour",
        made_by=patch(SHIFT, SHIFT.replace("rank - 1", "rank + 1")),
    ),
    Mistake(
        "sees a deadlock where there is none",
        "Every rank returns. A cycle of calls is a deadlock only if no rank in it can go first. "
        "Look for one call that is met, and follow what that frees.",
        seen=lambda s: what_is_wrong(s) == "sees a deadlock where there is none",
        made_by=patch("return {}", 'return dict.fromkeys(range(world_size), "send to 0")'),
    ),
    Mistake(
        "overlooks a deadlock",
        "It does not end. Write down the first call of each rank, cross out calls that meet, and "
        "go on until you can cross out no more.",
        seen=lambda s: what_is_wrong(s) == "overlooks a deadlock",
        made_by=patch(LOG, "return dict()"),
    ),
    Mistake(
        "names ranks that return",
        "All calls of these ranks are met, so they return. A rank that has returned does not wait. "
        "Other ranks wait for it.",
        seen=lambda s: what_is_wrong(s) == "names ranks that return",
        made_by=patch(LOG, 'return dict.fromkeys(range(1, world_size), "all_reduce")'),
    ),
    Mistake(
        "overlooks ranks that wait",
        "A rank that waits for a stuck rank is stuck too.",
        hint=2,
        seen=lambda s: what_is_wrong(s) == "overlooks ranks that wait",
        made_by=patch(EPOCH, "range(10 % world_size - 1)"),
    ),
    Mistake(
        "names another call than the one it waits in",
        "A rank waits in its first call that is not met. It never reaches later calls. A "
        "collective of a group with one rank needs no other rank, so it completes.",
        hint=2,
        seen=lambda s: what_is_wrong(s) == "names another call than the one it waits in",
        made_by=patch("if world_size % 2:", "if False:"),
    ),
]

GRADER = Questions(
    name="find_the_deadlock",
    functions=tuple(f"waits_in_{program}" for program in CALLS),
    cases=cases,
    right=right,
    mistakes=MISTAKES,
    shown="you know which ranks wait forever, and in which call, on 2 ranks as on many",
)
