"""Diagnoses of stuck jobs: their form, and the mistake behind wrong ones."""

from collections.abc import Mapping, Sequence
from typing import Any

from labkit.comm.words import ranks_named
from labkit.grade.graders.straggler_cases import DEADLOCK, STRAGGLER, Case, Shown
from labkit.grade.graders.straggler_theories import (
    follows_one_wait,
    kind_by_cpu,
    kind_by_state,
    leads_into_a_circle,
    misreading_of,
    theory_of_ranks,
)
from labkit.grade.outcome import Finding, Outcome

_Recognised = tuple[str, str, int]  # diagnosis, explanation, hint
# Two tables: all columns side by side would break every row in a terminal of 80 columns.
_LAST_OPERATION = ("rank", "state", "operation", "peer", "group", "number", "seconds", "cpu")
_BESIDES = ("rank", "posted", "stack")


def wrong_form(answer: Any, case: Case) -> Finding | None:
    """An answer that is no pair of a word and a rank."""
    is_pair = isinstance(answer, tuple | list) and len(answer) == 2
    what, rank = answer if is_pair else (None, None)
    numbers = range(len(case.shown))
    if what in (STRAGGLER, DEADLOCK) and type(rank) is int and rank in numbers:
        return None
    return Finding(
        Outcome.WRONG,
        "returns something else",
        f"diagnose returns {answer!r}; the contract is a pair such as ('straggler', 2) or "
        f"('deadlock', 0), with a rank from 0 to {numbers[-1]}",
        hint=3,
        details=_table(case),
    )


def wrong_kind(cases: Sequence[Case], answers: Sequence[tuple[str, int]]) -> Finding | None:
    """Stragglers that are called deadlocks, or the other way round."""
    kinds = [kind for kind, _ in answers]
    wrong = [index for index, case in enumerate(cases) if kinds[index] != case.kind]
    if not wrong:
        return None
    # A job with a second thing to see in it is the harder one: show a plain one, if there is.
    index = min(wrong, key=lambda each: cases[each].story in ("aside", "input"))
    misread = misreading_of(cases, answers)
    if misread is not None:
        return _finding(misread.name, misread.explanation, 2, cases[index], answers[index])
    diagnosis, explanation, hint = _about_all(cases, kinds) or _about_one(cases[index])
    return _finding(diagnosis, explanation, hint, cases[index], answers[index])


def _about_all(cases: Sequence[Case], kinds: Sequence[str]) -> _Recognised | None:
    if set(kinds) == {DEADLOCK}:
        return (
            "calls everything a deadlock",
            "that nothing has moved for a while is true of stragglers, too, however long it has "
            "been. A deadlock has a proof: a circle of waits, or a wait for a rank that returned",
            1,
        )
    if set(kinds) == {STRAGGLER}:
        return (
            "calls everything a straggler",
            "more time does not help where ranks wait for each other, or for one that returned",
            1,
        )
    if kind_by_cpu(cases, kinds):
        return (
            "takes a busy core for progress",
            "a data loader keeps a core busy beside a rank that is blocked for ever, and a rank "
            "that waits for a slow disk uses no core at all",
            1,
        )
    if kind_by_state(cases, kinds, "running"):
        return (
            "takes a rank that runs for the one they wait for",
            "some rank is running, but nobody waits for it, and the others wait in a circle: "
            "follow the waits, and see where they lead",
            2,
        )
    if kind_by_state(cases, kinds, "returned"):
        return (
            "looks only for ranks that have returned",
            "that a rank has returned matters only if somebody waits for it; and a deadlock may be "
            "a circle of ranks that are all there",
            2,
        )
    return None


def _about_one(case: Case) -> _Recognised:
    if not case.is_deadlock:
        return (
            "takes a slow rank for a deadlock",
            "every wait leads to a rank that is running and has not come to its part yet",
            1,
        )
    if any(case.shown[rank]["state"] == "returned" for rank in case.ranks):
        return (
            "overlooks that a rank has left",
            "they wait for a rank that has returned: it will not make another call",
            1,
        )
    return (
        "overlooks a circle",
        "these ranks wait for each other, each for what the next would do after its own wait",
        1,
    )


def wrong_rank(cases: Sequence[Case], answers: Sequence[tuple[str, int]]) -> Finding | None:
    """The right kind everywhere, and somewhere another rank than the one to look at."""
    ranks = [rank for _, rank in answers]
    wrong = [index for index, case in enumerate(cases) if ranks[index] not in case.ranks]
    if not wrong:
        return None
    index = wrong[0]
    case = cases[index]
    if len(set(ranks)) == 1:
        explanation = f"rank {ranks[0]} is named every time, whatever the job shows"
        return _finding("always the same rank", explanation, 1, case, answers[index])
    theory = theory_of_ranks(cases, ranks)
    if theory is not None:
        return _finding(theory.name, theory.explanation, 1, case, answers[index])
    if leads_into_a_circle(cases, ranks):
        return _finding(
            "names a rank that leads into a circle",
            f"somebody waits for rank {ranks[index]}, and it is not in the circle: its own wait "
            "leads there. In a circle are only those to which the waits come back",
            2,
            case,
            answers[index],
        )
    if follows_one_wait(cases, ranks):
        return _finding(
            "stops at the first wait",
            f"somebody waits for rank {ranks[index]}, but it waits itself: go on from there until "
            "you come to a rank that does not wait, or around a circle",
            2,
            case,
            answers[index],
        )
    return _finding(
        "blames a rank that only waits",
        f"rank {ranks[index]} is a victim: nobody's wait leads to it",
        2,
        case,
        answers[index],
    )


def _finding(
    diagnosis: str, explanation: str, hint: int, case: Case, answer: tuple[str, int]
) -> Finding:
    word = "is" if len(case.ranks) == 1 else "are"
    truth = f"it was a {case.kind}, and {ranks_named(sorted(case.ranks))} {word} to be looked at"
    return Finding(
        Outcome.WRONG,
        diagnosis,
        explanation,
        first_seen=f"a job for which you say {answer[0]}, rank {answer[1]}: {truth}",
        hint=hint,
        details=_table(case),
    )


def _table(case: Case) -> str:
    """What was shown of the job, a line for each rank: its last operation, then the rest."""
    shown = [{**one, "posted": _posted(one["posted"])} for one in case.shown]
    return f"{_lines(shown, _LAST_OPERATION)}\n\n{_lines(shown, _BESIDES)}"


def _posted(numbers: Mapping[str, int]) -> str:
    """`world 2, world.1.1 6`"""
    return ", ".join(f"{group} {number}" for group, number in numbers.items()) or "nothing"


def _lines(shown: Shown, columns: Sequence[str]) -> str:
    rows = [list(columns), *([str(one[name]) for name in columns] for one in shown)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(f"{text:<{width}}" for text, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
