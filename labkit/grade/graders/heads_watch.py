"""Weights split for every rank of a layout, in one process; what came of it, as tensors.

Nothing here judges, and nothing here knows the shares.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from labkit.grade.closed_book import Refused, close_book
from labkit.grade.evidence import CaseEvidence
from labkit.grade.exact import is_same
from labkit.grade.graders.heads_layouts import WEIGHTS
from labkit.grade.harness import is_plain_tensor
from labkit.grade.watched_group import WatchedGroup

# This module runs while the book is closed; those with the shares are not needed here.
_OF_THE_DRIVER = ("shares", "theories", "kv_theories", "mistakes", "verdicts")
_CLOSED = ("tensor_parallel", *(f"grade/graders/heads_{name}" for name in _OF_THE_DRIVER))
_SHARES, _REFUSED, _SOMETHING_ELSE = range(3)


@dataclass(frozen=True)
class Answer:
    """What the function did for one rank."""

    shares: list[Tensor]
    """In the order of WEIGHTS; empty where it returned none."""
    refusal: str | None
    """The message of a ValueError; None where it raised none."""
    returned: str
    """What came back, in words, where it is no four tensors."""


@dataclass(frozen=True)
class Seen:
    """What a process tells of a layout."""

    changed: str
    """The first weight with other values than before; empty: none."""
    answers: list[Answer]
    """By rank."""


def on_all_ranks(
    function: Callable[..., Any], arguments: tuple[Any, ...], group: WatchedGroup
) -> list[Tensor]:
    """Run in a process of its own: for each rank, what came back, or the message of a ValueError.

    As tensors: the first changed weight, then for each rank what follows, how many of them, and
    these.
    """
    if sys.getprofile() is None:  # in the first case; the book stays closed
        close_book(_CLOSED, cast(list[Refused], group.gate.broken))
    *weights, num_ranks, num_heads, num_kv_heads = arguments
    given, told = [each.clone() for each in weights], []
    for rank in range(num_ranks):
        try:
            returned = function(*given, num_ranks, rank, num_heads, num_kv_heads)
        except ValueError as error:
            told += [torch.tensor([_REFUSED, 1]), _as_tensor(str(error))]
            continue
        is_four = isinstance(returned, tuple | list) and len(returned) == len(WEIGHTS)
        if is_four and all(map(is_plain_tensor, returned)):
            told += [torch.tensor([_SHARES, len(WEIGHTS)]), *(each.clone() for each in returned)]
        else:
            told += [torch.tensor([_SOMETHING_ELSE, 1]), _as_tensor(_in_words(returned))]
    changed = [not is_same(one, other) for one, other in zip(given, weights, strict=True)]
    return [torch.tensor(changed.index(True) if any(changed) else -1), *told]


def _in_words(returned: object) -> str:
    """`a tuple of Tensor, NoneType`"""
    kind = type(returned).__name__
    if not isinstance(returned, tuple | list):
        return f"{kind}"
    return f"a {kind} of {', '.join(type(each).__name__ for each in returned[:8]) or 'nothing'}"


def _as_tensor(text: str) -> Tensor:
    return torch.tensor(list(text.encode()), dtype=torch.uint8)


def seen_in(evidence: CaseEvidence) -> Seen:
    """What `on_all_ranks` has told, in the driver."""
    first, *told = evidence.completed[0].outputs
    changed, answers = int(first), []
    while told:
        (what, count), rest = told[0].tolist(), told[1:]
        answers.append(_answer(what, rest[:count]))
        told = rest[count:]
    return Seen(WEIGHTS[changed] if changed >= 0 else "", answers)


def _answer(what: int, told: Sequence[Tensor]) -> Answer:
    if what == _SHARES:
        return Answer(list(told), None, "")
    text = bytes(told[0].tolist()).decode()
    return Answer([], text, "") if what == _REFUSED else Answer([], None, text)
