"""The order in which each rank of a pipeline works: gpipe, 1f1b, interleaved.

    all three:    some forwards ahead, then one forward and one backward in turn, then what is left

    schedule      ahead, on rank r of p               a rank's microbatches
    gpipe         all                                 one after the other
    1f1b          p - r - 1                           one after the other
    interleaved   2 (p - r - 1) + (v - 1) p           p through its first stage, the same p through
                                                      its second, ...; stage s is on rank s mod p

Written from the papers, and not taken from the strategies, which are held against it.
Papers: Huang et al., GPipe, arXiv:1811.06965; Narayanan et al., arXiv:2006.09503 (1F1B with a
flush) and arXiv:2104.04473, section 2.2 (interleaved).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from labkit.calc.checked_numbers import check_rank, check_ranks, shown

SCHEDULES = ("gpipe", "1f1b", "interleaved")


class Work(NamedTuple):
    """A forward "F" or a whole backward "B" of one microbatch on one stage, counted from 0."""

    kind: str
    stage: int
    microbatch: int

    def __str__(self) -> str:
        """`F3`: the stage is left out, as in pictures."""
        return f"{self.kind}{self.microbatch}"


def order(
    schedule: str, rank: int, num_ranks: int, num_microbatches: int, virtual: int = 1
) -> tuple[Work, ...]:
    """All work of one rank of a pipeline in a step, first to last.

    ValueError: another schedule, several stages on a rank without interleaving, or an interleaved
    schedule whose microbatches do not come in rounds of `num_ranks`.
    """
    check_schedule(schedule, num_ranks, num_microbatches, virtual)
    check_rank(rank, num_ranks)
    forwards = list(_walk("F", rank, num_ranks, num_microbatches, virtual))
    backwards = _walk("B", rank, num_ranks, num_microbatches, virtual)
    ahead = _ahead(schedule, rank, num_ranks, virtual, len(forwards))
    work = forwards[:ahead]
    for n, backward in enumerate(backwards, start=ahead):
        work += [*forwards[n : n + 1], backward]
    return tuple(work)


def check_schedule(schedule: str, num_ranks: int, num_microbatches: int, virtual: int) -> None:
    """Raises ValueError for a schedule that does not exist, see `order`."""
    p, m = check_ranks(num_ranks, "num_ranks"), check_ranks(num_microbatches, "num_microbatches")
    if schedule not in SCHEDULES:
        raise ValueError(f"schedule={shown(schedule)}: give one of {', '.join(SCHEDULES)}")
    if check_ranks(virtual, "virtual") > 1 and schedule != "interleaved":
        raise ValueError(
            f"virtual={virtual} stages on each rank make schedule='interleaved', not {schedule!r}"
        )
    if virtual > 1 and m % p:
        raise ValueError(
            f"num_microbatches={m} is no multiple of the {p} ranks of the pipeline, and an "
            f"interleaved schedule goes in rounds of {p}; try {max(p, m - m % p)}"
        )


def _walk(kind: str, rank: int, p: int, m: int, virtual: int) -> Iterator[Work]:
    """One direction's work: backward comes from a rank's last stage."""
    if virtual == 1:
        yield from (Work(kind, rank, microbatch) for microbatch in range(m))
        return
    turns = range(virtual) if kind == "F" else range(virtual - 1, -1, -1)
    for first in range(0, m, p):
        for turn in turns:
            for microbatch in range(first, first + p):
                yield Work(kind, turn * p + rank, microbatch)


def _ahead(schedule: str, rank: int, p: int, virtual: int, total: int) -> int:
    if schedule == "gpipe":
        return total
    distance = p - rank - 1
    return min(distance if virtual == 1 else 2 * distance + (virtual - 1) * p, total)
