"""What a group of unequal ranks gets done, when all wait for the slowest, or for some of them.

    synchronous               n B / max(t)             everyone waits for everyone
    the first k of n count    k B / (k-th least t)     the others' batches are thrown away
    asynchronous              sum of B / t             nobody waits

B samples in a rank's batch, t seconds that a rank needs for it; communication is free.
Paper: Chen et al., "Revisiting distributed synchronous SGD", arXiv:1604.00981 (backup workers).
"""

from collections.abc import Sequence

from labkit.calc.checked_numbers import check_above_zero, check_ranks
from labkit.calc.result import Result

_SOURCE = "Chen et al., arXiv:1604.00981"


def synchronous_samples_per_s(
    seconds_by_rank: Sequence[float], batch: int, wait_for: int | None = None
) -> Result:
    """Samples per second of ranks that step together. wait_for: how many count; None: all.

    synchronous_samples_per_s([0.4, 0.4, 0.5], batch=32) == 192
    ValueError for no rank, for times that are not above 0, and for more ranks than there are.
    """
    times = _checked(seconds_by_rank)
    count = len(times) if wait_for is None else check_ranks(wait_for, "wait_for")
    if count > len(times):
        raise ValueError(f"wait_for={count} of {len(times)} ranks: give {len(times)} or fewer")
    batch, slowest = check_ranks(batch, "batch"), sorted(times)[count - 1]
    return Result(
        count * batch / slowest,
        "",
        "samples per second, in step",
        "k B / (k-th least t)",
        f"{count} * {batch} / {slowest:g} s",
        convention="communication is free; what comes too late is thrown away",
        source=_SOURCE,
    )


def asynchronous_samples_per_s(seconds_by_rank: Sequence[float], batch: int) -> Result:
    """Samples per second of ranks that never wait. Errors as above."""
    times, batch = _checked(seconds_by_rank), check_ranks(batch, "batch")
    return Result(
        sum(batch / each for each in times),
        "",
        "samples per second, each at its own pace",
        "sum of B / t",
        f"{batch} * sum of 1/t of {len(times)} ranks",
        convention="gradients are computed on parameters that others have changed since",
        source=_SOURCE,
    )


def _checked(seconds_by_rank: Sequence[float]) -> list[float]:
    if not seconds_by_rank:
        raise ValueError("seconds_by_rank is empty: give the seconds of 1 rank or more")
    for each in seconds_by_rank:
        check_above_zero(each, "seconds_by_rank", "a batch takes time")
    return list(seconds_by_rank)
