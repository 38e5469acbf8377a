"""Where each rank was, from the records of a run: the table below its verdict.

The same as below one of `labkit.run` (diagnosis/position.py), but for what a record does not keep:
with what a rank waits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from labkit.comm.words import ranks_named
from labkit.launch.diagnosis.position import plural
from labkit.launch.saved.rank_record import Record


def table(found: Mapping[int, Record], absent: Sequence[str]) -> str:
    """Ranks that do the same in one row: ranks, what they do, line.

    absent: by rank, what is said of one that has left no record.
    """
    ranks_at: dict[tuple[str, str], list[int]] = {}
    for rank, without in enumerate(absent):
        row = _row(found[rank]) if rank in found else (without, "")
        ranks_at.setdefault(row, []).append(rank)
    cells = [
        (ranks_named(ranks), plural(what, ranks), place)
        for (what, place), ranks in ranks_at.items()
    ]
    widths = [max(len(row[column]) for row in cells) for column in range(3)]
    return "\n".join(
        "  " + "  ".join(f"{text:<{w}}" for text, w in zip(row, widths, strict=True)).rstrip()
        for row in cells
    )


def _row(record: Record) -> tuple[str, str]:
    """What the rank did, and where, which its position says in one."""
    place = f" ({record.place})"
    if not record.position.endswith(place):
        return record.position, ""
    return record.position.removesuffix(place), record.place
