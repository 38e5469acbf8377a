"""What the driver knows of one rank."""

from __future__ import annotations

from dataclasses import dataclass

from labkit.doctor.stage import Stage
from labkit.launch.driver.engine import RankProcess
from labkit.launch.ranks.output import RankOutput
from labkit.launch.ranks.report import Raised, Returned


@dataclass
class Rank:
    """A rank, seen from the driver."""

    process: RankProcess
    output: RankOutput
    stage: Stage = Stage.STARTING
    report: Returned | Raised | None = None
    ended_s: float = 0.0
    """When it failed: raised, or was seen to be dead."""

    @property
    def is_active(self) -> bool:
        """It may still report something."""
        return self.stage in (Stage.STARTING, Stage.RUNNING)

    @property
    def may_be_the_cause(self) -> bool:
        """It has failed, and not only because an operation with another rank did."""
        is_consequence = isinstance(self.report, Raised) and self.report.came_from_a_communication
        return self.stage in (Stage.DIED, Stage.RAISED) and not is_consequence
