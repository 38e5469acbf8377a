"""Go on after failures: begin anew, go on from a partner's memory, or go on without a restart.

Read in this order:

    restarts.py          run: a job in attempts, each with all ranks anew
    partner_memory.py    PartnerMemory: the newest state in the memory of two hosts
    goodput.py           measure_goodput: failures at random moments, and where the time goes
"""

from labkit.elastic.goodput import Goodput, measure_goodput
from labkit.elastic.partner_memory import PartnerMemory, load_newest
from labkit.elastic.restarts import Attempt, ElasticRun, Restart, run

__all__ = [
    "Attempt",
    "ElasticRun",
    "Goodput",
    "PartnerMemory",
    "Restart",
    "load_newest",
    "measure_goodput",
    "run",
]
