"""Rows that break a rule or stand still, and what their author has had in mind."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from labkit.grade.graders.order_actions import computes
from labkit.grade.graders.order_questions import Pipe
from labkit.pipeline import gpipe, plan
from labkit.pipeline.messages import MessageError, Recv, Row, Send, messages_of

Named = tuple[str, str, int]  # diagnosis, explanation, hint


@dataclass(frozen=True)
class Performed:
    """The rows of one pipeline, and what became of them."""

    pipe: Pipe
    rows: tuple[Row, ...]
    error: MessageError | None


RULES: dict[str, Named] = {
    "order": (
        "computes in another order",
        "row is 1F1B's, and its order is what limits the memory to p - rank microbatches. Move "
        "messages, and leave the operations where they are",
        1,
    ),
    "need": (
        "computes before the message is there",
        "an operation needs what its neighbour has computed: the receive comes first",
        3,
    ),
    "early": (
        "sends what is not computed yet",
        "there is nothing to send before the operation has been performed",
        2,
    ),
    "stranger": (
        "a message that belongs to nobody",
        "F comes from rank - 1 and goes to rank + 1, B comes from rank + 1 and goes to rank - 1; "
        "the first and the last rank have no such neighbour",
        3,
    ),
    "twice": ("a message twice", "every message is sent once and received once", 3),
    "dropped": (
        "drops a message",
        "the neighbour waits for it, and without it computes nothing",
        3,
    ),
    "pair": (
        "sends and receives do not pair",
        "messages between two ranks keep their order: the first send meets the first receive, "
        "whatever is in it. The receiver would take one microbatch for another",
        2,
    ),
}
_GPIPE: Named = (
    "turns 1F1B into GPipe",
    "GPipe does not stand still, and holds all m microbatches. The order of computing was not to "
    "be changed: 1F1B holds p - rank of them",
    1,
)


def broken_rule(performed: Performed) -> Named:
    """By the rule; GPipe's order has a name of its own."""
    assert performed.error is not None
    rows = [computes(row) for row in performed.rows]
    pipes = plan(gpipe, performed.pipe.p, performed.pipe.m).rows
    if performed.error.rule == "order" and rows == [list(row) for row in pipes]:
        return _GPIPE
    return RULES[performed.error.rule]


_OfAll = Callable[[Sequence[Performed], Sequence[Performed]], bool]
"""From all pipelines, and from those that stand still."""


def _receives_all_first(every: Sequence[Performed], stuck: Sequence[Performed]) -> bool:
    return all(
        not any(isinstance(message, Recv) for action in row[at:] for message in messages_of(action))
        for its in every
        for row in its.rows
        for at in (row.index(computes(row)[0]),)
    )


def _sends_all_last(every: Sequence[Performed], stuck: Sequence[Performed]) -> bool:
    return all(
        not any(isinstance(message, Send) for action in row[:at] for message in messages_of(action))
        for its in every
        for row in its.rows
        for at in (row.index(computes(row)[-1]),)
    )


def _only(is_such: Callable[[Pipe], bool]) -> _OfAll:
    """Whether some of these pipelines stand still, and all of the others end: really others."""

    def holds(every: Sequence[Performed], stuck: Sequence[Performed]) -> bool:
        others = [each for each in every if not is_such(each.pipe)]
        has_exchanges = any(each.pipe.p > 1 and each.pipe.m > 1 for each in others)
        return has_exchanges and all(is_such(each.pipe) for each in stuck)

    return holds


def _marked(kind: type[Send] | type[Recv]) -> _OfAll:
    """Whether all who wait in the first circle wait in a send, or all in a receive."""

    def holds(every: Sequence[Performed], stuck: Sequence[Performed]) -> bool:
        first = stuck[0]
        assert first.error is not None
        return all(
            isinstance(first.rows[rank][index], kind) for rank, index in first.error.marks.items()
        )

    return holds


_STANDSTILLS: tuple[tuple[_OfAll, Named], ...] = (
    (
        _receives_all_first,
        (
            "waits for everything before it computes",
            "all receives come before the first operation. What a rank receives late depends on "
            "what it sends early: the gradient of a microbatch on its own forward",
            1,
        ),
    ),
    (
        _sends_all_last,
        (
            "sends nothing before its last operation",
            "the next rank waits for the first forward, and this one for its gradient, which "
            "cannot come before",
            1,
        ),
    ),
    (
        _only(lambda pipe: pipe.m <= pipe.p),
        (
            "stands still where microbatches are few",
            "with more microbatches than ranks it ends. A send and a receive with one rank are an "
            "exchange only where that rank has the two at the same point, in its steady state: who "
            "is still warming up when the microbatches run out has none, and its neighbour waits "
            "for the send first",
            2,
        ),
    ),
    (
        _only(lambda pipe: pipe.p % 2 == 1),
        (
            "stands still for an odd number of ranks",
            "with an even number of ranks it ends. Where two neighbours exchange, one has to send "
            "first and the other to receive first: put numbers into your rule for every pair of "
            "neighbours, the last ones too",
            2,
        ),
    ),
    (
        _only(lambda pipe: pipe.p % 2 == 0),
        (
            "stands still for an even number of ranks",
            "with an odd number of ranks it ends. Where two neighbours exchange, one has to send "
            "first and the other to receive first: put numbers into your rule for every pair of "
            "neighbours, the last ones too",
            2,
        ),
    ),
    (
        _only(lambda pipe: pipe.p > 2),
        (
            "works for two ranks only",
            "two ranks end, and more do not. A rank in the middle exchanges with both of its "
            "neighbours, and each pair has to agree on who goes first",
            2,
        ),
    ),
    (
        _marked(Send),
        (
            "both sides send first",
            "in the steady state a rank has computed a forward and wants the gradient from the "
            "next rank, which has computed that gradient and wants the forward. Both are in a "
            "send, and a send waits for its receive",
            1,
        ),
    ),
    (
        _marked(Recv),
        (
            "both sides receive first",
            "now both are in a receive, and nobody sends. One of the two has to send first; or "
            "send and receive are posted together",
            1,
        ),
    ),
)
_CIRCLE: Named = (
    "ranks wait in a circle",
    "follow the marked actions from rank to rank: each waits for the next one's",
    2,
)


def standstill(every: Sequence[Performed]) -> Named:
    """What explains the pipelines that stand still, in the light of those that do not."""
    stuck = [each for each in every if each.error is not None]
    return next((named for holds, named in _STANDSTILLS if holds(every, stuck)), _CIRCLE)
