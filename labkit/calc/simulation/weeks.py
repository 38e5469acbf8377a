"""Weeks of a run that fails now and then: work, checkpoints, failures, restarts, and what is left.

    |  work  |W|  work  |W|  wo X  down  |  work  |W| ...
                            ----           X: a failure; the work since the last checkpoint is lost
    down = detected + restarted; a failure while it is down begins it anew

Failures come at random (exponential), at a rate that grows with the number of GPUs. Goodput is the
share of all time in which work was done that stayed.

How far the first order holds (calc.lost_share at Young's interval sqrt(2 W M), no restart), M being
the mean time between failures:

    write W        lost by the formula      lost here
    0.01 M         14.1%                    13.5%
    0.1 M          44.7%                    38.6%
    0.5 M          all                      71.3%; at Daly's interval, 0.69 M, 69.8%

Papers: Young, CACM 17(9), 1974; Daly, FGCS 22(3), 2006.
"""

from __future__ import annotations

import heapq
import math
import random
from dataclasses import dataclass

from labkit.calc.result import Result, number_of
from labkit.calc.simulation.weeks_result import WEEK_S, SimulatedWeeks
from labkit.calc.traffic.checks import (
    check_above_zero,
    check_not_negative,
    check_number,
    check_ranks,
    is_whole,
    shown,
)
from labkit.calc.units import seconds_text


@dataclass(frozen=True, kw_only=True)
class Spares:
    """Nodes that stand by. Without one a job waits until a broken node is repaired.

    num_nodes: that stand by at the beginning. repair_s: until a broken one stands by again.
    """

    num_nodes: int
    repair_s: float

    def __post_init__(self) -> None:
        check_number(self.num_nodes, "num_nodes")
        if not is_whole(self.num_nodes) or self.num_nodes < 0:
            raise ValueError(f"num_nodes={shown(self.num_nodes)}: give a whole number, 0 or more")
        check_not_negative(self.repair_s, "repair_s")


def simulate_weeks(
    step_s: float | Result,
    num_gpus: int,
    gpu_hours_between_interruptions: float,
    checkpoint_write_s: float | Result,
    interval_s: float | Result,
    restart_s: float | Result,
    detect_s: float | Result = 0.0,
    weeks: float = 4.0,
    seed: int = 0,
    *,
    blocked_share: float = 1.0,
    spares: Spares | None = None,
) -> SimulatedWeeks:
    """A run of so many weeks, failure by failure.

    interval_s: of work between checkpoints, rounded to whole steps, at least one. detect_s: from a
    failure until somebody notices; restart_s: from there to the first step. blocked_share: of a
    write, that training stands still for; less than 1 is an asynchronous checkpoint, whose rest is
    written beside the work, and which counts when it is complete. spares: None: always enough.

    ValueError for what no run has, and for an interval in which no checkpoint can be completed.
    """
    step, interval, write, restart, detect = (
        number_of(given, name, "seconds")
        for name, given in {
            "step_s": step_s,
            "interval_s": interval_s,
            "checkpoint_write_s": checkpoint_write_s,
            "restart_s": restart_s,
            "detect_s": detect_s,
        }.items()
    )
    _check(step, interval, write, restart, detect, blocked_share)
    check_above_zero(weeks, "weeks", "give how long the run lasts")
    hours = gpu_hours_between_interruptions
    check_above_zero(hours, "gpu_hours_between_interruptions", "give GPU-hours")
    run = _Run(
        work_s=max(1, round(interval / step)) * step,
        blocked_s=blocked_share * write,
        beside_s=(1 - blocked_share) * write,
        down_s=restart + detect,
        mtbf_s=hours * 3600 / check_ranks(num_gpus, "num_gpus"),
        total_s=weeks * WEEK_S,
        spares=spares,
        rng=random.Random(seed),
    )
    if run.beside_s > run.work_s:
        raise ValueError(
            f"interval_s={interval:g}: the part of a checkpoint that is written beside the work "
            f"takes {seconds_text(run.beside_s)}, and the next would come before its end; give a "
            "longer interval"
        )
    return run.simulated(step)


