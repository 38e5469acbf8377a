"""Gradients that code under test left on the ranks, held against what they should be."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from labkit.grade.evidence import CaseEvidence
from labkit.grade.exact import is_same
from labkit.grade.outcome import Finding, Outcome

Tensor = torch.Tensor
Gradients = Mapping[str, Tensor]
"""Of one rank, by parameter."""

NO_THEORY = "another gradient than the mean"
# Sums of a few numbers in any order, and one or two divisions.
_RTOL = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 3e-2}


_NEAR = 2**-6  # a few roundings to bfloat16, relative to the largest number
_LOSES_DIGITS = (
    "loses digits on the way",
    "every number is nearly right, and its dtype holds more digits: gradients travelled, or were "
    "added up, in a smaller one. That is compression, which is a decision of its own; here a "
    "gradient travels as it is",
)


@dataclass(frozen=True)
class Theory:
    """A mistake, and the gradients of a rank that come of it."""

    name: str
    explanation: str
    gradients: Callable[[int], Gradients]


@dataclass(frozen=True)
class Left:
    """What is in one rank's module afterwards."""

    gradients: dict[str, Tensor | None]
    parameters: dict[str, Tensor]


def left_on(evidence: CaseEvidence, names: Sequence[str]) -> list[Left] | Finding:
    """By rank, as `gradient_modules.left_in` has told it."""
    left = []
    for rank, record in enumerate(evidence.completed):
        if len(record.outputs) < 2 * len(names):
            return Finding(
                Outcome.WRONG,
                "leaves another module behind",
                "the module has lost a parameter, or one has a gradient that is no dense tensor; "
                "only the values of gradients may change",
                first_seen=f"{evidence.label}: rank {rank}",
                hint=3,
            )
        gradients, parameters = record.outputs[: len(names)], record.outputs[len(names) :]
        left.append(
            Left(
                {n: g if g.numel() else None for n, g in zip(names, gradients, strict=True)},
                dict(zip(names, parameters, strict=False)),
            )
        )
    return left


def changed_parameters(
    evidence: CaseEvidence, left: Sequence[Left], before: Mapping[str, Tensor]
) -> Finding | None:
    """A parameter that is not what it was."""
    for rank, each in enumerate(left):
        for name, value in before.items():
            if not is_same(each.parameters[name], value):
                return Finding(
                    Outcome.WRONG,
                    "changes the parameters",
                    f"{name} is not what it was before the call. The gradients are to be averaged: "
                    "the parameters are equal on all ranks already, and the optimizer's step with "
                    "equal gradients keeps them so",
                    first_seen=f"{evidence.label}: rank {rank}",
                    hint=1,
                )
    return None


def wrong_gradients(
    evidence: CaseEvidence,
    left: Sequence[Left],
    right: Gradients,
    theories: Sequence[Theory],
    otherwise: str,
) -> Finding | None:
    """Gradients of `right`'s names that are not those, on the first rank that has one.

    The first theory that gives what is there on all ranks is the diagnosis; else they are nearly
    right, or there is no more to say than `otherwise`.
    """
    for rank, each in enumerate(left):
        for name, expected in right.items():
            got = each.gradients[name]
            if is_close(got, expected):
                continue
            values = f"got {shown(got)}, expected {shown(expected)}"
            seen = f"{evidence.label}: gradient of {name} on rank {rank}: {values}"
            for theory in theories:
                if all(
                    is_close(left[r].gradients[key], value)
                    for r in range(len(left))
                    for key, value in theory.gradients(r).items()
                ):
                    return Finding(Outcome.WRONG, theory.name, theory.explanation, seen, hint=2)
            name, explanation = (NO_THEORY, otherwise)
            if all(_is_near(its.gradients, right) for its in left):
                name, explanation = _LOSES_DIGITS
            return Finding(Outcome.WRONG, name, explanation, seen, hint=2)
    return None


def is_close(got: Tensor | None, expected: Tensor) -> bool:
    """Whether it is a gradient of that form, and right but for rounding in its dtype."""
    if got is None or got.shape != expected.shape or got.dtype != expected.dtype:
        return False
    rtol = _RTOL[got.dtype]
    return torch.allclose(got.double(), expected.double(), rtol=rtol, atol=rtol)


def _is_near(got: Mapping[str, Tensor | None], right: Gradients) -> bool:
    """Whether all that is wrong may come of rounding to fewer digits.

    Against the largest number of a dtype: what cancels in a small one, was rounded when it was
    large.
    """
    largest: dict[torch.dtype, float] = {}
    for value in right.values():
        largest[value.dtype] = max(largest.get(value.dtype, 0.0), float(value.abs().max()))
    for name, expected in right.items():
        its = got[name]
        if its is None or its.shape != expected.shape:
            return False
        off = (its.double() - expected.double()).abs()
        if not (off <= _NEAR * largest[expected.dtype]).all():
            return False
    return True


def is_nearly(got: Tensor, expected: Tensor) -> bool:
    """Whether what is wrong may come of rounding to fewer digits on the way."""
    if got.shape != expected.shape or not expected.numel():
        return got.shape == expected.shape
    off = (got.double() - expected.double()).abs().max()
    return bool(off <= _NEAR * expected.double().abs().max())


def shown(values: Tensor | None) -> str:
    """The first numbers of a gradient, flat."""
    if values is None:
        return "none"
    numbers = [
        f"{each:.0f}" if each.is_integer() else f"{each:.9g}" for each in values.flatten().tolist()
    ]
    return f"[{', '.join([*numbers[:4], *(['...'] if len(numbers) > 4 else [])])}]"
