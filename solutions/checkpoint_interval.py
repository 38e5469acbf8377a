"""Choose the interval between checkpoints, and say what share of the time is lost.

An interviewer asks: "2,048 nodes train a model. One node fails once in 260 days. A checkpoint takes
two minutes, and training is idle for 20% of that time. A failure is noticed after one minute, and a
restart takes nine. How often do you save? Which share of the time is lost? And if you save every
two hours?"

Write three functions.

    job  a dict:
             num_nodes
             node_mtbf_days   mean time between the failures of one node, days. Nodes fail at random
                              (exponential), independently. Any failure stops the whole job
             write_s          seconds from the begin of a save until the checkpoint counts
             blocking         the share of write_s in which training is idle, above 0 and up to 1.
                              The rest is written while training goes on. (Whether it ends before
                              the next save is not asked here.)
             detect_min       minutes from a failure until it is noticed
             restart_min      minutes from there until the first step

    mtbf_s(job)
        returns  mean time between the failures of the job, seconds
    best_interval_s(job)
        returns  seconds of work between two saves, at which the least time is lost
    lost_share(job, interval_s)
        returns  the share of all time, 0 to 1, in which no work is made that stays

Model. A turn is T seconds of work, and W in which training is idle for the save. A turn that a
failure interrupts is made again from its begin. Each failure also costs R seconds, in which nothing
useful is made: detection, restart, and work that was made while the last save had not yet been
complete. A failure in these R seconds restarts them. With M, the mean time between failures of
the job, a turn then takes on average (Daly)

    M e^(R/M) (e^((T + W)/M) - 1)  seconds

Contract
    job      stays as it is. W is at most M / 3
    returns  numbers. The interval is correct to 1%, the others to a relative error of 0.001
    never    labkit.calc. The answer takes a few lines

Young's sqrt(2 W M) is within 1% for a W below M / 2500 only. So search for the least loss, or use a
better formula.

Papers: Young, CACM 17(9), 1974; Daly, "A higher order estimate of the optimum checkpoint interval
for restart dumps", FGCS 22(3), 2006.
"""

import math
from collections.abc import Mapping


def mtbf_s(job: Mapping[str, float]) -> float:
    """Divide a node's mean time by the number of nodes."""
    ### BEGIN SOLUTION
    return job["node_mtbf_days"] * 86400 / job["num_nodes"]
    ### END SOLUTION


def best_interval_s(job: Mapping[str, float]) -> float:
    """Find the seconds of work between two saves at which the least time is lost."""
    ### BEGIN SOLUTION
    # Restarts multiply the time of each turn, wherever it is interrupted: they change no optimum.
    write_s, mtbf = job["write_s"] * job["blocking"], mtbf_s(job)
    ratio = write_s / (2 * mtbf)
    young = math.sqrt(2 * write_s * mtbf)
    return young * (1 + math.sqrt(ratio) / 3 + ratio / 9) - write_s
    ### END SOLUTION


def lost_share(job: Mapping[str, float], interval_s: float) -> float:
    """Return the share of all time in which no work is made that stays."""
    ### BEGIN SOLUTION
    mtbf = mtbf_s(job)
    blocked = job["write_s"] * job["blocking"]
    beside = job["write_s"] - blocked
    down = 60 * (job["detect_min"] + job["restart_min"]) + beside
    turn = mtbf * math.exp(down / mtbf) * math.expm1((interval_s + blocked) / mtbf)
    return 1 - interval_s / turn
    ### END SOLUTION
