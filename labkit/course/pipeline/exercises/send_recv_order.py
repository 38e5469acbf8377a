"""Grade send_recv_order: the messages of 1F1B, and no deadlock with sends that block."""

import re
from typing import Any

from labkit.grade import grader as g
from labkit.grade.differences import shown
from labkit.grade.graded_schedules import as_list
from labkit.grade.verdict import Finding

NAMES = {
    "form": "returns something that is no action",
    "early": "sends a result before it is computed",
    "twice": "a message twice",
    "dropped": "leaves a message out",
    "pair": "sends and receives do not pair",
    "ended": "waits for a rank that has finished",
    "deadlock": "ranks wait for each other",
}
"""By the rule that is broken, as labkit.pipeline calls it, of those that are no mistake below."""


def cases(draw: g.Draw) -> list[g.Case]:
    """Even and odd p, mostly with more microbatches than ranks; also with fewer, and one rank."""
    from labkit.pipeline import one_f_one_b, plan

    r = draw.rng.randrange
    sizes = [(2, r(3, 6)), (1, r(1, 5)), (3, r(4, 8)), (3, 2), (4, r(5, 9)), (4, 4), (5, r(6, 10))]
    sizes += [(2, 1), (4, 2), (7, 9), (5, 3), (6, r(7, 12)), (3, r(8, 12)), (8, r(2, 6))]
    rows = [[[*map(str, row)] for row in plan(one_f_one_b, p, m).rows] for p, m in sizes]
    return [g.Case(f"p={p}, m={m}", p, m, its) for (p, m), its in zip(sizes, rows)]


def all_actions(watch: Any, args: tuple[Any, ...]) -> list[Any]:
    """Ask for the actions of each rank."""
    p, m, rows = args
    return [as_list(watch.function(rank, p, m, row)) for rank, row in enumerate(rows)]


def converted(action: Any, rank: int) -> Any:
    """Return an action as labkit.pipeline has it, where the result of B is called I."""
    from labkit.pipeline import Kind, Op
    from labkit.pipeline.messages import Recv, Send, Together

    if isinstance(action, str):
        return Op(Kind(action[0]), rank, int(action[1:]))
    ends = []
    for way, op, peer in [action] if action and isinstance(action[0], str) else action:
        product = Kind({"F": "F", "B": "I"}[op[0]]), rank if way == "send" else peer, int(op[1:])
        ends.append({"send": Send, "recv": Recv}[way](product, peer))
    return ends[0] if len(ends) == 1 else Together(tuple(ends))


def problem(y: list[Any], args: tuple[Any, ...]) -> tuple[str, str, str]:
    """(the broken rule, the reason, a picture of the actions); no rule where all are kept."""
    from labkit.pipeline import one_f_one_b, plan
    from labkit.pipeline.messages import MessageError, require_actions, require_end

    p, m, _ = args
    rows: list[list[Any]] = [[] for _ in y]
    for rank, row in enumerate(y):
        for action in row if isinstance(row, list) else [row]:
            try:
                rows[rank].append(converted(action, rank))
            except (ValueError, TypeError, KeyError, IndexError):
                return "form", f"rank {rank} has {shown(action)}", ""
    try:
        require_actions(plan(one_f_one_b, p, m), rows)
        require_end(rows)
    except MessageError as error:
        reason, _, picture = str(error).partition("\n")
        return error.rule, reason, f"{picture}\n> sends, < receives"
    return "", "", ""


def fault(s: g.Observed) -> Finding | None:
    """Return a broken rule that is no mistake below."""
    if not s.wrong_ranks:
        return None
    rule, reason, picture = problem(s.y, s.args)
    why = (
        'An action is "F0", ("send", "F0", 2), ("recv", "F0", 0), or a list of such messages. '
        "Each message of 1F1B is sent once, after it is computed, and received once, before it is "
        "needed. The first send from one rank to another meets the first receive there."
    )
    return Finding(g.Outcome.WRONG, NAMES[rule], why, f"{s.label}: {reason}", 3, picture=picture)


def broken(s: g.Observed) -> str:
    """Return the broken rule; of a deadlock also the calls that ranks wait in: > a send, < a
    receive."""
    rule, reason, _ = problem(s.y, s.args)
    return rule + "".join(sorted(set(re.findall("[<>]", reason)))) * (rule == "deadlock")


POSTED = "actions[-1] = [last, receive]"

MISTAKES = [
    g.Mistake(
        "both ranks send first",
        "A rank has computed a forward and wants a gradient from the next rank. That rank has "
        "computed the gradient and wants the forward. Both send, and a send waits for its receive.",
        g.patch(POSTED, "actions += [receive]"),
        wrong=lambda s: broken(s) == "deadlock>" and s.args[1] > s.args[0],
    ),
    g.Mistake(
        "both ranks receive first",
        "Where two ranks exchange messages, both are in a receive and neither sends. One of them "
        "sends first, or both post send and receive together.",
        g.patch(POSTED, "actions[-1:] = [receive, last]"),
        wrong=lambda s: broken(s) == "deadlock<" and s.args[1] > s.args[0],
    ),
    g.Mistake(
        "a deadlock where microbatches are few",
        "A send and a receive with one rank are an exchange only if that rank has the two at the "
        "same point. A rank that is still in its warmup when the microbatches run out has none: "
        "its neighbour waits for the send first.",
        g.patch(POSTED, "actions[-1:] = [receive, last] if rank % 2 else [last, receive]"),
        wrong=lambda s: "deadlock" in broken(s) and s.args[1] <= s.args[0],
        hint=2,
    ),
    g.Mistake(
        "computes in another order",
        "row has all operations in the order of 1F1B, in which a rank holds the activations of "
        "p - rank microbatches. GPipe's order has no deadlock, and each rank holds all m of them.",
        g.patch("in row:", "in sorted(row, key=lambda o: (o[0] == 'B', int(o[1:]))):"),
        wrong=lambda s: broken(s) == "order",
    ),
    g.Mistake(
        "a message that 1F1B does not have",
        "F comes from rank - 1 and goes to rank + 1. B comes from rank + 1 and goes to rank - 1. "
        "Rank 0 receives no F and the last rank no B. Microbatches are 0 to m - 1.",
        g.patch(
            '(rank - 1, rank + 1) if op[0] == "F" else (rank + 1, rank - 1)', "(rank - 1, rank + 1)"
        ),
        wrong=lambda s: broken(s) == "stranger",
        hint=3,
    ),
    g.Mistake(
        "computes before it has received the input",
        "Each F except on rank 0, and each B except on the last rank, needs a receive before it. "
        "That holds for B0 after the warmup too, also where m is smaller than p.",
        g.patch("if 0 <= source < p:", "if 0 < source < p:"),
        wrong=lambda s: broken(s) == "need",
        hint=3,
    ),
]

GRADER = g.Questions(
    cases=cases,
    right=lambda p, m, rows: [[] for _ in rows],  # only its form is looked at
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
