"""The planner: of all layouts of a job on a cluster, those that fit, ranked, and why others do not.

job.py               what is asked, and what is assumed
layers_by_stage.py   which layers each stage has
gpu_memory.py        bytes of a GPU by part, on the fullest rank of the pipeline
rules.py             which combinations do not work, and what some of them cost
judging.py           whether a layout fits, which term broke it     change.py   what would help
enumeration.py       all layouts worth a look
links.py             seconds of collectives over two tiers of links
layer_seconds.py     seconds of one layer                           exchanges.py its collectives
sharing.py           reduces and gathers over dp, and the optimizer
likeness.py          experts and latent attention as dense layers
planned_step.py      the pieces of a step, and their sum in closed form
estimation.py        seconds, MFU, days and dollars of one layout   ranking.py  all of them, ranked
"""

from labkit.calc.pieces import Pieces
from labkit.calc.plan.change import smallest_change
from labkit.calc.plan.enumeration import layouts
from labkit.calc.plan.estimation import Estimate, estimate
from labkit.calc.plan.gpu_memory import memory
from labkit.calc.plan.job import Assumptions, Job
from labkit.calc.plan.judging import verdict
from labkit.calc.plan.planned_step import pieces
from labkit.calc.plan.ranking import Plan, plan
from labkit.calc.plan.rules import refusal

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
