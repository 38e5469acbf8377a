"""A training step, and weeks of them, simulated for any layout.

    found = simulate.step(plan.pieces(job, layout), layout, [simulate.Straggler(5, 1.5)])
    month = simulate.weeks(step_s=found.seconds, num_gpus=1024, ...)

Read in this order:

    graph.py            the order of work, its dependencies, and when each part ends
    disturbances.py     stragglers, slow links and jitter; equal ranks are simulated once
    path.py             collectives over dp at the end, and the longest path of a step
    simulate_step.py    a step; simulated_step.py: its result, such as the costliest disturbance
    simulate_weeks.py   failures, checkpoints, restarts, and what is left
"""

from labkit.calc.simulate.disturbances import Disturbance, Jitter, SlowLink, SlowNode, Straggler
from labkit.calc.simulate.simulate_step import step
from labkit.calc.simulate.simulate_weeks import Spares, goodputs, weeks
from labkit.calc.simulate.simulated_step import RankClass, SimulatedStep, StepSpan

__all__ = [
    "Disturbance",
    "Jitter",
    "RankClass",
    "SimulatedStep",
    "SlowLink",
    "SlowNode",
    "Spares",
    "StepSpan",
    "Straggler",
    "goodputs",
    "step",
    "weeks",
]
