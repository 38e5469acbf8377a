"""What the doctor says."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Fault(Enum):
    """What keeps a run from ending."""

    MISMATCH = "mismatch"
    LEFT = "left"
    CYCLE = "cycle"
    STOPPED = "stopped"
    SLOW = "slow"
    UNDER_WAY = "under way"
    BUSY = "busy"


@dataclass(frozen=True)
class Verdict:
    """What keeps a run from ending, in plain words."""

    fault: Fault
    text: str
    """One sentence that names ranks, operations and lines; no full stop."""
    advice: str = ""
    """What to do about it, or where to look."""
    ranks: tuple[int, ...] = ()
    """Whose code to look at first."""
    is_proof: bool = False
    """Whether the run cannot end any more."""

    def __str__(self) -> str:
        """The sentence, and the advice on a line of its own."""
        return f"{self.text}.\n{self.advice}" if self.advice else f"{self.text}."
