"""Where each rank was, from the records of a run: the table below its verdict.

The same as below one of `labkit.run` (doctor/position.py), but for what a record does not keep:
with what a rank waits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from labkit.doctor.position import together
from labkit.launch.saved.rank_record import Record


def table(found: Mapping[int, Record], absent: Sequence[str]) -> str:
    """Ranks that do the same in one row: ranks, what they do, line.

    absent: by rank, what is said of one that has left no record.
    """
    rows = [
        _row(found[rank]) if rank in found else (without, "") for rank, without in enumerate(absent)
    ]
    return together(rows)


def _row(record: Record) -> tuple[str, str]:
    """What the rank did, and where, which its position says in one."""
    place = f" ({record.place})"
    if not record.position.endswith(place):
        return record.position, ""
    return record.position.removesuffix(place), record.place
