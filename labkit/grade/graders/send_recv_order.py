"""Grade send_recv_order: the messages of 1F1B, and no deadlock with sends that block."""

import re
from typing import Any

from labkit.grade.graded_schedules import as_list
from labkit.grade.grader import Case, Draw, Mistake, Observed, Questions, patch
from labkit.grade.outcome import Finding, Outcome

NAMES = {
    "form": "returns something that is no action",
    "rank": "a message with a rank that does not exist",
    "microbatch": "a message of a microbatch that does not exist",
    "stranger": "a message that 1F1B does not have",
    "order": "computes in another order",
    "need": "computes before it has received the input",
    "early": "sends a result before it is computed",
    "twice": "a message twice",
    "dropped": "leaves a message out",
    "pair": "sends and receives do not pair",
    "ended": "waits for a rank that has finished",
    "deadlock": "ranks wait for each other",
}
"""By the rule that is broken, as labkit.pipeline calls it."""
FORM = 'An action is "F0", ("send", "F0", 2), ("recv", "F0", 0), or a list of such messages.'
MESSAGES = (
    "Each message of 1F1B is sent once, after it is computed, and received once, before it is "
    "needed. The first send from one rank to another meets the first receive there."
)


def cases(draw: Draw) -> list[Case]:
    """Even and odd p, mostly with more microbatches than ranks; also with fewer, and one rank."""
    from labkit.pipeline import one_f_one_b, plan

    rng = draw.rng
    sizes = [(2, rng.randrange(3, 6)), (1, rng.randrange(1, 5)), (3, rng.randrange(4, 8)), (3, 2)]
    sizes += [(4, rng.randrange(5, 9)), (4, 4), (5, rng.randrange(6, 10)), (2, 1), (4, 2), (7, 9)]
    sizes += [
        (5, 3),
        (6, rng.randrange(7, 12)),
        (3, rng.randrange(8, 12)),
        (8, rng.randrange(2, 6)),
    ]
    rows = [[[*map(str, row)] for row in plan(one_f_one_b, p, m).rows] for p, m in sizes]
    return [Case(f"p={p}, m={m}", [*range(p)], p, m, its) for (p, m), its in zip(sizes, rows)]


def all_actions(watch: Any, args: tuple[Any, ...]) -> list[Any]:
    """Ask for the actions of each rank."""
    ranks, p, m, rows = args
    return [as_list(watch.function(rank, p, m, rows[rank])) for rank in ranks]


def messages(action: Any) -> list[Any]:
    """The sends and receives of an action; none if it computes."""
    if isinstance(action, str):
        return []
    return [action] if action and isinstance(action[0], str) else list(action)


def converted(action: Any, rank: int) -> Any:
    """An action as labkit.pipeline has it, where the result of B is called I."""
    from labkit.pipeline import Kind, Op
    from labkit.pipeline.messages import Recv, Send, Together

    if isinstance(action, str):
        return Op(Kind(action[0]), rank, int(action[1:]))
    ends = []
    for way, op, peer in messages(action):
        product = Kind({"F": "F", "B": "I"}[op[0]]), rank if way == "send" else peer, int(op[1:])
        ends.append({"send": Send, "recv": Recv}[way](product, peer))
    return ends[0] if len(ends) == 1 else Together(tuple(ends))


def problem(y: list[Any], args: tuple[Any, ...]) -> tuple[str, str, str, set[str]] | None:
    """(rule, reason, picture, kinds of the actions that wait) of rows that are not right."""
    from labkit.pipeline import one_f_one_b, plan
    from labkit.pipeline.messages import MessageError, require_actions
    from labkit.pipeline.rendezvous import require_end

    ranks, p, m, _ = args
    rows: list[list[Any]] = [[] for _ in ranks]
    for rank, row in enumerate(y):
        for action in row if isinstance(row, list) else [row]:
            shown = f"rank {rank} has {action!r:.60}"
            try:
                rows[rank] += [converted(action, rank)] if action not in ([], ()) else []
            except (ValueError, TypeError, KeyError, IndexError, AttributeError):
                return "form", shown, "", set()
            for _, op, peer in messages(action):
                if peer == rank or peer not in ranks:
                    return "rank", f"{shown}; the ranks are 0 to {p - 1}", "", set()
                if not 0 <= int(op[1:]) < m:
                    return "microbatch", f"{shown}; microbatches are 0 to {m - 1}", "", set()
    try:
        require_actions(plan(one_f_one_b, p, m), rows)
        require_end(rows)
    except MessageError as error:
        reason, _, picture = str(error).partition("\n")
        marked = [action for rank, at in error.marks.items() for action in rows[rank][at : at + 1]]
        kinds = {type(action).__name__ for action in marked}
        return error.rule, reason, f"{picture}\n> sends, < receives", kinds
    return None


