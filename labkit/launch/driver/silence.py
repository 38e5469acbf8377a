"""Ranks that cannot answer, so that nobody waits for them."""

from __future__ import annotations

import time
from collections.abc import Sequence

from labkit.doctor.halt import Halt, halt_of
from labkit.launch.driver.rank_state import Rank

# A process that reads from a disk is in uninterruptible sleep for moments, and answers then.
_SLEEPS_ON_S = 0.25


class Silence:
    """What the kernel says of a run's processes, while these are asked where they are."""

    def __init__(self, ranks: Sequence[Rank]) -> None:
        """Begins to look now."""
        self._ranks = ranks
        self._since_s: dict[int, float] = {}

    def of(self, number: int) -> Halt | None:
        """Why a rank will not answer: it is stopped, or has slept at every look for a while."""
        now_s = time.monotonic()
        halt = halt_of(self._ranks[number].process.process.pid)
        if halt is None:
            self._since_s.pop(number, None)
            return None
        has_lasted = now_s - self._since_s.setdefault(number, now_s) >= _SLEEPS_ON_S
        return halt if halt.is_stop or has_lasted else None
