"""The doctor's verdict: the fault of a run, its text, and advice for each kind of hang.

The advice is a verdict's second sentence. Stage is how far a rank has come.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Fault(Enum):
    """The reason why a run does not end."""

    MISMATCH = "mismatch"
    LEFT = "left"
    CYCLE = "cycle"
    STOPPED = "stopped"
    SLOW = "slow"
    UNDER_WAY = "under way"
    BUSY = "busy"


@dataclass(frozen=True)
class Verdict:
    """The reason why a run does not end, in plain words."""

    fault: Fault
    text: str
    """One sentence that names ranks, operations and lines; no full stop."""
    advice: str = ""
    """The next step, or where to look."""
    ranks: tuple[int, ...] = ()
    """Whose code to look at first."""
    is_proof: bool = False
    """True if the run cannot end any more."""

    def __str__(self) -> str:
        """The sentence, and the advice on a line of its own."""
        return f"{self.text}.\n{self.advice}" if self.advice else f"{self.text}."


class Stage(Enum):
    """How far a rank has come."""

    STARTING = "starting"
    RUNNING = "running"
    RETURNED = "returned"
    IDLE = "idle"
    """The rank of a session takes no part in this cell."""
    RAISED = "raised"
    DIED = "died"

    @property
    def is_over(self) -> bool:
        """It will not communicate any more."""
        return self not in (Stage.STARTING, Stage.RUNNING)


ALL_SEND = (
    "A send is complete only when the other side receives, and each of them waits for its send "
    "before it comes to its receive. Post one of the two without blocking (isend or irecv) and "
    "wait for both afterwards; or let one side receive first."
)
ALL_RECEIVE = (
    "Each of them waits for a message before it sends its own, so none is ever sent. Let one side "
    "send first, or post the receive without blocking (irecv)."
)
COUNT_CALLS = (
    "Every member of a group must make the same calls. Look for a loop with fewer steps, or a "
    "return, break or if that depends on the rank."
)
NOT_ASKED = (
    "The cell runs on some of the ranks only (--on), and a collective needs every member of its "
    "group: run the cell on all of them, or call a group of these ranks, made with world.split."
)
CALL_ON_ALL = (
    "The call sends messages, and every rank of its group must make it: the forward and backward "
    "pass of a sharded module, in evaluation too, the step of a pipeline, a collective. Look for a "
    "loop with fewer steps, or a return, break or if that depends on the rank."
)
CALL_ALIKE = (
    "These calls send messages, and every rank of their group must make the same calls, in the "
    "same order and with the same settings. Look for one that some ranks make alone or later, and "
    "for an argument that is given on some ranks only."
)
COUNT_MESSAGES = "Count the messages of both sides, and look whom each names as its neighbour."
NOT_RECORDED = (
    "Operations that torch itself issues come from its Flight Recorder, which has no roots and no "
    "reduce ops: compare those first."
)
MIXED = (
    "Each rank would make the other's call only after its own wait. Make these calls in the same "
    "order on all ranks."
)
STOPPED = (
    "A stopped process executes nothing, not even what would tell its stack, and ranks that need "
    "it wait. That is no deadlock by itself."
)