def fault(s: Observed) -> Finding | None:
    """The broken rule in words."""
    if None in s.y or (found := problem(s.y, s.args)) is None:
        return None
    rule, reason, picture, _ = found
    return Finding(
        Outcome.WRONG,
        NAMES[rule],
        FORM if rule == "form" else MESSAGES,
        f"{s.label}: {reason}",
        3,
        picture=picture,
    )


def is_deadlock(s: Observed, *kinds: str) -> bool:
    """Whether ranks wait for each other; if kinds are named, in these kinds of messages only."""
    rule, *_, waiting = problem(s.y, s.args) or [""]
    return rule == "deadlock" and (not kinds or waiting == {*kinds})


def flow(row: list[Any]) -> str:
    """A row as letters: c computes, s sends, r receives."""
    assert isinstance(row, list)
    parts = [[each[0] for each in messages(action)] or ["c"] for action in row if action]
    return "".join(each[0] for part in parts for each in part)


def is_gpipe(s: Observed) -> bool:
    """Whether every rank computes all forwards first."""
    rows = [[each for each in row if isinstance(each, str)] for row in s.y]
    return rows == [sorted(row, key=lambda op: (op[0] == "B", int(op[1:]))) for row in s.args[3]]


IF_EXCHANGE = 'if isinstance(last, tuple) and last[0] == "send" and last[2] == source:'
POSTED = "actions[-1] = [last, receive]"
NEIGHBOURS = '(rank - 1, rank + 1) if op[0] == "F" else (rank + 1, rank - 1)'

MISTAKES = [
    Mistake(
        "both ranks send first",
        "A rank has computed a forward and wants a gradient from the next rank. That rank has "
        "computed the gradient and wants the forward. Both send, and a send waits for its receive.",
        seen=lambda s: s.args[2] > s.args[1] and is_deadlock(s, "Send"),
        made_by=patch(IF_EXCHANGE, "if False:"),
    ),
    Mistake(
        "both ranks receive first",
        "Where two ranks exchange messages, both are in a receive and neither sends. One of them "
        "sends first, or both post send and receive together.",
        seen=lambda s: s.args[2] > s.args[1] and is_deadlock(s, "Recv"),
        made_by=patch(POSTED, "actions[-1:] = [receive, last]"),
    ),
    Mistake(
        "a deadlock where microbatches are few",
        "A send and a receive with one rank are an exchange only if that rank has the two at the "
        "same point. A rank that is still in its warmup when the microbatches run out has none: "
        "its neighbour waits for the send first.",
        hint=2,
        seen=lambda s: s.args[2] <= s.args[1] and is_deadlock(s),
        made_by=patch(POSTED, "actions[-1:] = [receive, last] if rank % 2 else [last, receive]"),
    ),
    Mistake(
        "receives everything before it computes",
        "What a rank receives late depends on what it sends early: the gradient of a microbatch "
        "depends on its own forward.",
        seen=lambda s: all(re.fullmatch("r*[cs]*", flow(row)) for row in s.y),
        made_by=patch(
            *(IF_EXCHANGE, "if False:", "return actions"),
            'return sorted(actions, key=lambda action: action[0] != "recv")',
        ),
    ),
    Mistake(
        "sends nothing before its last operation",
        "The next rank waits for the first forward. The gradient that this rank waits for depends "
        "on it.",
        seen=lambda s: all(re.fullmatch("[cr]*s*", flow(row)) for row in s.y),
        made_by=patch(
            *(IF_EXCHANGE, "if False:", "return actions"),
            'return sorted(actions, key=lambda action: action[0] == "send")',
        ),
    ),
    Mistake(
        "turns 1F1B into GPipe",
        "GPipe has no deadlock, but each rank holds all m microbatches. Keep the order of the "
        "operations: 1F1B holds p - rank of them.",
        seen=is_gpipe,
        made_by=patch("in row:", "in sorted(row, key=lambda o: (o[0] == 'B', int(o[1:]))):"),
    ),
    Mistake(
        "takes gradients from the rank before",
        "F comes from rank - 1 and goes to rank + 1. B comes from rank + 1 and goes to rank - 1.",
        hint=3,
        seen=lambda s: any(
            (way, op[0], peer) == ("recv", "B", rank - 1)
            for rank, row in enumerate(s.y)
            for action in row
            for way, op, peer in messages(action)
        ),
        made_by=patch(NEIGHBOURS, "(rank - 1, rank + 1)"),
    ),
]

GRADER = Questions(
    name="send_recv_order",
    cases=cases,
    right=lambda ranks, p, m, rows: [[] for _ in ranks],  # only its form is looked at
    same=lambda got, right, case: problem(got, case.args) is None,
    call=all_actions,
    mistakes=MISTAKES,
    num_arguments=4,
    closed=("labkit.pipeline",),
    describe=lambda s: (problem(s.y, s.args) or ["", ""])[1],
    fault=fault,
    picture=lambda s: (problem(s.y, s.args) or [""] * 3)[2],
    shown="with messages that block, 1F1B comes to its end on up to 8 ranks, also with fewer "
    "microbatches than ranks",
)
