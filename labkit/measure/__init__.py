"""Measure on real ranks: collectives with the alpha-beta model fitted to them, and networks.

    measured = labkit.measure.collectives(["1 KiB", "256 KiB", "16 MiB"], 4, ["ring", "tree"])
    print(measured.table())
    measured.fits["ring"]                                   # Fit(alpha=..., 1.1 GB/s, ...)
    labkit.measure.fit_alpha_beta(nbytes, seconds, n=4)     # of your own points
    labkit.measure.pairs(8, topology=tree).show()           # bandwidth of every pair of ranks
    labkit.measure.bisect_uplinks(tree).leaf                # the leaf with the degraded uplink
    labkit.measure.scaling().table()                        # a step on 1, 2, 4 ranks: efficiency
    labkit.measure.preflight(world).table()                 # links, arithmetic, disks, clocks
    labkit.measure.roofline().show()                        # a GPT's operations on this machine
    labkit.measure.serving(model, continuous).show()        # latency over the load of an engine

    sweep.py, algorithms.py    collectives over sizes, in turns; measured.py: their times
    alpha_beta_fit.py          the model fitted to them
    slow_links.py              pairs and bisections; preflight_checks.py: a machine before a job
    scaling_law.py             a step on more ranks; gpt_roofline.py: a GPT's operations
    arrival_sweep.py           an engine under load; pass_times.py: its passes

Pictures load matplotlib when they are drawn, and not before.
"""

from labkit.measure.algorithms import Algorithm
from labkit.measure.alpha_beta_fit import Fit, fit_alpha_beta, link_speed_text
from labkit.measure.arrival_sweep import ArrivalSweep, serving
from labkit.measure.gpt_roofline import Roofline, roofline
from labkit.measure.measured import Crossover, Measured
from labkit.measure.pass_times import RecordedEngine, fit_pass_time, predict
from labkit.measure.preflight_checks import Preflight, preflight
from labkit.measure.scaling_law import Scaling, scaling
from labkit.measure.slow_links import Bisection, Pairs, bisect_uplinks, pairs
from labkit.measure.sweep import alternate, collectives, slowest

__all__ = [
    "Algorithm",
    "ArrivalSweep",
    "Bisection",
    "Crossover",
    "Fit",
    "Measured",
    "Preflight",
    "Pairs",
    "RecordedEngine",
    "Roofline",
    "Scaling",
    "alternate",
    "bisect_uplinks",
    "collectives",
    "fit_alpha_beta",
    "link_speed_text",
    "fit_pass_time",
    "pairs",
    "predict",
    "preflight",
    "roofline",
    "scaling",
    "serving",
    "slowest",
]
