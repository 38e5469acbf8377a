"""Grade send_recv_order: the messages of 1F1B, and no deadlock with sends that block."""

import re
from typing import Any

from labkit.grade import grader as g
from labkit.grade.graded_schedules import as_list
from labkit.grade.outcome import Finding

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


def cases(draw: g.Draw) -> list[g.Case]:
    """Even and odd p, mostly with more microbatches than ranks; also with fewer, and one rank."""
    from labkit.pipeline import one_f_one_b, plan

    r = draw.rng.randrange
    sizes = [(2, r(3, 6)), (1, r(1, 5)), (3, r(4, 8)), (3, 2), (4, r(5, 9)), (4, 4), (5, r(6, 10))]
    sizes += [(2, 1), (4, 2), (7, 9), (5, 3), (6, r(7, 12)), (3, r(8, 12)), (8, r(2, 6))]
    rows = [[[*map(str, row)] for row in plan(one_f_one_b, p, m).rows] for p, m in sizes]
    return [g.Case(f"p={p}, m={m}", [*range(p)], p, m, its) for (p, m), its in zip(sizes, rows)]


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


def problem(y: list[Any], args: tuple[Any, ...]) -> tuple[str, str, str, set[str]]:
    """(rule, reason, picture, kinds of the actions that wait); no rule where all are kept."""
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
    return "", "", "", set()


def fault(s: g.Observed) -> Finding | None:
    """The broken rule in words."""
    if None in s.y or not s.wrong_ranks:
        return None
    rule, reason, picture, _ = problem(s.y, s.args)
    why, seen = FORM if rule == "form" else MESSAGES, f"{s.label}: {reason}"
    return Finding(g.Outcome.WRONG, NAMES[rule], why, seen, 3, picture=picture)


def waiting(s: g.Observed) -> set[str]:
    """Where ranks wait for each other, the kinds of actions that wait; none elsewhere."""
    rule, *_, kinds = problem(s.y, s.args)
    return kinds if rule == "deadlock" else set()


def flow(row: list[Any]) -> str:
    """A row as letters: c computes, s sends, r receives."""
    assert isinstance(row, list)
    parts = [[each[0] for each in messages(action)] or ["c"] for action in row if action]
    return "".join(each[0] for part in parts for each in part)


IF_EXCHANGE = 'if isinstance(last, tuple) and last[0] == "send" and last[2] == source:'
POSTED = "actions[-1] = [last, receive]"
NEIGHBOURS = '(rank - 1, rank + 1) if op[0] == "F" else (rank + 1, rank - 1)'

MISTAKES = [
    g.Mistake(
        "both ranks send first",
        "A rank has computed a forward and wants a gradient from the next rank. That rank has "
        "computed the gradient and wants the forward. Both send, and a send waits for its receive.",
        g.patch(IF_EXCHANGE, "if False:"),
        seen=lambda s: s.args[2] > s.args[1] and waiting(s) == {"Send"},
    ),
    g.Mistake(
        "both ranks receive first",
        "Where two ranks exchange messages, both are in a receive and neither sends. One of them "
        "sends first, or both post send and receive together.",
        g.patch(POSTED, "actions[-1:] = [receive, last]"),
        seen=lambda s: s.args[2] > s.args[1] and waiting(s) == {"Recv"},
    ),
    g.Mistake(
        "a deadlock where microbatches are few",
        "A send and a receive with one rank are an exchange only if that rank has the two at the "
        "same point. A rank that is still in its warmup when the microbatches run out has none: "
        "its neighbour waits for the send first.",
        g.patch(POSTED, "actions[-1:] = [receive, last] if rank % 2 else [last, receive]"),
        seen=lambda s: s.args[2] <= s.args[1] and waiting(s) != set(),
        hint=2,
    ),
    g.Mistake(
        "receives everything first, or sends everything last",
        "What a rank receives late depends on what it sends early: the gradient of a microbatch "
        "depends on its own forward, for which the next rank waits.",
        [
            g.patch(
                IF_EXCHANGE, "if False:", "return actions", f"return sorted(actions, key={key})"
            )
            for key in ("lambda action: action[0] != 'recv'", "lambda action: action[0] == 'send'")
        ],
        seen=lambda s: all(re.fullmatch("r*[cs]*|[cr]*s*", flow(row)) for row in s.y),
    ),
    g.Mistake(
        "turns 1F1B into GPipe",
        "GPipe has no deadlock, but each rank holds all m microbatches. Keep the order of the "
        "operations: 1F1B holds p - rank of them.",
        g.patch("in row:", "in sorted(row, key=lambda o: (o[0] == 'B', int(o[1:]))):"),
        seen=lambda s: all(
            re.fullmatch("F*B*", "".join(op[0] for op in row if isinstance(op, str))) for row in s.y
        ),
    ),
    g.Mistake(
        "takes gradients from the rank before",
        "F comes from rank - 1 and goes to rank + 1. B comes from rank + 1 and goes to rank - 1.",
        g.patch(NEIGHBOURS, "(rank - 1, rank + 1)"),
        seen=lambda s: any(
            (way, op[0], peer) == ("recv", "B", rank - 1)
            for rank, row in enumerate(s.y)
            for action in row
            for way, op, peer in messages(action)
        ),
        hint=3,
    ),
]

GRADER = g.Questions(
    cases=cases,
    right=lambda ranks, p, m, rows: [[] for _ in ranks],  # only its form is looked at
    same=lambda got, right, case: not problem(got, case.args)[0],
    call=all_actions,
    mistakes=MISTAKES,
    closed=("labkit.pipeline",),
    describe=lambda s: problem(s.y, s.args)[1],
    fault=fault,
    picture=lambda s: problem(s.y, s.args)[2],
    shown="with messages that block, 1F1B comes to its end on up to 8 ranks, also with fewer "
    "microbatches than ranks",
)
