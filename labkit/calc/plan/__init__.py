"""The planner: layouts of a job on a cluster that fit, ranked, and why the others do not.

Read in this order:

    job.py            what is asked, and what is assumed
    layout_rules.py   layouts worth a look, combinations that do not work, costly ones
    gpu_memory.py     bytes of a GPU by part, on the fullest rank; the layers of each stage
    computing.py      seconds of one layer's products, attention and bytes
    seconds.py        its collectives on two tiers of links, data parallelism
    planned_step.py   the parts of a step, and their sum in closed form
    estimation.py     whether a layout fits, which term broke it; MFU, days and dollars
    ranking.py        all of them, ranked, and what would help the others
    mixed_fleet.py    GPUs of several kinds in one job, with equal shares and by speed
"""

from labkit.calc.pieces import Pieces
from labkit.calc.plan.estimation import Estimate, estimate, verdict
from labkit.calc.plan.gpu_memory import memory
from labkit.calc.plan.job import Assumptions, Job
from labkit.calc.plan.layout_rules import layouts, refusal
from labkit.calc.plan.mixed_fleet import FleetStep, mixed_fleet
from labkit.calc.plan.planned_step import pieces
from labkit.calc.plan.ranking import Plan, plan, smallest_change

__all__ = [
    "Assumptions",
    "Estimate",
    "FleetStep",
    "Job",
    "Pieces",
    "Plan",
    "estimate",
    "layouts",
    "memory",
    "mixed_fleet",
    "pieces",
    "plan",
    "refusal",
    "smallest_change",
    "verdict",
]
