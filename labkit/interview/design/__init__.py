"""Design rounds: a briefing, a plan whose numbers the planner checks, facts that change.

briefing.py has what is asked, round.py asks and judges, report.py writes the report.
"""

from labkit.interview.design.briefing import (
    Briefing,
    UnknownBriefing,
    briefings,
    draw_briefing,
    get_briefing,
    names,
)
from labkit.interview.design.round import MINUTES, NUMBERS, DesignRound

__all__ = [
    "MINUTES",
    "NUMBERS",
    "Briefing",
    "DesignRound",
    "UnknownBriefing",
    "briefings",
    "draw_briefing",
    "get_briefing",
    "names",
]
