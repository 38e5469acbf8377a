"""Mutant: tries one number after the other, and compares floats.

outcome: "wrong"
diagnosis: "rounds at the edge"
"""


def bubble(p, m, schedule, virtual, relative_to):
    parts = {"interleaved": virtual, "zb_h1": 3}.get(schedule, 1)
    of_ideal = p - 1 if schedule == "naive" else (p - 1) / (m * parts)
    return of_ideal if relative_to == "ideal" else of_ideal / (1 + of_ideal)


def microbatches_for(p, percent, schedule, virtual, relative_to):
    if schedule == "naive":
        return (
            1 if (p - 1) * (100 if relative_to == "ideal" else 100 - percent) <= percent else None
        )
    parts = {"interleaved": virtual, "zb_h1": 3}.get(schedule, 1)
    step = p if schedule == "interleaved" else 1
    m = p if schedule in ("interleaved", "zb_h1") else 1
    while 100 * ((p - 1) / (parts * m + (p - 1) * (relative_to == "total"))) > percent:
        m += step
    return m
