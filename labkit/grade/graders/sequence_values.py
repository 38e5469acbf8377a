"""Residuals, sequences and gradients that code under test gave, and the mistakes behind them."""

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from labkit.grade.evidence import CaseEvidence
from labkit.grade.graders import sequence_backward, sequence_forward
from labkit.grade.graders.gradient_values import is_close, is_nearly, shown
from labkit.grade.graders.sequence_form import OfRanks
from labkit.grade.graders.sequence_inputs import Given, Step, norm
from labkit.grade.graders.sequence_mistakes import (
    Mistake,
    h_gradient_of,
    h_of,
    weight_gradient_of,
)
from labkit.grade.graders.sequence_watch import Seen
from labkit.grade.graders.shard_wire import ROUNDED
from labkit.grade.outcome import Finding, Outcome

_NOTHING_FLOWS = (
    (
        "cuts the residual off the graph",
        "the residual needs no gradient, and what it was computed from does: it goes on to the "
        "next layers, and what comes back for it belongs to z and r",
    ),
    (
        "no gradient flows through the collectives",
        "x needs no gradient, though all that it was computed from does: group's collectives end "
        "the graph. Write them as torch.autograd.Function, each with its adjoint as backward",
    ),
)


def wrong_values(evidence: CaseEvidence, given: Given, seen: OfRanks) -> Finding | None:
    """The first result that is not one process's, step by step."""
    for index, step in enumerate(given.steps):
        of_ranks = [its[index] for its in seen]
        found = _wrong_forward(evidence, given, step, of_ranks) or _wrong_backward(
            evidence, given, index, of_ranks
        )
        if found is not None:
            return found
    return None


def _wrong_forward(
    evidence: CaseEvidence, given: Given, step: Step, seen: Sequence[Seen]
) -> Finding | None:
    h_ND = h_of(step)
    x_ND = norm(h_ND, given.weight_D)
    found = _explained(
        "residual",
        [each.residual_nD for each in seen],
        lambda rank: step.own(rank, h_ND),
        sequence_forward.of_residual(given, step),
        "the sum over the ranks of z_ND, of which this rank's rows, plus r_nD",
        evidence,
    ) or _explained(
        "x",
        [each.x_ND for each in seen],
        lambda rank: x_ND,
        sequence_forward.of_x(given, step),
        "the residual of all rows, normalised row by row",
        evidence,
    )
    if found is not None:
        return found
    for rank, each in enumerate(seen):
        for flows, (name, why) in zip(each.flows, _NOTHING_FLOWS, strict=True):
            if not flows:
                return Finding(Outcome.WRONG, name, why, _at(evidence, rank), hint=1)
    return None


def _wrong_backward(
    evidence: CaseEvidence, given: Given, index: int, seen: Sequence[Seen]
) -> Finding | None:
    step = given.steps[index]
    h_gradient_ND = h_gradient_of(given, step)
    parts = [weight_gradient_of(given, each) for each in given.steps[: index + 1]]
    weight_gradient_D = torch.stack(parts).sum(0)
    z, r, weight = ([each.gradients[which] for each in seen] for which in range(3))
    return (
        _explained(
            "gradient of r_nD",
            r,
            lambda rank: step.own(rank, h_gradient_ND),
            sequence_backward.of_r_gradient(given, step),
            "what comes in for the residual of these rows, and, through the norm, the sum over the "
            "ranks of what comes in for x",
            evidence,
        )
        or _explained(
            "gradient of z_ND",
            z,
            lambda rank: h_gradient_ND,
            sequence_backward.of_z_gradient(given, step),
            "the gradients of the residual, of all rows, on every rank",
            evidence,
        )
        or _explained(
            "gradient of weight_D",
            weight,
            lambda rank: weight_gradient_D,
            sequence_backward.of_weight_gradient(given, index),
            "the sum over all rows, on every rank",
            evidence,
        )
    )


def all_right(evidence: CaseEvidence, given: Given, seen: OfRanks) -> bool:
    """Whether values and gradients are one process's."""
    return wrong_values(evidence, given, seen) is None


def _explained(
    what: str,
    got: Sequence[Tensor | None],
    right: Callable[[int], Tensor],
    mistakes: Iterable[Mistake],
    meant: str,
    evidence: CaseEvidence,
) -> Finding | None:
    """A result that is not right on all ranks, by the mistake that gives it on all of them."""

    def fits(value: Callable[[int], Tensor]) -> bool:
        return all(is_close(each, value(rank)) for rank, each in enumerate(got))

    wrong = [rank for rank, each in enumerate(got) if not is_close(each, right(rank))]
    if not wrong:
        return None
    rank, its = wrong[0], got[wrong[0]]
    where = f"{_at(evidence, rank)}: {what}: got {_first(its, right(rank))}"
    if its is None:
        return Finding(
            Outcome.WRONG,
            f"the {what} is lost",
            f"there is none after backward. It is {meant}",
            where,
            hint=2,
        )
    for mistake in mistakes:
        if fits(mistake.result):
            return Finding(Outcome.WRONG, mistake.name, mistake.explanation, where, hint=2)
    if all(each is not None and is_nearly(each, right(i)) for i, each in enumerate(got)):
        return Finding(Outcome.WRONG, *ROUNDED, where, hint=2)
    return Finding(Outcome.WRONG, f"another {what}", f"it is to be {meant}", where, hint=2)


def _first(got: Tensor | None, right: Tensor) -> str:
    """From the first row that is wrong on."""
    if got is None or got.shape != right.shape:
        return f"{shown(got)}, expected {shown(right)}"
    rows = ~torch.isclose(got, right, rtol=1e-9, atol=1e-9)
    if got.dim() == 1:
        return f"{shown(got)}, expected {shown(right)}"
    row = int(rows.nonzero()[0, 0])
    return f"{shown(got[row])}, expected {shown(right[row])} in row {row}"


def _at(evidence: CaseEvidence, rank: int) -> str:
    return f"{evidence.label}: rank {rank}"
