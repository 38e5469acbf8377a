"""Means of `exchange` that are wrong, and the mistake behind each kind of them."""

from collections.abc import Sequence

import torch

from labkit.grade.graders.sums import Recognised
from labkit.grade.graders.top_k_compressed import Step, shown
from labkit.grade.outcome import Finding, Outcome

Tensor = torch.Tensor
# Right means are whole numbers: this is room for who multiplies by 1/n, and for nothing else.
_NEAR = 0.5
_A_FEW_DIGITS = 2**-7  # of the largest: bfloat16


def wrong_means(steps: Sequence[Step], label: str, shift: int = 0) -> Finding | None:
    """What is wrong with the means of one step, given what the ranks have sent.

    shift: how many places come before the first of these.
    """
    n, got = len(steps), [step.mean for step in steps]
    total = total_of(steps)
    wanted = [total / n] * n
    if _are_near(got, wanted):
        return None
    name, explanation, hint = (
        _far_places(shift)
        or _a_sum(got, total)
        or _loses_digits(got, wanted)
        or _own_only(got, steps)
        or _over_those_that_sent(got, steps)
        or _overwritten(got, steps)
        or (
            "another mean than that of what was sent",
            "for each place: the sum of what all ranks have sent for it, divided by n",
            2,
        )
    )
    rank = next(r for r in range(n) if not _is_near(got[r], wanted[r]).all())
    seen = f"{label}: mean on rank {rank}: got {shown(got[rank])}, expected {shown(wanted[rank])}"
    return Finding(Outcome.WRONG, name, explanation, seen, hint)


def total_of(steps: Sequence[Step]) -> Tensor:
    """What all ranks have sent in one step, added up, (numel,)."""
    return torch.stack([step.sent for step in steps]).sum(0)


def _is_near(got: Tensor, wanted: Tensor) -> Tensor:
    return (got - wanted).abs() < _NEAR


def _are_near(got: Sequence[Tensor], wanted: Sequence[Tensor]) -> bool:
    return all(bool(_is_near(one, other).all()) for one, other in zip(got, wanted, strict=True))


def _far_places(shift: int) -> Recognised | None:
    """The same step goes well with smaller places, in the cases before."""
    if not shift:
        return None
    return (
        "loses places that are far out",
        f"places up to some 1,000 are right, and those beyond {shift:,} are not: they travel as "
        "numbers that cannot hold them. float32 has whole numbers up to 2**24 = 16,777,216, and a "
        "gradient has billions. Gather places as int64 or int32, or as bytes",
        3,
    )


def _loses_digits(got: Sequence[Tensor], wanted: Sequence[Tensor]) -> Recognised | None:
    most = max(float(each.abs().max()) for each in wanted)
    if not all(
        bool(((one - other).abs() <= _A_FEW_DIGITS * most).all())
        for one, other in zip(got, wanted, strict=True)
    ):
        return None
    return (
        "loses digits on the way",
        "every mean is nearly right: values travel, or are added up, in a smaller dtype than "
        "theirs. What is rounded off is in nobody's debt, and lost",
        3,
    )


def _a_sum(got: Sequence[Tensor], total: Tensor) -> Recognised | None:
    if not _are_near(got, [total] * len(got)):
        return None
    return (
        "a sum instead of a mean",
        f"it is {len(got)} times what it should be: the learning rate would have to change with "
        "the number of ranks",
        3,
    )


def _own_only(got: Sequence[Tensor], steps: Sequence[Step]) -> Recognised | None:
    n = len(steps)
    if not any(_are_near(got, [step.sent / by for step in steps]) for by in (1, n)):
        return None
    return (
        "stays on its own rank",
        "the mean has this rank's entries alone: the ranks' models drift apart from here on",
        1,
    )


def _over_those_that_sent(got: Sequence[Tensor], steps: Sequence[Step]) -> Recognised | None:
    counts = torch.stack([step.sent != 0 for step in steps]).sum(0).clamp(min=1)
    if not _are_near(got, [total_of(steps) / counts] * len(got)):
        return None
    return (
        "divides by those that have sent it",
        "each place is divided by the number of ranks that have sent it. What the others have "
        "there they owe, and will send: then it counts n times what it should. A place that is not "
        "sent counts as 0",
        2,
    )


def _overwritten(got: Sequence[Tensor], steps: Sequence[Step]) -> Recognised | None:
    """Right where one rank has sent; one rank's value where several have."""
    n, sent = len(steps), torch.stack([step.sent for step in steps])
    several = (sent != 0).sum(0) > 1
    for mean in got:
        is_sum, is_one = _is_near(mean, sent.sum(0) / n), _is_near(mean, sent / n).any(0)
        if not torch.where(several, is_one, is_sum).all():
            return None
    return (
        "overwrites where ranks have chosen the same place",
        "where several ranks have sent an entry, the mean has the one that was written last, and "
        "the others are lost: they are in nobody's debt either. total[indices] += values writes "
        "each place once; index_add_ and scatter_add_ add up what comes for the same place",
        3,
    )
