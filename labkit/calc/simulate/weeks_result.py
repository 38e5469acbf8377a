"""Where the time of a run of weeks went: the parts of all time, and how often it failed."""

from __future__ import annotations

from dataclasses import dataclass

WEEK_S = 7 * 24 * 3600.0


@dataclass(frozen=True, kw_only=True)
class SimulatedWeeks:
    """Seconds; useful, writing, redone and down add up to all of it."""

    total_s: float
    useful_s: float
    """Work that stayed."""
    writing_s: float
    """Checkpoints, as far as training was idle for them."""
    redone_s: float
    """Work that was lost, and had to be done again."""
    down_s: float
    """From failures to the first step after them."""
    waiting_s: float
    """Of that, for a node to be repaired, where no spare one was left."""
    num_interruptions: int
    """Failures while it worked or wrote."""
    num_failed_restarts: int
    """Failures while it was down."""
    num_checkpoints: int
    num_steps: float
    """That stayed."""

    @property
    def goodput(self) -> float:
        """The share of all time in which work was done that stayed."""
        return self.useful_s / self.total_s

    @property
    def num_failures(self) -> int:
        """While it worked, and while it was down."""
        return self.num_interruptions + self.num_failed_restarts

    @property
    def shares(self) -> dict[str, float]:
        """Of all time: useful, writing, redone, down."""
        parts = ("useful", "writing", "redone", "down")
        return {name: getattr(self, f"{name}_s") / self.total_s for name in parts}

    def __str__(self) -> str:
        """`6 weeks: goodput 91.2% (writing 3.0%, ...); 327 failures, one in 3.1 h; ...`."""
        rest = ", ".join(f"{k} {v:.1%}" for k, v in self.shares.items() if k != "useful")
        hours = self.total_s / 3600 / self.num_failures if self.num_failures else 0
        return (
            f"{self.total_s / WEEK_S:g} weeks: goodput {self.goodput:.1%} ({rest}); "
            f"{self.num_failures} failures{f', one in {hours:.3g} h' if hours else ''}; "
            f"{self.num_checkpoints:,} checkpoints"
        )
