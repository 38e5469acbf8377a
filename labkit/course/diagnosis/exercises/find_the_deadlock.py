"""Grade find_the_deadlock: remove matching calls of the five programs until no more match.

tests/grade/test_deadlock_programs.py compares `waits` with real runs of the programs.
"""

from collections.abc import Sequence

from labkit.grade import grader as g

Call = tuple[str, str, Sequence[int]]
"""(the call as text, the kind of message or collective, its ranks)."""
PROGRAMS = ("shift", "pass_it_on", "log_the_loss", "epoch", "two_groups")


def calls(program: str, rank: int, n: int) -> list[Call]:
    """Return the calls of a rank in a program, in order."""
    left, right = (rank - 1) % n, (rank + 1) % n
    recv: Call = f"recv from {left}", "message", (left, rank)
    send: Call = f"send to {right}", "message", (rank, right)
    add: Call = "all_reduce", "all_reduce", range(n)
    meet: Call = "barrier", "barrier", range(n)
    add_in_pair: Call = "all_reduce", "all_reduce", range(n)[rank // 2 * 2 :][:2]
    return {
        "shift": [recv, send],
        "pass_it_on": [send, recv] if rank else [recv, send],
        "log_the_loss": [add] if rank else [add, add],
        "epoch": [add] * len(range(rank, 10, n)),
        "two_groups": [meet, add_in_pair] if rank % 2 else [add_in_pair, meet],
    }[program]


def waits(program: str, n: int) -> dict[int, str]:
    """Return the ranks that wait forever, with the call that each waits in."""
    todo = [calls(program, rank, n) for rank in range(n)]

    def is_met(call: Call) -> bool:
        return all(todo[rank] and todo[rank][0][1:] == call[1:] for rank in call[2])

    while met := next((its[0] for its in todo if its and is_met(its[0])), None):
        for rank in met[2]:
            todo[rank] = todo[rank][1:]
    return {rank: its[0][0] for rank, its in enumerate(todo) if its}


def cases(draw: g.Draw) -> list[g.Case]:
    """Return each program on few ranks, and on many."""
    sizes = (2, 3, 4, 5, 6, 7, 10, 11, draw.rng.randrange(12, 30))
    return [
        g.Case(f"{n} ranks", n, function=f"waits_in_{program}", known=program)
        for program in PROGRAMS
        for n in sizes
    ]


def what_is_wrong(s: g.Observed) -> str:
    """Return the name of the mistake in an answer: wrong calls first, then wrong ranks."""
    got, right = s.y, s.right[0]
    made = {rank: [call[0] for call in calls(s.case.known, rank, s.xs)] for rank in range(s.xs)}
    if any(call not in made.get(rank, ()) for rank, call in got.items()):
        return "names a call that the rank does not make"
    if not right:
        return "sees a deadlock where there is none"
    if not got:
        return "overlooks a deadlock"
    if got.keys() - right:
        return "names ranks that return"
    if right.keys() - got:
        return "overlooks ranks that wait"
    return "names another call than the one it waits in"


def mistake(name: str, why: str, made_by: g.Patch, hint: int) -> g.Mistake:
    """Return a mistake that holds where `what_is_wrong` returns its name."""
    return g.Mistake(name, why, made_by, wrong=lambda s: what_is_wrong(s) == name, hint=hint)


LOG = 'return {0: "all_reduce"}'
MISTAKES = [
    mistake(
        "names a call that the rank does not make",
        'A call is "send to 2", "recv from 0", or the name of a collective, such as "all_reduce". '
        "Ranks 0 to n - 1 form a ring: put numbers into (rank - 1) % n and (rank + 1) % n, for "
        "rank 0 too. The left neighbour of rank 0 is rank n - 1, not rank -1.",
        g.patch("(rank - 1) % world_size}", "rank - 1}"),
        hint=3,
    ),
    mistake(
        "sees a deadlock where there is none",
        "Every rank returns. A cycle of calls is a deadlock only if no rank in it can go first. "
        "Look for one call that is met, and follow what that frees.",
        g.patch("return {}", 'return {0: f"recv from {world_size - 1}"}'),
        hint=1,
    ),
    mistake(
        "overlooks a deadlock",
        "It does not end. Write down the first call of each rank, cross out calls that meet, and "
        "go on until you can cross out no more.",
        g.patch(LOG, "return dict()"),
        hint=1,
    ),
    mistake(
        "names ranks that return",
        "All calls of these ranks are met, so they return. A rank that has returned does not wait. "
        "Other ranks wait for it.",
        g.patch(LOG, 'return dict.fromkeys(range(1, world_size), "all_reduce")'),
        hint=1,
    ),
    mistake(
        "overlooks ranks that wait",
        "A rank that waits for a stuck rank is stuck too. Look at each rank, for several sizes: "
        "try 2, 3 and 4 ranks before you write a formula.",
        g.patch("range(10 % world_size)", "range(10 % world_size - 1)"),
        hint=2,
    ),
    mistake(
        "names another call than the one it waits in",
        "A rank waits in its first call that is not met. It never reaches later calls. A "
        "collective of a group with one rank needs no other rank, so it completes.",
        g.patch("if world_size % 2:", "if False:"),
        hint=2,
    ),
]

GRADER = g.Questions(
    functions=tuple(f"waits_in_{program}" for program in PROGRAMS),
    cases=cases,
    right=lambda n, known: waits(known, n),
    mistakes=MISTAKES,
    shown="you know which ranks wait forever, and in which call, on 2 ranks as on many",
)
