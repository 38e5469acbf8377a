"""How far a rank has come."""

from enum import Enum


class Stage(Enum):
    """How far a rank has come."""

    STARTING = "starting"
    RUNNING = "running"
    RETURNED = "returned"
    IDLE = "idle"
    """Of a session: it takes no part in this cell."""
    RAISED = "raised"
    DIED = "died"

    @property
    def is_over(self) -> bool:
        """It will not communicate any more."""
        return self not in (Stage.STARTING, Stage.RUNNING)
