"""Mistakes in average_gradients, by the gradients that they leave."""

from collections.abc import Sequence

import torch

from labkit.grade.evidence import CaseEvidence
from labkit.grade.graders.average_inputs import Given
from labkit.grade.graders.gradient_values import Gradients, Left, Theory, is_close, shown
from labkit.grade.outcome import Finding, Outcome

Tensor = torch.Tensor


def mean(given: Given) -> Gradients:
    """What is right, on every rank."""
    return {name: _sum(given, name) / len(given.gradients) for name in given.trained}


def theories(given: Given) -> list[Theory]:
    """In the order in which they are tried."""
    n = len(given.gradients)
    right = mean(given)

    def scaled(factor: float) -> Gradients:
        return {name: value * factor for name, value in right.items()}

    return [
        Theory(
            "the gradients stay as they were",
            "every rank has its own gradients still. all_reduce returns the sum and leaves its "
            "argument alone: pass out=, or assign what it returns to parameter.grad",
            lambda rank: {name: given.gradient(rank, name) for name in given.trained},
        ),
        Theory(
            "sums instead of averaging",
            f"the gradients are the sum over the ranks, {n} times the mean. Each rank's loss is a "
            "mean over its part of the batch, so the gradient of the whole batch is the mean of "
            "these; the sum trains with a learning rate that grows with the number of ranks. (A "
            "division while the sum is under way is lost: divide before the all-reduce, or after "
            "wait().)",
            lambda rank: scaled(n),
        ),
        Theory(
            "divides by the number of ranks twice",
            f"the gradients are the mean, divided by {n} once more: divide before the sum, after "
            'it, or say op="mean", but only one of these',
            lambda rank: scaled(1 / n),
        ),
    ]


def frozen_ones(evidence: CaseEvidence, given: Given, left: Sequence[Left]) -> Finding | None:
    """Gradients where there should be none."""
    for rank, each in enumerate(left):
        for name in given.frozen:
            if each.gradients[name] is not None:
                return _finding(
                    "gives a frozen parameter a gradient",
                    f"{name} is frozen, and has a gradient now: an optimizer that has it would "
                    "apply weight decay and momentum to it. Leave out what has requires_grad=False",
                    f"{evidence.label}: rank {rank}",
                )
    return None


def one_by_one(evidence: CaseEvidence, given: Given, left: Sequence[Left]) -> Finding | None:
    """Mistakes that concern some parameters and leave others right."""
    right, ranks = mean(given), range(len(left))
    wrong = {
        rank: [n for n, value in right.items() if not is_close(left[rank].gradients[n], value)]
        for rank in ranks
    }
    names = [name for name in right if any(name in its for its in wrong.values())]
    if not names or len(names) == len(right):
        return None
    name = names[0]
    rank = next(rank for rank in ranks if name in wrong[rank])
    got = left[rank].gradients[name]
    seen = (
        f"{evidence.label}: gradient of {name} on rank {rank}: got {shown(got)}, expected "
        f"{shown(right[name])}"
    )
    its_own = [
        is_close(left[r].gradients[each], given.gradient(r, each)) for r in ranks for each in names
    ]
    if not any(each in given.gradients[r] for r in ranks for each in wrong[r]):
        return _finding(
            "leaves out the rank that has no gradient",
            f"rank {rank} did not use {name}, and afterwards it has not got the mean that the "
            "others have: its parameter stays behind, and the ranks train different models from "
            "then on. There, too, parameter.grad is the mean",
            seen,
        )
    return _of_some(given, names, seen, is_untouched=all(its_own))


def _of_some(
    given: Given, names: Sequence[str], seen: str, *, is_untouched: bool
) -> Finding | None:
    """Gradients of these parameters are wrong, and those of others right."""
    if is_untouched:
        return _finding(
            "skips parameters",
            f"{', '.join(names)}: the gradients are each rank's own still, while others are "
            "averaged. From the first step on, the ranks have different models, and nothing "
            "crashes: go through module.parameters(), and leave out only what is frozen",
            seen,
        )
    if set(names) <= set((given.tied or {}).values()):
        return _finding(
            "treats a tied parameter twice",
            f"{names[0]} has two names and one gradient, and whatever is done to it once by either "
            "name, is done twice. module.parameters() gives it once; a loop over the submodules' "
            "parameters does not",
            seen,
        )
    return None


def _finding(name: str, explanation: str, seen: str) -> Finding:
    return Finding(Outcome.WRONG, name, explanation, seen, hint=2)


def _sum(given: Given, name: str) -> Tensor:
    parts = [given.gradient(rank, name) for rank in range(len(given.gradients))]
    return torch.stack(parts).sum(0)
