"""Rows of actions as plain data, as a learner writes them, and as labkit.pipeline has them."""

import re
from collections.abc import Sequence
from typing import Any

from labkit.pipeline import Kind, Op
from labkit.pipeline.messages import Action, Recv, Send, Together

CONTRACT = (
    'a list of actions: "F0" computes, ("send", "F0", 2) and ("recv", "F0", 0) block, and a list '
    "of such messages posts them together"
)
_OP = re.compile(r"([FB])(\d{1,6})")


class NoAction(ValueError):
    """Something that is no action; the message shows it."""


def row_of(answer: Any, rank: int, p: int) -> tuple[Action, ...]:
    """A row, from its plain form; a batch without messages is nothing to do. Raises NoAction."""
    if not isinstance(answer, list | tuple):
        raise NoAction(f"{str(answer)[:80]!r} is no list")
    return tuple(_action(each, rank, p) for each in answer if each not in ([], ()))


def _action(value: Any, rank: int, p: int) -> Action:
    if isinstance(value, str):
        kind, microbatch = _op(value)
        return Op(kind, rank, microbatch)
    if isinstance(value, tuple | list) and value and not isinstance(value[0], str):
        if not all(isinstance(each, tuple | list) for each in value):
            raise NoAction(f"{value!r} mixes messages with something else")
        return Together(tuple(_message(each, rank, p) for each in value))
    return _message(value, rank, p)


def _message(value: Any, rank: int, p: int) -> Send | Recv:
    """What F of a rank yields is that stage's F; what B yields is the gradient of its input, I."""
    is_triple = isinstance(value, tuple | list) and len(value) == 3
    if not is_triple or value[0] not in ("send", "recv") or type(value[2]) is not int:
        raise NoAction(f"{value!r} is neither an operation nor a message")
    direction, name, peer = value
    kind, microbatch = _op(name)
    if not 0 <= peer < p or peer == rank:
        raise NoAction(f"{value!r}: rank {rank} has no rank {peer} to talk to, of {p}")
    maker = rank if direction == "send" else peer
    product = (Kind.I if kind is Kind.B else kind, maker, microbatch)
    return Send(product, peer) if direction == "send" else Recv(product, peer)


def _op(name: Any) -> tuple[Kind, int]:
    match = _OP.fullmatch(name) if isinstance(name, str) else None
    if match is None:
        raise NoAction(f"{name!r} is no operation, such as F0 or B3")
    return Kind(match[1]), int(match[2])


def computes(row: Sequence[Action]) -> list[Op]:
    """Its operations, in order."""
    return [action for action in row if isinstance(action, Op)]
