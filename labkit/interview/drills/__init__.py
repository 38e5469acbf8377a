"""Numeric questions with fresh numbers each time; the answers come from calc.

question = get_drill("bubble_share").question(seed=7)
question.prompt, question.answer_text
judge(question, "43.8%").text        "A known trap: relative to ideal time. ..."

Read in this order: drill.py makes a kind of question, question.py judges an answer, session.py asks
and remembers, catalog.py lists all drills.
"""

from typing import TYPE_CHECKING

from labkit.lazy import lazy

# The catalog imports the drills, and they import drill.py.
if TYPE_CHECKING:
    from labkit.interview.drills.catalog import DRILLS, UnknownDrill, drills_of, get_drill
    from labkit.interview.drills.drill import Drill
    from labkit.interview.drills.question import Outcome, Question, Ruling, Trap, judge

__getattr__, __dir__, __all__ = lazy(__name__)
