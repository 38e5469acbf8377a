"""Noticing that a run will not end, without waiting for its timeout."""

from __future__ import annotations

import time

from labkit.launch import doctor
from labkit.launch.doctor import Stage
from labkit.launch.supervise import Supervisor

_FIRST_LOOK_S = 0.25
_LONGEST_LOOK_S = 4.0


class StallWatch:
    """Looks at the journals when no rank reports; less often the longer that lasts."""

    def __init__(self, supervisor: Supervisor, stall_s: float | None) -> None:
        """stall_s: how long all ranks may wait without progress; None: no limit."""
        self._supervisor = supervisor
        self._stall_s = stall_s
        self._progress = -1
        self._suspicion: str | None = None
        self.news()

    def news(self) -> None:
        """A rank reported something."""
        self._look_s = _FIRST_LOOK_S
        self._next_look_at_s = time.monotonic() + self._look_s
        self._progress_at_s = time.monotonic()

    @property
    def next_look_s(self) -> float:
        """Seconds until the next look is due."""
        return max(self._next_look_at_s - time.monotonic(), 0)

    def look(self) -> str | None:
        """Why the run cannot end any more, once it is due and two looks agree; or None."""
        if self.next_look_s > 0:
            return None
        supervisor = self._supervisor
        stages = [rank.stage for rank in supervisor.ranks]
        if self._stall_s is None:
            self._look_s = min(2 * self._look_s, _LONGEST_LOOK_S)
        self._next_look_at_s = time.monotonic() + self._look_s
        if self._stall_s is None and Stage.RETURNED not in stages:
            return None  # nothing could be proved: spare the reading
        supervisor.read_journals()
        # A rank whose function returned may have left a thread that still communicates.
        before, self._suspicion = (
            self._suspicion,
            doctor.cannot_come(stages, supervisor.timeline),
        )
        if self._suspicion is not None and self._suspicion == before:
            return self._suspicion
        return self._stalled(stages)

    def _stalled(self, stages: list[Stage]) -> str | None:
        timelines = self._supervisor.timeline
        progress = sum(
            2 if operation.done_s else 1 for each in timelines for operation in each.operations
        )
        running = [
            timeline
            for timeline, stage in zip(timelines, stages, strict=True)
            if stage is not Stage.RETURNED
        ]
        all_wait = all(doctor.waits_in(timeline) is not None for timeline in running)
        if progress != self._progress or not all_wait:
            self._progress, self._progress_at_s = progress, time.monotonic()
            return None
        silent_s = time.monotonic() - self._progress_at_s
        if self._stall_s is None or silent_s < self._stall_s:
            return None
        return f"for {silent_s:.0f} s every rank has waited, and none has made progress"
