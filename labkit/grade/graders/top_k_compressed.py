"""What `compress` returns, step by step, and the mistake behind what is wrong with it.

Each step is judged from the debt that the code itself has returned before, so that the first wrong
step is the one that is named. Where each step sends and owes together the gradient and what was
owed, all steps together do: that is what error feedback promises.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from labkit.grade.evidence import CaseEvidence
from labkit.grade.graders.sums import Recognised
from labkit.grade.graders.top_k_inputs import gradients_of, k_of, largest
from labkit.grade.graders.top_k_steps import PARTS
from labkit.grade.outcome import Finding, Outcome

Tensor = torch.Tensor


@dataclass(frozen=True)
class Step:
    """One step of one rank: what there was, and what the code made of it."""

    gradient: Tensor
    before: Tensor
    """What was owed."""
    k: int
    indices: Tensor
    values: Tensor
    owed: Tensor
    mean: Tensor
    indices_after: Tensor
    """What exchange has left of its arguments."""
    values_after: Tensor

    @property
    def due(self) -> Tensor:
        """What there is to send."""
        return self.gradient + self.before

    @property
    def sent(self) -> Tensor:
        """What is sent, (numel,)."""
        return torch.zeros_like(self.due).index_put_((self.indices.long(),), self.values)


Theory = tuple[str, str, Callable[[Step], Tensor]]
"""A mistake's name, why it is one, and what comes of it."""

_NEVER_ADDS = (
    "never adds what is owed",
    "it is taken from the gradient alone. What earlier steps have left out comes back only if it "
    "is added first: gradient + owed is what there is to send",
)
_INDICES: tuple[Theory, ...] = (
    (
        "takes the largest, and not the largest in magnitude",
        "topk() ranks -3 below 0.1. Entries that are large and negative are never sent, and the "
        "debt grows there for ever: rank by abs()",
        lambda step: largest(step.due, step.k),
    ),
    (*_NEVER_ADDS, lambda step: largest(step.gradient.abs(), step.k)),
    (
        "sends the smallest",
        "they are the k smallest magnitudes",
        lambda step: largest(-step.due.abs(), step.k),
    ),
)
_VALUES: tuple[Theory, ...] = (
    (
        "loses the signs",
        "the magnitudes are right, and all are positive: abs() is for choosing the places. What is "
        "sent is what is there: (gradient + owed)[indices]",
        lambda step: step.due.abs()[step.indices.long()],
    ),
    (*_NEVER_ADDS, lambda step: step.gradient[step.indices.long()]),
)
_OWED: tuple[Theory, ...] = (
    (
        "throws away what is left out",
        "nothing is owed, though not everything was sent. Entries that are never among the k "
        "largest are then never learned, however many steps agree on them",
        lambda step: torch.zeros_like(step.due),
    ),
    (
        "forgets what was owed before",
        "the new debt is the gradient less what was sent. What was owed before and is not sent "
        "now is lost, and what was sent of it is taken off the gradient: the new debt is "
        "(gradient + owed) less what was sent",
        lambda step: step.gradient - step.sent,
    ),
    (
        "still owes what it has sent",
        "what was sent is in the new debt, too, and will be sent again and again",
        lambda step: step.due,
    ),
    (
        "owes what it has sent",
        "the new debt is what was sent; what was left out is owed",
        lambda step: step.sent,
    ),
    (
        "owes with the wrong sign",
        "the new debt is what was sent less what there was: the next step then takes off what it "
        "should add",
        lambda step: step.sent - step.due,
    ),
    (
        "counts old debts twice",
        "what was owed before is in gradient + owed already; the new debt is that, less what was "
        "sent, and not that added to the old one",
        lambda step: step.before + step.due - step.sent,
    ),
)


def steps_of(evidence: CaseEvidence) -> list[list[Step]]:
    """By step, then by rank. The form has been looked at before."""
    k, by_rank = k_of(evidence), []
    for gradients, record in zip(gradients_of(evidence), evidence.completed, strict=True):
        before, steps = torch.zeros_like(gradients[0]), []
        for at, gradient in enumerate(gradients):
            parts = record.outputs[at * len(PARTS) : (at + 1) * len(PARTS)]
            steps.append(Step(gradient, before, k, *parts))
            before = steps[-1].owed
        by_rank.append(steps)
    return [list(each) for each in zip(*by_rank, strict=True)]


def wrong_step(steps: Sequence[Step], label: str) -> Finding | None:
    """What is wrong with the places, the values or the debts of one step of all ranks."""
    wanted_owed = [step.due - step.sent for step in steps]
    return (
        _wrong(
            "indices",
            [step.indices.long().sort().values for step in steps],
            [largest(step.due.abs(), step.k) for step in steps],
            _by_theory(_INDICES, steps),
            label,
        )
        or _wrong(
            "values",
            [step.values for step in steps],
            [step.due[step.indices.long()] for step in steps],
            _by_theory(_VALUES, steps),
            label,
        )
        or _wrong(
            "owed", [step.owed for step in steps], wanted_owed, _by_theory(_OWED, steps), label
        )
    )


_Predictions = list[tuple[str, str, list[Tensor]]]


def _by_theory(theories: Sequence[Theory], steps: Sequence[Step]) -> _Predictions:
    return [(name, why, [of(step) for step in steps]) for name, why, of in theories]


def _wrong(
    what: str,
    got: Sequence[Tensor],
    wanted: Sequence[Tensor],
    predictions: _Predictions,
    label: str,
) -> Finding | None:
    if _are_equal(got, wanted):
        return None
    recognised: Recognised = (
        f"other {what} than those that are due",
        f"{what} are not what gradient + owed makes them",
        2,
    )
    for name, explanation, predicted in predictions:
        if _are_equal(got, predicted):
            recognised = (name, explanation, 2)
            break
    name, explanation, hint = recognised
    rank = next(r for r in range(len(got)) if not torch.equal(got[r], wanted[r]))
    seen = f"{label}: {what} on rank {rank}: got {shown(got[rank])}, expected {shown(wanted[rank])}"
    return Finding(Outcome.WRONG, name, explanation, seen, hint)


def _are_equal(got: Sequence[Tensor], wanted: Sequence[Tensor]) -> bool:
    """Whether all ranks have what they should have."""
    return all(torch.equal(one, other) for one, other in zip(got, wanted, strict=True))


def shown(values: Tensor) -> str:
    """The first numbers."""
    numbers = ", ".join(
        f"{value:.0f}" if float(value).is_integer() else f"{value:g}"
        for value in values[:12].tolist()
    )
    return f"[{numbers}, ...]" if len(values) > 12 else f"[{numbers}]"