def _check(
    step: float, interval: float, write: float, restart: float, detect: float, share: float
) -> None:
    check_above_zero(step, "step_s", "a step takes time")
    check_above_zero(interval, "interval_s", "work comes between two checkpoints")
    for name, seconds in (
        ("checkpoint_write_s", write),
        ("restart_s", restart),
        ("detect_s", detect),
        ("blocked_share", share),
    ):
        check_not_negative(seconds, name)
    if share > 1:
        raise ValueError(f"blocked_share={share}: give a share of the write, 0 to 1")


class _Run:
    """From failure to failure: what lies between two of them is arithmetic."""

    def __init__(
        self,
        *,
        work_s: float,
        blocked_s: float,
        beside_s: float,
        down_s: float,
        mtbf_s: float,
        total_s: float,
        spares: Spares | None,
        rng: random.Random,
    ) -> None:
        self.work_s, self.blocked_s, self.beside_s = work_s, blocked_s, beside_s
        self.down_s, self.mtbf_s, self.total_s = down_s, mtbf_s, total_s
        self.spares, self.rng = spares, rng
        # When each of the spare nodes stands by.
        self.repaired = [0.0] * (int(spares.num_nodes) if spares else 0)
        self.now = 0.0
        self.useful_s = self.writing_s = self.redone_s = self.down_total_s = self.waiting_s = 0.0
        self.interruptions = self.failed_restarts = self.checkpoints = 0

    def simulated(self, step_s: float) -> SimulatedWeeks:
        """From a start that has nothing to lose to the end."""
        while self.now < self.total_s:
            self._work()
            if self.now < self.total_s:
                self.interruptions += 1
            while self.now < self.total_s and not self._restart():
                self.failed_restarts += 1
        return SimulatedWeeks(
            total_s=self.total_s,
            useful_s=self.useful_s,
            writing_s=self.writing_s,
            redone_s=self.redone_s,
            down_s=self.down_total_s,
            waiting_s=self.waiting_s,
            num_interruptions=self.interruptions,
            num_failed_restarts=self.failed_restarts,
            num_checkpoints=self.checkpoints,
            num_steps=self.useful_s / step_s,
        )

    def _next_failure(self) -> float:
        return self.now + self.rng.expovariate(1 / self.mtbf_s)

    def _work(self) -> None:
        """Until the next failure, or the end."""
        failure = self._next_failure()
        seconds = min(failure, self.total_s) - self.now
        turn = self.work_s + self.blocked_s
        turns = math.floor(seconds / turn)
        rest = seconds - turns * turn  # since the work of this turn began
        worked = turns * self.work_s + min(rest, self.work_s)
        # The last one counts when its rest has been written, too.
        complete = turns - (turns > 0 and rest < self.beside_s)
        kept = worked if failure >= self.total_s else complete * self.work_s
        self.useful_s += kept
        self.redone_s += worked - kept
        self.writing_s += seconds - worked
        self.checkpoints += complete
        self.now += seconds

    def _restart(self) -> bool:
        """Whether it works again; no: another failure, or the end."""
        wait = self._wait_for_a_node()
        up = self.now + wait + self.down_s
        ends = min(up, self._next_failure(), self.total_s)
        self.waiting_s += min(wait, ends - self.now)
        self.down_total_s += ends - self.now
        self.now = ends
        return ends == up or ends == self.total_s

    def _wait_for_a_node(self) -> float:
        """A broken node goes to be repaired, and the first that stands by takes its place."""
        if self.spares is None:
            return 0.0
        heapq.heappush(self.repaired, self.now + self.spares.repair_s)
        return max(0.0, heapq.heappop(self.repaired) - self.now)
