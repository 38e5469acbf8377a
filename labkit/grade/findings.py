"""Find the first thing that is wrong with what was observed in a launch.

The first case that went wrong decides the kind of mistake: a broken rule, a case that did not end
(crash or hang), or a wrong result. The exercise's named mistakes are tried first, then those that
any exercise can have. If all results are right, the costs are checked: named mistakes over the
budget, then the budget itself. unfinished.py explains a case that did not end, differences.py how a
result differs.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from labkit.grade.differences import common_factor, difference, form_of, shown
from labkit.grade.grader import Grader, Mistake, Patch, Predicate, close
from labkit.grade.observed import Observation, Observed, pairs, tensors_in
from labkit.grade.unfinished import how_it_ended
from labkit.grade.verdict import Finding, Outcome
from labkit.launch.errors import Mismatch, RunError

_PRINTED_LINES = 10


def first(grader: Grader, observation: Observation) -> Finding | None:
    """Return the mistake to show; None if all results are right and within the budget."""
    found = _first(grader, observation)
    return dataclasses.replace(found[0], printed=_printed(found[1])) if found else None


def _printed(observed: Observed) -> str:
    """Return the last lines that each rank printed during a case."""
    return "\n".join(
        f"[rank {rank}] {line}" if observed.n > 1 else line
        for rank, seen in enumerate(observed.ranks)
        for line in seen.printed.splitlines()[-_PRINTED_LINES:]
    )


def _first(grader: Grader, observation: Observation) -> tuple[Finding, Observed] | None:
    """Return the mistake, and the case that shows it."""
    failure = observation.failure
    for observed in observation.cases:
        for rank, seen in enumerate(observed.ranks):
            if seen.broken_rule:
                where = f"{observed.label}: rank {rank}" if observed.n > 1 else observed.label
                return dataclasses.replace(seen.broken_rule, first_seen=where), observed
        if not observed.returned:
            assert failure is not None, f"a record is missing though no rank failed: {observed}"
            return _unfinished(grader, observed, failure), observed
        if _goes_wrong(grader, observed):
            return _wrong(grader, observation)
    if failure is not None:  # after the last case
        return how_it_ended(failure, observation.cases[-1]), observation.cases[-1]
    return _over_budget(grader, observation.cases)


def _goes_wrong(grader: Grader, observed: Observed) -> bool:
    return bool(observed.wrong_ranks) or _side_effect(grader, observed) is not None


def _wrong(grader: Grader, observation: Observation) -> tuple[Finding, Observed]:
    """Return the finding where a case has a wrong result, or a side effect that is not allowed."""
    wrong, asked = _wrong_cases(grader, observation)
    if wrong[0].wrong_ranks:  # mistakes are recognised by their results
        mistaken = observation.run_mistakes(wrong[0].case.function)
        mistake, example = named(grader.mistakes, Outcome.WRONG, wrong, asked, mistaken)
        if mistake is not None:
            return _finding(mistake, grader, example), example
    observed = next((each for each in wrong if _reads_early(each)), wrong[0])
    return _unnamed(grader, observed, wrong), observed


def _unnamed(grader: Grader, observed: Observed, wrong: Sequence[Observed]) -> Finding:
    """Return the finding for a case that no mistake of the exercise explains."""
    if _reads_early(observed):
        return Finding(
            Outcome.WRONG,
            "reads a buffer before its operation completed",
            "the result has NaN where no input has. Until wait() returns, the buffer of an "
            "operation holds nonsense; here NaN. Call wait() first, then compute with the buffer",
            _got_and_expected(grader, observed),
            3,
        )
    if not observed.wrong_ranks and (effect := _side_effect(grader, observed)):
        return Finding(Outcome.WRONG, *effect, observed.label, 3)
    if found := _graders_own_finding(grader, observed):
        return found
    if observed.n > 1 and not any(seen.events for seen in observed.ranks):
        name = "nothing is sent"
        why = "no rank sends anything, so no rank can know what the others hold"
        return Finding(Outcome.WRONG, name, why, _got_and_expected(grader, observed), 1)
    rank = observed.wrong_ranks[0]
    name, why = form_of(observed.ranks[rank].output, observed.right[rank])
    if all(_is_nearly_right(each) for each in wrong):
        name, why = "loses digits", _LOSES_DIGITS
    elif name == "wrong values":
        both = ((o.ys[rank], o.right[rank]) for o in wrong for rank in o.wrong_ranks)
        if factor := common_factor(both):
            name = f"every number is too {'large' if factor > 1 else 'small'}"
            why = f"in each wrong result, every number is {factor:.4g} times the right one: "
            why += _FACTOR
    seen, picture = _got_and_expected(grader, observed), grader.picture(observed)
    return Finding(Outcome.WRONG, name, why, seen, 2, picture=picture)


def _graders_own_finding(grader: Grader, observed: Observed) -> Finding | None:
    """Return the grader's own finding for a case that no mistake explains."""
    with contextlib.suppress(Exception):  # a result may have any form
        if observed.wrong_ranks and grader.unexplained:
            describe = grader.describe or (lambda s: difference(s.y, s.right[0]))
            seen = f"{observed.label}: {describe(observed)}"
            return Finding(Outcome.WRONG, *grader.unexplained, seen, 2)
        return grader.fault(observed)
    return None


