"""A schedule in time as text: a row per rank, a column per unit of time.

time    0     2     4     6     8
rank 0  F0 F1 .  B0--- B1---
rank 1  .  F0 B0--- F1 B1---
"""

from __future__ import annotations

import math

from labkit.pipeline import Span, Timing


def time_grid(timing: Timing) -> str:
    """Whole times only: what lasts n units is n columns wide; a point is a unit of waiting."""
    spans = [span for row in timing.rows for span in row]
    shown = {span: _label(span, timing) for span in spans}
    width = max(math.ceil((len(shown[s]) + 1) / (s.end - s.start)) for s in spans)
    num_units = round(timing.makespan)
    heading = "".join(str(unit).ljust(2 * width) for unit in range(0, num_units, 2))
    lines = [f"time    {heading}".rstrip()]
    for rank, row in enumerate(timing.rows):
        cells, at = "", 0
        for span in row:
            length = round(span.end - span.start) * width
            cells += ".".ljust(width) * (round(span.start) - at)
            cells += shown[span].ljust(length - 1, "-") + " "
            at = round(span.end)
        cells += ".".ljust(width) * (num_units - at)
        lines.append(f"rank {rank}  {cells}".rstrip())
    return "\n".join(lines)


def _label(span: Span, timing: Timing) -> str:
    has_virtual = timing.schedule.num_stages > timing.schedule.num_ranks
    return f"{span.op}@{span.op.stage}" if has_virtual else str(span.op)
