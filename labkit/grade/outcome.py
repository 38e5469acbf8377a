"""How a check can end, and what one mistake looks like."""

import enum
from dataclasses import dataclass

from labkit.comm.operation import Site


class Outcome(enum.Enum):
    """The six ways in which a check ends; `value` is how it is said."""

    NOT_ATTEMPTED = "not attempted"
    WRONG = "wrong"
    OVER_BUDGET = "over budget"
    CRASHED = "crashed"
    HUNG = "hung"
    PASSED = "passed"


@dataclass(frozen=True, slots=True)
class Finding:
    """One mistake, recognised: what it is called, why it is one, and where it showed first."""

    outcome: Outcome
    diagnosis: str
    """Its name, the same every time: `ignores the remainder of an uneven size`."""
    explanation: str
    """What goes wrong and why, in plain words."""
    first_seen: str = ""
    """The first case that shows it: world size, input, rank, and got against expected."""
    hint: int = 1
    """Which of the exercise's three hints to read next; 0: the mistake is not about the subject."""
    where: Site | None = None
    """The learner's line, where one line is to blame."""
    picture: str = ""
    """Lines that line up, such as a schedule's grid: shown as they are, with what is wrong."""
    details: str = ""
    """Longer evidence: a traceback, or the doctor's verdict on a hang."""
    printed: str = ""
    """What the code printed during that case."""