def _reads_early(observed: Observed) -> bool:
    """Return whether a result has NaN from a buffer whose operation was not complete."""
    has_pending = any(e.is_pending for r in observed.ranks for e in r.events)
    return has_pending and any(
        _has_nan(observed.ranks[rank].output) and not _has_nan(observed.right[rank])
        for rank in observed.wrong_ranks
    )


def _has_nan(value: Any) -> bool:
    return any(x.is_floating_point() and bool(x.isnan().any()) for x in tensors_in(value))


_LOSES_DIGITS = (
    "all numbers are within 1% of the right ones. Most often a tensor was converted to a dtype "
    "with fewer digits before it was added up or sent"
)

_FACTOR = (
    "another unit, a sum where a mean is asked for (or a mean for a sum), or a factor that is left "
    "out or counted twice"
)


def _is_nearly_right(observed: Observed) -> bool:
    """True if tensors are wrong by less than 1% of the largest number, and all else is equal."""
    both = ((observed.ranks[rank].output, observed.right[rank]) for rank in observed.wrong_ranks)
    return all(close(got, right, share=0.01) for got, right in both)


def _wrong_cases(grader: Grader, observation: Observation) -> tuple[list[Observed], list[Observed]]:
    """Return the wrong cases of the first function that goes wrong, and all its finished cases."""
    finished = [observed for observed in observation.cases if observed.returned]
    wrong = [observed for observed in finished if _goes_wrong(grader, observed)]
    function = wrong[0].case.function
    wrong = [observed for observed in wrong if observed.case.function == function]
    return (
        # A side effect matters only if every result is right.
        [observed for observed in wrong if observed.wrong_ranks] or wrong,
        [observed for observed in finished if observed.case.function == function],
    )


def named(
    mistakes: Sequence[Mistake],
    outcome: Outcome,
    cases: Sequence[Observed],
    asked: Sequence[Observed],
    mistaken: Mapping[Patch, Sequence[Observed]],
) -> tuple[Mistake | None, Observed]:
    """Return the mistake that holds in most of `cases`, and the first case in which it holds.

    A mistake that holds in less than half of the cases with wrong results explains too little.
    asked: all cases of the function, including right ones. mistaken: by patch, the results of the
    programs of mistakes.
    """
    best, example = None, cases[0]
    most = 0 if outcome is Outcome.OVER_BUDGET else (len(cases) - 1) // 2, len(asked)
    for mistake in mistakes:
        if mistake.outcome is not outcome:
            continue
        holds, num_agree = held(mistake, cases, asked, mistaken)
        if (len(holds), num_agree) > most:
            best, most, example = mistake, (len(holds), num_agree), holds[0]
    return best, example


def held(
    mistake: Mistake,
    cases: Sequence[Observed],
    asked: Sequence[Observed],
    mistaken: Mapping[Patch, Sequence[Observed]],
) -> tuple[Sequence[Observed], int]:
    """Return the cases in which a mistake holds, and how many of `asked` agree with its program."""
    if mistake.predicate is not None:
        return [observed for observed in cases if _is_seen(mistake.predicate, observed)], len(asked)
    best: tuple[Sequence[Observed], int] = [], 0
    for patch in mistake.patches:
        theirs = {each.case: each for each in mistaken.get(patch, ()) if each.returned}
        agree = [each for each in asked if _agree(each, theirs.get(each.case))]
        # Both must be wrong: a right result may be close enough to a wrong one to count as equal.
        holds = [o for o in agree if o in cases and o.wrong_ranks and theirs[o.case].wrong_ranks]
        best = max(best, (holds, len(agree)), key=lambda found: (len(found[0]), found[1]))
    return best


def _agree(one: Observed, other: Observed | None) -> bool:
    """Return whether the results are the same on every rank."""
    return other is not None and all(
        close(a, b) or one.is_same(a, b) for a, b in zip(one.ys, other.ys, strict=True)
    )


def _is_seen(predicate: Predicate, observed: Observed) -> bool:
    try:
        return bool(predicate(observed))
    except Exception:  # results of any form reach a predicate
        return False


def _finding(mistake: Mistake, grader: Grader, observed: Observed) -> Finding:
    seen = observed.label
    if observed.wrong_ranks or grader.describe:
        seen = _got_and_expected(grader, observed)
    elif mistake.over_budget:
        text = mistake.over_budget(observed)
        if not isinstance(text, str):
            text = (_excess(grader, observed) or [""])[-1]
        seen = f"{seen}: {text}" if text else seen
    picture = grader.picture(observed)
    return Finding(mistake.outcome, mistake.name, mistake.why, seen, mistake.hint, picture=picture)


