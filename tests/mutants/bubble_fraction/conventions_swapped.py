"""Mutant: takes total for ideal, and ideal for total.

outcome: "wrong"
diagnosis: "swaps the two conventions"
"""


def bubble(p: int, m: int, schedule: str, virtual: int, relative_to: str) -> float:
    idle = (p - 1) / {"interleaved": virtual, "zb_h1": 3}.get(schedule, 1)
    if schedule == "naive":
        idle = (p - 1) * m
    return idle / (m if relative_to != "ideal" else m + idle)


def microbatches_for(
    p: int, percent: int, schedule: str, virtual: int, relative_to: str
) -> int | None:
    busy = 100 if relative_to == "ideal" else 100 - percent
    if schedule == "naive":
        return 1 if (p - 1) * busy <= percent else None
    divisor = percent * {"interleaved": virtual, "zb_h1": 3}.get(schedule, 1)
    fewest = max(-(-(p - 1) * busy // divisor), 1)
    if schedule == "interleaved":
        return -(-fewest // p) * p
    return max(fewest, p) if schedule == "zb_h1" else fewest
