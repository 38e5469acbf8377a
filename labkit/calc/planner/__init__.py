"""The planner: of all layouts of a job on a cluster, those that fit, ranked, and why others do not.

job.py          what is asked, and what is assumed
stages.py       which layers each stage has
memory.py       bytes of a GPU by part, on the fullest rank of the pipeline
rules.py        which combinations do not work, and what some of them cost
verdict.py      whether a layout fits, which term broke it          change.py   what would help
enumerate.py    all layouts worth a look
links.py        seconds of collectives over two tiers of links
layer.py        seconds of one layer, by what they go into
step.py         the pieces of a step, and their sum in closed form
estimate.py     seconds, MFU, days and dollars of one layout        plan.py     all of them, ranked
"""

from labkit.calc.planner.change import LayoutChange, smallest_layout_change
from labkit.calc.planner.enumerate import layouts
from labkit.calc.planner.estimate import Estimate, estimate
from labkit.calc.planner.job import Assumptions, Job
from labkit.calc.planner.memory import memory
from labkit.calc.planner.plan import Losers, Plan, plan
from labkit.calc.planner.rules import refusal, warnings_of
from labkit.calc.planner.step import pieces
from labkit.calc.planner.verdict import Verdict, verdict

__all__ = [
    "Assumptions",
    "Estimate",
    "Job",
    "LayoutChange",
    "Losers",
    "Plan",
    "Verdict",
    "estimate",
    "layouts",
    "memory",
    "pieces",
    "plan",
    "refusal",
    "smallest_layout_change",
    "verdict",
    "warnings_of",
]