def _side_effect(grader: Grader, observed: Observed) -> tuple[str, str] | None:
    """Return (name, why) of a side effect of a call; None without one."""
    for rank, seen in enumerate(observed.ranks):
        given = observed.case.of_rank(rank)
        if grader.keeps_arguments:
            for number, (before, after) in enumerate(zip(given, seen.args, strict=False), start=1):
                if not _unchanged(before, after):
                    why = f"argument {number} of the function is not what it was before the call: "
                    why += "the caller may still need it. Work on a copy (a slice is none, and "
                    why += "flatten() of a contiguous tensor is none either)"
                    return "changes its input", why
        if grader.new_result and seen.is_input:
            return (
                "returns its own input",
                "the result lies in the memory of an argument. The contract is a new tensor: a "
                "caller who writes to the result would change the argument with it. One rank, or "
                "an empty loop, is where this is easily forgotten",
            )
        if grader.new_result and seen.is_earlier:
            return (
                "returns the same memory again",
                "the result lies in the memory of one that an earlier call returned, so that one "
                "has changed. Return a new tensor, or a copy of a buffer that you keep",
            )
    return None


def _unchanged(before: Any, after: Any) -> bool:
    """Return whether an argument has not changed; values of other types are not compared."""
    known = torch.Tensor | int | float | str | list | dict
    places = [(now, was) for _, now, was in pairs(after, before) if isinstance(was, known)]
    return all(close(now, was, steps=0) for now, was in places)


def _got_and_expected(grader: Grader, observed: Observed) -> str:
    """Return the first wrong result as text: where, got, expected."""
    rank = (observed.wrong_ranks or [0])[0]
    where = observed.label if observed.n == 1 else f"{observed.label}: rank {rank}"
    if observed.case.function:
        where = f"{observed.case.function}, {where}"
    if grader.describe is not None:
        with contextlib.suppress(Exception):  # a result may have any form
            return f"{where}: {grader.describe(observed)}"
    return f"{where}: {difference(observed.ranks[rank].output, observed.right[rank])}"


def _over_budget(grader: Grader, cases: Sequence[Observed]) -> tuple[Finding, Observed] | None:
    """Return the first case whose results are right but cost too much; None without one."""
    mistake, example = named(grader.mistakes, Outcome.OVER_BUDGET, cases, cases, {})
    if mistake is not None:
        return _finding(mistake, grader, example), example
    for observed in cases:
        if found := _graders_own_finding(grader, observed):
            return found, observed
        if excess := _excess(grader, observed):
            rank, what, text = excess
            where = f"{observed.label}: rank {rank}"
            why = f"the results are right, and {text}"
            return Finding(Outcome.OVER_BUDGET, f"too many {what}", why, where, 1), observed
    return None


def _excess(grader: Grader, observed: Observed) -> tuple[int, str, str] | None:
    """Return the first limit that a rank exceeds: (rank, resource, text); None if none does."""
    budget = grader.budget(observed)
    for rank, seen in enumerate(observed.ranks):
        sizes = [event.nbytes for event in observed.messages(rank)]
        used = {
            "sends": (len(sizes), "sends"),
            "bytes_per_send": (max(sizes, default=0), "bytes in one message"),
            "collectives": (observed.num_collectives(rank), "collectives"),
            "payload_bytes": (observed.payload_bytes(rank), "bytes of payload"),
            "sent_bytes": (observed.sent_bytes(rank), "bytes sent"),
            "steps": (observed.num_steps, "steps in a row"),
            "peak_bytes": (seen.peak_bytes, "bytes of tensors alive together"),
            "largest": (seen.largest, "elements in one tensor"),
        }
        for name, (amount, what) in used.items():
            most = getattr(budget, name)
            most = most[rank] if isinstance(most, list | tuple) else most
            if most is not None and amount > most + 1e-6:
                text = f"rank {rank} uses {shown(amount)} {what}; the budget is {shown(most)}"
                return rank, what, text
    return None


def _unfinished(grader: Grader, observed: Observed, failure: RunError) -> Finding:
    """Return the finding for a case that did not end on every rank."""
    general = how_it_ended(failure, observed)
    # Timing decides whether ranks with different calls end in a mismatch or in a hang.
    outcome = Outcome.HUNG if isinstance(failure, Mismatch) else general.outcome
    mistake, _ = named(grader.mistakes, outcome, [observed], [observed], {})
    if mistake is None:
        return general
    return dataclasses.replace(
        general,
        outcome=mistake.outcome,
        diagnosis=mistake.name,
        explanation=mistake.why,
        hint=mistake.hint,
        details=f"{general.explanation}\n{general.details}".strip(),
    )
