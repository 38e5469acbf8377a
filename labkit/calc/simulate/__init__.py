"""A training step, and weeks of them, simulated for any layout.

found = simulate.step(plan.pieces(job, layout), layout, [simulate.Straggler(5, 1.5)])
month = simulate.weeks(step_s=found.seconds, num_gpus=1024, ...)

orders -> graph            who does what in which order, and what each waits for
disturbance -> behaviour   who is unlike the others: the rest is simulated once
replica, gradient_exchange  seconds: through the pipeline, and after it
simulate_step              a step; simulated_step: what it shows, such as what costs most
simulate_weeks             failures, checkpoints, restarts; weeks_result: what is left
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
