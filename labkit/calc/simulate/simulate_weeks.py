"""Weeks of a run with failures: work, checkpoints, restarts, and the goodput that is left.

    |  work  |W|  work  |W|  wo X  down  |  work  |W| ...
                            ----           X: a failure; the work since the last checkpoint is lost
    down = waiting for a node + detecting + restarting; a failure during a restart restarts it

Failures come at random (exponential), at a rate that grows with the number of GPUs, and not while
the job waits for a node. Goodput is the share of all time in which work was done that stayed.
Between two failures the simulation is arithmetic, and takes no time:

    work_s     |blocked_s|     work_s     |blocked_s| ...
                         |beside_s|                     the checkpoint counts from here on

Accuracy of the first order (calc.lost_share at Young's interval sqrt(2 W M), no restart), with M
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
import statistics
from dataclasses import dataclass
from typing import Any, NamedTuple

from labkit import arguments
from labkit.calc.result import Result, number_of
from labkit.calc.units import seconds_text

WEEK_S = 7 * 24 * 3600.0


@dataclass(frozen=True, kw_only=True)
class SimulatedWeeks:
    """Seconds of a run of weeks; useful, writing, redone and down add up to all of it."""

    total_s: float
    useful_s: float
    """Work that stayed."""
    writing_s: float
    """Checkpoints, as far as training was idle for them."""
    redone_s: float
    """Work that was lost, and had to be done again."""
    down_s: float
    """From failures to the first step after them."""
    waiting_s: float
    """Part of down_s: waiting for a node to be repaired, where no spare one was left."""
    num_interruptions: int
    """Failures while it worked or wrote."""
    num_failed_restarts: int
    """Failures while it was down."""
    num_checkpoints: int
    num_steps: float
    """Steps that stayed."""

    @property
    def goodput(self) -> float:
        """The share of all time in which work was done that stayed."""
        return self.useful_s / self.total_s

    @property
    def num_failures(self) -> int:
        """While it worked, and while it was down."""
        return self.num_interruptions + self.num_failed_restarts

    @property
    def shares(self) -> dict[str, float]:
        """Shares of all time: useful, writing, redone, down."""
        parts = ("useful", "writing", "redone", "down")
        return {name: getattr(self, f"{name}_s") / self.total_s for name in parts}

    def __str__(self) -> str:
        """`6 weeks: goodput 91.2% (writing 3.0%, ...); 327 failures, one in 3.1 h; ...`."""
        rest = ", ".join(f"{k} {v:.1%}" for k, v in self.shares.items() if k != "useful")
        hours = self.total_s / 3600 / self.num_failures if self.num_failures else 0
        return (
            f"{self.total_s / WEEK_S:g} weeks: goodput {self.goodput:.1%} ({rest}); "
            f"{self.num_failures} failures{f', one in {hours:.3g} h' if hours else ''}; "
            f"{self.num_checkpoints:,} checkpoints"
        )


@dataclass(frozen=True, kw_only=True)
class Spares:
    """Spare nodes. Without one a job waits until a broken node is repaired.

    num_nodes: spares at the beginning. repair_s: time to repair a broken node.
    """

    num_nodes: int
    repair_s: float

    def __post_init__(self) -> None:
        arguments.counted("num_nodes", self.num_nodes, "0 or more", least=0)
        arguments.number("repair_s", self.repair_s, "0 or more", least=0)


class FailingRun:
    """The state of a run: the time, and its use so far.

    work_s: work between checkpoints. blocked_s, beside_s: of a checkpoint, see above. down_s: from
    a failure to the first step after it, if a node is there. mtbf_s: of the job. total_s: its end.
    """

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
        # When each spare node is ready.
        self.repaired = [0.0] * (int(spares.num_nodes) if spares else 0)
        self.now = 0.0
        self.useful_s = self.writing_s = self.redone_s = self.down_total_s = self.waiting_s = 0.0
        self.interruptions = self.failed_restarts = self.checkpoints = 0

    def simulated(self, step_s: float) -> SimulatedWeeks:
        """Simulate from a start without lost work to the end."""
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
        """Work until the next failure, or the end."""
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
        """Restart. Return whether the job works again; False: another failure, or the end.

        Nodes that wait for another one are idle, and do not fail.
        """
        wait = min(self._wait_for_a_node(), self.total_s - self.now)
        self.now += wait
        up = self.now + self.down_s
        ends = min(up, self._next_failure(), self.total_s)
        self.waiting_s += wait
        self.down_total_s += wait + ends - self.now
        self.now = ends
        return ends == up or ends == self.total_s

    def _wait_for_a_node(self) -> float:
        """Replace the broken node by the first spare one, and send it to be repaired."""
        if self.spares is None:
            return 0.0
        heapq.heappush(self.repaired, self.now + self.spares.repair_s)
        return max(0.0, heapq.heappop(self.repaired) - self.now)


def weeks(
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
    """Simulate a run of `weeks` weeks, failure by failure.

    interval_s: work between checkpoints, rounded to whole steps, at least one. detect_s: from a
    failure until it is detected; restart_s: from there to the first step. blocked_share: share of
    a write during which training is idle; below 1 the checkpoint is asynchronous, is finished
    beside the work, and counts once it is complete. spares: None: always enough.

    ValueError for impossible numbers, and for an interval in which no checkpoint can be completed.
    """
    given = {
        "step_s": step_s,
        "interval_s": interval_s,
        "checkpoint_write_s": checkpoint_write_s,
        "restart_s": restart_s,
        "detect_s": detect_s,
    }
    seconds = {name: number_of(each, name, "seconds") for name, each in given.items()}
    _check(seconds, weeks, gpu_hours_between_interruptions, blocked_share)
    step, write = seconds["step_s"], seconds["checkpoint_write_s"]
    run = FailingRun(
        work_s=_whole_steps(seconds["interval_s"], step),
        blocked_s=blocked_share * write,
        beside_s=(1 - blocked_share) * write,
        down_s=seconds["restart_s"] + seconds["detect_s"],
        mtbf_s=gpu_hours_between_interruptions * 3600 / arguments.counted("num_gpus", num_gpus),
        total_s=weeks * WEEK_S,
        spares=spares,
        rng=random.Random(seed),
    )
    return run.simulated(step)


class Goodputs(NamedTuple):
    """Goodputs of runs that differ only in their failures."""

    mean: float
    deviation: float
    """Standard deviation: how far one run is from the mean."""


def goodputs(*given: Any, **options: Any) -> Goodputs:
    """Return the goodput of `weeks` with these arguments, over the seeds 0 to 19."""
    found = [weeks(*given, **{**options, "seed": seed}).goodput for seed in range(20)]
    return Goodputs(statistics.mean(found), statistics.stdev(found))


def _check(seconds: dict[str, float], weeks: float, hours: float, share: float) -> None:
    arguments.number("step_s", seconds["step_s"], "a step takes time", above=0)
    arguments.number(
        "interval_s", seconds["interval_s"], "work comes between two checkpoints", above=0
    )
    for name, each in seconds.items():
        arguments.number(name, each, "0 or more", least=0)
    arguments.number("weeks", weeks, "give how long the run lasts", above=0)
    arguments.number("gpu_hours_between_interruptions", hours, "give GPU-hours", above=0)
    arguments.number("blocked_share", share, "0 or more", least=0)
    if share > 1:
        raise ValueError(f"blocked_share={share}: give a share of the write, 0 to 1")
    beside = (1 - share) * seconds["checkpoint_write_s"]
    work = _whole_steps(seconds["interval_s"], seconds["step_s"])
    if beside > work:
        raise ValueError(
            f"interval_s={seconds['interval_s']:g}: the part of a checkpoint that is written "
            f"beside the work takes {seconds_text(beside)}, and after {seconds_text(work)}, whole "
            "steps, the next would come before its end; give a longer interval"
        )


def _whole_steps(interval_s: float, step_s: float) -> float:
    """Return seconds of work between checkpoints: the nearest number of steps, at least one."""
    return max(1, round(interval_s / step_s)) * step_s
