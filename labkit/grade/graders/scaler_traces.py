"""What the steps of loss_scaler have left, held against what the rules make of them."""

import math
from collections.abc import Sequence

import torch

from labkit.grade.evidence import Attempt, CaseEvidence
from labkit.grade.graders.scaler_inputs import Given, given_in
from labkit.grade.graders.scaler_rules import Rules, follow
from labkit.grade.graders.scaler_theories import MISTAKES
from labkit.grade.graders.scaler_training import Step
from labkit.grade.outcome import Finding, Outcome

Trace = Sequence[Sequence[Step]]
_MOST_BYTES = 8


def wrong_trace(evidence: CaseEvidence, passed: Sequence[CaseEvidence] = ()) -> Finding | None:
    """The first step that is not as it should be, and the mistake that explains all of them.

    passed: cases in which nothing was wrong, so that no mistake can be behind it which shows there.
    """
    given = given_in(evidence)
    got, wanted = _trace_of(evidence), follow(Rules(), given)
    place = _first_difference(got, wanted)
    if place is None:
        return None
    number, rank = place
    mine, right = got[rank][number], wanted[rank][number]
    seen = f"{evidence.label}: step {number} on rank {rank}: got {_told(mine)}, expected "
    name, explanation, hint = (
        _form(mine) or _recognised(got, wanted, given, passed) or _by_part(mine, right, given[rank])
    )
    return Finding(Outcome.WRONG, name, explanation, seen + _told(right), hint)


def renamed(finding: Finding, evidence: CaseEvidence, attempt: Attempt) -> Finding:
    """The same, if it is about a step, by a mistake that does not show in the cases before."""
    before = attempt.cases[: attempt.cases.index(evidence)]
    again = wrong_trace(evidence, before)
    return again if again is not None and again.first_seen == finding.first_seen else finding


def over_budget(evidence: CaseEvidence) -> Finding | None:
    """More than one all-reduce for a step, or more than a flag in it."""
    num_steps = len(given_in(evidence)[0].slopes)
    for rank, operations in enumerate(evidence.operations):
        largest = max((each.payload_bytes for each in operations), default=0)
        if largest <= _MOST_BYTES and len(operations) <= num_steps:
            continue
        name, why = (
            ("sends more than a flag", "what the others must know is a yes or a no")
            if largest > _MOST_BYTES
            else ("more collectives than one per step", "each costs its latencies, however short")
        )
        return Finding(
            Outcome.OVER_BUDGET,
            name,
            f"{why}. In {num_steps} steps rank {rank} makes {len(operations)} all-reduces, the "
            f"largest of {largest} bytes; the budget is {num_steps}, of {_MOST_BYTES} bytes each",
            first_seen=evidence.label,
            hint=3,
            where=operations[-1].origin,
        )
    return None


def _trace_of(evidence: CaseEvidence) -> list[list[Step]]:
    outputs = [record.outputs for record in evidence.completed]
    return [[Step.of(its[at : at + 2]) for at in range(0, len(its), 2)] for its in outputs]


def _first_difference(got: Trace, wanted: Trace) -> tuple[int, int] | None:
    """(step, rank)"""
    for number in range(len(wanted[0])):
        for rank, steps in enumerate(wanted):
            if not got[rank][number].is_same(steps[number]):
                return number, rank
    return None


def _form(step: Step) -> tuple[str, str, int] | None:
    if math.isnan(step.is_made):
        return ("returns something else", "True where the step was made, False where not", 3)
    if math.isnan(step.scale) or math.isnan(step.num_good_steps):
        return (
            "leaves something else in the scaler",
            'scaler["scale"] and scaler["num_good_steps"] are Python\'s own numbers, finite ones',
            3,
        )
    if not step.is_form:
        return (
            "hands other tensors to update",
            "update takes a list of tensors, as many as there are gradients, in their shapes; a "
            "generator is empty after the first time that the optimizer goes through it",
            3,
        )
    if step.num_updates > 1:
        return ("makes the step several times", "call update once, with all gradients", 3)
    return None


def _recognised(
    got: Trace, wanted: Trace, given: Sequence[Given], passed: Sequence[CaseEvidence]
) -> tuple[str, str, int] | None:
    """The first mistake that leads to what is there, on all ranks in all steps."""
    if _are_same(got, wanted):
        return (
            "says the wrong thing about the step",
            "what is done is right; return True where update was called, else False",
            3,
        )
    for mistake in MISTAKES:
        # Who steps on an overflow may say that it did, or that it did not.
        if _are_same(got, follow(mistake.rules, given)) and not any(
            _shows_in(mistake.rules, given_in(each)) for each in passed
        ):
            return mistake.name, mistake.explanation, mistake.hint
    return None


def _shows_in(rules: Rules, given: Sequence[Given]) -> bool:
    return _first_difference(follow(rules, given), follow(Rules(), given)) is not None


def _are_same(one: Trace, other: Trace) -> bool:
    """Whether all steps are, whatever the function has said of them."""
    return all(
        mine.is_same(its, but_for_what_is_said=True)
        for my_steps, its_steps in zip(one, other, strict=True)
        for mine, its in zip(my_steps, its_steps, strict=True)
    )


def _by_part(mine: Step, right: Step, given: Given) -> tuple[str, str, int]:
    """What no mistake explains: the first part of the step that is wrong."""
    if not given.sizes and right.num_updates and not mine.num_updates:
        return (
            "leaves out the step where there are no gradients",
            "update is called on every rank or on no rank, with an empty list where there are no "
            "gradients: an optimizer counts its steps, and may communicate in them",
            3,
        )
    if mine.num_updates != right.num_updates:
        return (
            "makes other steps than it should",
            "skip where any rank has an inf or a nan, and nowhere else",
            2,
        )
    if not torch.equal(mine.updated_with, right.updated_with):
        return (
            "other gradients than those without a scale",
            "update gets gradient.float() / scale, in the order of gradients",
            2,
        )
    return (
        "another scale or count than the rules say",
        "halve and begin at 0 after an overflow; double and begin at 0 after growth_interval good "
        "steps; else count",
        2,
    )


def _told(step: Step) -> str:
    """`a step with [0.001, ...], then scale 1024 and count 2`"""
    numbers = ", ".join(f"{each:.4g}" for each in step.updated_with[:3].tolist())
    dtype = str(step.updated_with.dtype).removeprefix("torch.")
    done = f"a step with {dtype} [{numbers}, ...]" if step.num_updates else "no step"
    return f"{done}, then scale {step.scale:g} and {step.num_good_steps:g} good steps"
