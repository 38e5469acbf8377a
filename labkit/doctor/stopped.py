"""Ranks whose process is stopped, in the words of a verdict."""

from __future__ import annotations

from collections.abc import Sequence

from labkit.comm.words import listed, ranks_named
from labkit.doctor.halt import cure
from labkit.doctor.position import plural
from labkit.doctor.waiting import View

ADVICE = (
    "A stopped process executes nothing, not even what would tell its stack, and ranks that need "
    "it wait. That is no deadlock by itself."
)


def stopped(views: Sequence[View]) -> list[int]:
    """The ranks that execute nothing until somebody lets them go on."""
    return [rank for rank, view in enumerate(views) if view.is_stopped]


def said(ranks: Sequence[int], views: Sequence[View]) -> str:
    """`rank 1 is stopped (SIGSTOP, or a debugger); `kill -CONT 71` lets it go on`."""
    halts = {rank: halt for rank in ranks if (halt := views[rank].halt) is not None}
    ranks_of: dict[str, list[int]] = {}
    for rank, halt in halts.items():
        ranks_of.setdefault(halt.said, []).append(rank)
    what = listed([f"{ranks_named(each)} {plural(text, each)}" for text, each in ranks_of.items()])
    return what + cure(list(halts.values()))
