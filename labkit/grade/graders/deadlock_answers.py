"""Answers about who waits for ever in what: their form, and the mistake behind a wrong one."""

import re
from collections.abc import Sequence
from typing import Any

from labkit.comm.record import KINDS
from labkit.comm.words import ranks_named, verb
from labkit.grade.graders.deadlock_runs import Shown
from labkit.grade.outcome import Finding, Outcome

_MESSAGE = re.compile(r"(send) to (\d+)|(recv) from (\d+)")
_COLLECTIVES = sorted(set(KINDS) - {"send", "recv", "region"})
_Recognised = tuple[str, str, int, int]  # diagnosis, explanation, rank that shows it, hint


def wrong_form(answer: Any, n: int, function: str) -> Finding | None:
    """An answer for n ranks that is no dict of ranks and waits."""
    call = f"{function}({n})"
    if type(answer) is not dict:
        return Finding(
            Outcome.WRONG,
            "returns no dict",
            f"{call} returns {answer!r}; the contract is a dict such as {{0: 'recv from 1'}}, or "
            "{} where every rank returns",
            hint=None,
        )
    for rank, text in answer.items():
        if type(rank) is not int or not 0 <= rank < n:
            return Finding(
                Outcome.WRONG,
                "names a rank that there is not",
                f"{call} names rank {rank!r}; with {n} ranks they are the numbers 0 to {n - 1}",
                hint=None,
            )
        message = _MESSAGE.fullmatch(text) if isinstance(text, str) else None
        if message is None and text not in _COLLECTIVES:
            return Finding(
                Outcome.WRONG,
                "not in the form asked for",
                f"{call} says that rank {rank} waits in {text!r}; say 'send to 2', 'recv from 0' "
                "or the name of a collective, such as 'all_reduce' or 'barrier'",
                hint=None,
            )
    return None


def wrong_answer(answer: dict[int, str], shown: Shown) -> Finding | None:
    """What is wrong with an answer of the right form; None where it is right."""
    if answer == shown.waits:
        return None
    diagnosis, explanation, rank, hint = (
        _whether(answer, shown) or _which_ranks(answer, shown) or _in_what(answer, shown)
    )
    said = f"waits in {answer[rank]}" if rank in answer else "returns"
    return Finding(
        Outcome.WRONG,
        diagnosis,
        f"{explanation}. The run showed: {shown}",
        first_seen=f"{shown.program} on {shown.world_size} ranks: you say that rank {rank} {said}",
        hint=hint,
    )


def constant_answer(pairs: Sequence[tuple[dict[int, str], Shown]]) -> Finding | None:
    """The same answer for every world size, which is right for some of them."""
    answers = [answer for answer, _ in pairs]
    right = [shown for answer, shown in pairs if answer == shown.waits]
    wrong = [shown for answer, shown in pairs if answer != shown.waits]
    if not right or not wrong or any(answer != answers[0] for answer in answers):
        return None
    first = wrong[0]
    rank = _differing(answers[0], first)[0]
    said = f"waits in {answers[0][rank]}" if rank in answers[0] else "returns"
    return Finding(
        Outcome.WRONG,
        "an answer for one world size",
        f"the answer does not depend on world_size, and is right for {right[0].world_size} ranks. "
        f"The run showed: {first}",
        first_seen=f"{first.program} on {first.world_size} ranks: you say that rank {rank} {said}",
        hint=2,
    )


def leavers_named(pairs: Sequence[tuple[dict[int, str], Shown]]) -> Finding | None:
    """Answers that name, at some world size, only ranks that have returned there.

    Looked for at every world size before any of them is judged alone: where all ranks return, the
    same mistake looks like another one.
    """
    for answer, shown in pairs:
        if answer and shown.waits and answer.keys().isdisjoint(shown.waits):
            return wrong_answer(answer, shown)
    return None


def _differing(answer: dict[int, str], shown: Shown) -> list[int]:
    return [r for r in range(shown.world_size) if answer.get(r) != shown.waits.get(r)]


def _whether(answer: dict[int, str], shown: Shown) -> _Recognised | None:
    if not shown.waits:
        return (
            "sees a deadlock where there is none",
            "every rank comes to its end. A circle of calls is a deadlock only if nobody in it can "
            "go first: look for the one rank whose call is answered, and follow what that frees",
            min(answer),
            1,
        )
    if not answer:
        return (
            "overlooks a deadlock",
            "it does not end. Write down the first call of every rank, cross out those that meet, "
            "and go on until nothing can be crossed out",
            min(shown.waits),
            1,
        )
    return None


def _which_ranks(answer: dict[int, str], shown: Shown) -> _Recognised | None:
    if answer.keys().isdisjoint(shown.waits):
        ranks = sorted(answer)
        return (
            "names the ranks that have left",
            f"{ranks_named(ranks)} {verb(ranks, 'has')} returned, and what has returned does not "
            "wait: it is waited for. Who is stuck is the rank that makes a call that the others do "
            "not make",
            ranks[0],
            1,
        )
    through = sorted(answer.keys() - shown.waits.keys())
    if through:
        return (
            "names ranks that get through",
            f"{ranks_named(through)} {verb(through, 'has')} returned: every call of theirs was met",
            through[0],
            2,
        )
    missing = sorted(shown.waits.keys() - answer.keys())
    if missing:
        return (
            "overlooks ranks that wait",
            f"{ranks_named(missing)} {verb(missing, 'waits')} as well: who waits for a rank that "
            "is stuck, is stuck too",
            missing[0],
            2,
        )
    return None


def _in_what(answer: dict[int, str], shown: Shown) -> _Recognised:
    rank = _differing(answer, shown)[0]
    said, true = answer[rank], shown.waits[rank]
    if said.split()[0] == true.split()[0]:
        return (
            "the wrong neighbour",
            f"rank {rank} does wait in a {true.split()[0]}, but in {true}: put numbers into "
            "(rank - 1) % n and (rank + 1) % n, for rank 0 too",
            rank,
            3,
        )
    if said in shown.completed[rank]:
        return (
            "an operation that is complete",
            f"rank {rank} came through its {said}: everyone that it needs was there, and a group "
            "of one needs nobody else",
            rank,
            3,
        )
    if {said.split()[0], true.split()[0]} == {"send", "recv"}:
        return (
            "takes a send for a receive",
            f"rank {rank} waits in {true}: that call comes first, and the other one is never "
            "reached",
            rank,
            2,
        )
    return (
        "an operation that is never reached",
        f"rank {rank} waits in {true}, before it comes to {said}: the call on which a rank waits "
        "is its first that is not met",
        rank,
        2,
    )
