"""Measure collectives on real ranks, and fit the alpha-beta model to what comes out.

    measured = labkit.measure.collectives(["1 KiB", "256 KiB", "16 MiB"], 4, ["ring", "tree"])
    print(measured.table())
    measured.fits["ring"]                                   # Fit(alpha=..., 1.1 GB/s, ...)
    labkit.measure.fit_alpha_beta(nbytes, seconds, n=4)     # of points of one's own

Pictures load matplotlib when they are drawn, and not before.
"""

from labkit.measure.algorithms import Algorithm
from labkit.measure.alpha_beta_fit import Fit, fit_alpha_beta, link_speed_text
from labkit.measure.alternate import alternate, slowest
from labkit.measure.crossover import Crossover
from labkit.measure.measured import Measured
from labkit.measure.sweep import collectives

__all__ = [
    "Algorithm",
    "Crossover",
    "Fit",
    "Measured",
    "alternate",
    "collectives",
    "fit_alpha_beta",
    "link_speed_text",
    "slowest",
]
