"""The planner: of all layouts of a job on a cluster, those that fit, ranked, and why others do not.

job.py               what is asked, and what is assumed
gpu_memory.py   which layers each stage has
gpu_memory.py        bytes of a GPU by part, on the fullest rank of the pipeline
layout_rules.py             which combinations do not work, and what some of them cost
estimation.py           whether a layout fits, which term broke it     ranking.py   what would help
layout_rules.py       all layouts worth a look
seconds.py             seconds of collectives over two tiers of links
seconds.py     seconds of one layer                           seconds.py its collectives
seconds.py           reduces and gathers over dp, and the optimizer
gpu_memory.py          experts and latent attention as dense layers
planned_step.py      the pieces of a step, and their sum in closed form
estimation.py        seconds, MFU, days and dollars of one layout   ranking.py  all of them, ranked
"""

from labkit.calc.pieces import Pieces
from labkit.calc.plan.estimation import Estimate, estimate, verdict
from labkit.calc.plan.gpu_memory import memory
from labkit.calc.plan.job import Assumptions, Job
from labkit.calc.plan.layout_rules import layouts, refusal
from labkit.calc.plan.planned_step import pieces
from labkit.calc.plan.ranking import Plan, plan, smallest_change

__all__ = [
    "Assumptions",
    "Estimate",
    "Job",
    "Pieces",
    "Plan",
    "estimate",
    "layouts",
    "memory",
    "pieces",
    "plan",
    "refusal",
    "smallest_change",
    "verdict",
]
