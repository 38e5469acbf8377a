"""Mutant: rounded up and returned, whichever schedule it is.

outcome: "wrong"
diagnosis: "forgets which numbers of microbatches a schedule can have"
"""


def bubble(p: int, m: int, schedule: str, virtual: int, relative_to: str) -> float:
    idle = (p - 1) / {"interleaved": virtual, "zb_h1": 3}.get(schedule, 1)
    if schedule == "naive":
        idle = (p - 1) * m
    return idle / (m if relative_to == "ideal" else m + idle)


def microbatches_for(
    p: int, percent: int, schedule: str, virtual: int, relative_to: str
) -> int | None:
    busy = 100 if relative_to == "ideal" else 100 - percent
    if schedule == "naive":
        return 1 if (p - 1) * busy <= percent else None
    divisor = percent * {"interleaved": virtual, "zb_h1": 3}.get(schedule, 1)
    return max(-(-(p - 1) * busy // divisor), 1)
