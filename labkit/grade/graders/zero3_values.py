"""Gradients of shards that code under test returned, and the mistakes that make them wrong."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from labkit.grade.evidence import CaseEvidence
from labkit.grade.graders.gradient_values import is_close, is_nearly, shown
from labkit.grade.graders.shard_wire import ROUNDED
from labkit.grade.graders.zero3_inputs import Given
from labkit.grade.graders.zero3_watch import BACKWARD, OTHER_INPUT, Seen
from labkit.grade.outcome import Finding, Outcome


@dataclass(frozen=True)
class Mistake:
    """A name for it, and what a rank then returns."""

    name: str
    explanation: str
    gradients: Callable[[int], list[Tensor]]


def right(given: Given) -> list[list[Tensor]]:
    """By rank and unit."""
    ranks = range(len(given.batches))
    means = _combined(given, 1 / len(ranks))
    return [given.shards(means, rank) for rank in ranks]


def wrong_form(evidence: CaseEvidence, given: Given, seen: Sequence[Seen]) -> Finding | None:
    """No list of tensors, or of other sizes than the shards."""
    for rank, each in enumerate(seen):
        numels = [gradient.numel() for gradient in each.gradients]
        if numels == given.shard_numels:
            continue
        name, why = (
            "returns something else than the gradients of the shards",
            f"tensors of {given.shard_numels} numbers were expected, one for each unit, and there "
            + (f"are some of {numels}" if numels else "is no list of tensors"),
        )
        if numels == given.shard_numels[::-1]:
            name, why = (
                "returns the gradients in the order of backward",
                f"they have {numels} numbers, and the shards {given.shard_numels}: backward goes "
                "through the units from the last to the first. Turn the list around",
            )
        elif numels in ([w.numel() for w in given.weights], _padded(given)) and len(seen) > 1:
            name, why = (
                "returns whole gradients",
                "the gradients are as long as the units' weights: a rank keeps those of its shard, "
                "as of the parameters",
            )
        return Finding(Outcome.WRONG, name, why, f"{evidence.label}: rank {rank}", hint=2)
    return None


def wrong_values(evidence: CaseEvidence, given: Given, seen: Sequence[Seen]) -> Finding | None:
    """Gradients that are not the mean's, shards that are not what they were."""
    expected = right(given)
    for rank, each in enumerate(seen):
        if each.have_shards_changed:
            return _wrong(
                "changes the shards",
                "a unit's shard is not what it was before the call: the optimizer's step comes "
                "after, and gathers begin from the shard",
                f"{evidence.label}: rank {rank}",
            )
        if each.lost_shards:
            return _wrong(
                "gives a unit another shard",
                "unit.shard is another tensor than before the call: the optimizer has states for "
                "the one that was there, and will update that, while gathers take the other. "
                "Release what was gathered, and leave shards as they are",
                f"{evidence.label}: rank {rank}",
            )
        for unit, gradient in enumerate(each.gradients):
            if is_close(gradient, expected[rank][unit]):
                continue
            values = f"got {shown(gradient)}, expected {shown(expected[rank][unit])}"
            where = f"{evidence.label}: gradient of unit {unit}'s shard on rank {rank}: {values}"
            return _explained(given, seen, where)
    return None


def all_right(given: Given, seen: Sequence[Seen]) -> bool:
    """Whether every rank has what it should have."""
    return _match(seen, right(given))


def _explained(given: Given, seen: Sequence[Seen], where: str) -> Finding:
    if any(gradient.isnan().any() for each in seen for gradient in each.gradients):
        return _wrong(
            "uses weights that are on their way",
            "there is NaN in the gradients, and none in the inputs. While a check runs, a tensor "
            "given as out= holds NaN until wait() returns: weights were used too early, or the "
            "next unit was gathered into the memory of the one in use",
            where,
        )
    if any(use.kind == BACKWARD and not use.is_own_input for each in seen for use in each.uses):
        return _wrong(
            OTHER_INPUT,
            "unit.backward got an x that is not what the same unit's forward got: it takes the "
            "unit's input, which is the output of the unit before",
            where,
        )
    for mistake in mistakes(given):
        if _match(seen, [mistake.gradients(rank) for rank in range(len(seen))]):
            return _wrong(mistake.name, mistake.explanation, where)
    pairs = zip(seen, right(given), strict=True)
    if all(all(map(is_nearly, each.gradients, values)) for each, values in pairs):
        return _wrong(*ROUNDED, where)
    return _wrong(
        "other gradients than the mean's",
        "each is to be the r-th segment of the unit's gradient, with zeros at the end, averaged "
        "over the ranks",
        where,
    )


def mistakes(given: Given) -> list[Mistake]:
    """In the order in which they are tried."""
    n, expected = len(given.batches), right(given)
    sums, small = _combined(given, 1), _combined(given, 1 / n**2)
    own = [given.shards(given.gradients(rank), rank) for rank in range(n)]
    shifted = [
        Mistake(
            "returns another rank's shards",
            f"rank r has the gradients of rank (r + {by}) % {n}'s shards: segment r is rank r's",
            lambda rank, by=by: expected[(rank + by) % n],  # type: ignore[misc]
        )
        for by in range(1, n)
    ]
    return [
        Mistake(
            "sums instead of averaging",
            f"the gradients are the sum over the ranks, {n} times the mean",
            lambda rank: given.shards(sums, rank),
        ),
        Mistake(
            "divides by the number of ranks twice",
            f"the gradients are the mean, divided by {n} once more",
            lambda rank: given.shards(small, rank),
        ),
        Mistake(
            "does not average over the ranks",
            "each rank has its segment of its own gradients: of the other ranks' batches, nothing "
            "is in it. The weights were gathered, and the gradients have to go back",
            lambda rank: own[rank],
        ),
        *shifted,
    ]


def _combined(given: Given, factor: float) -> list[Tensor]:
    """The sum over the ranks times `factor`, by unit."""
    of_ranks = [given.gradients(rank) for rank in range(len(given.batches))]
    return [torch.stack(its).sum(0) * factor for its in zip(*of_ranks, strict=True)]


def _padded(given: Given) -> list[int]:
    return [len(given.batches) * numel for numel in given.shard_numels]


def _match(seen: Sequence[Seen], expected: Sequence[Sequence[Tensor]]) -> bool:
    return all(
        is_close(gradient, value)
        for each, values in zip(seen, expected, strict=True)
        for gradient, value in zip(each.gradients, values, strict=True)
    )


def _wrong(name: str, explanation: str, seen: str) -> Finding:
    return Finding(Outcome.WRONG, name, explanation, seen, hint=2)
