"""A run from failure to failure: what lies between two of them is arithmetic, and takes no time.

work_s     |blocked_s|     work_s     |blocked_s| ...
                     |beside_s|                     the checkpoint counts from its end on
"""

from __future__ import annotations

import heapq
import math
import random
from dataclasses import dataclass

from labkit.calc.checked_numbers import check_not_negative, check_number, is_whole, shown
from labkit.calc.simulate.weeks_result import SimulatedWeeks


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


class FailingRun:
    """Its state: the time, and where time has gone so far.

    work_s: of a turn. blocked_s, beside_s: of a checkpoint, see above. down_s: from a failure to
    the first step after it, a node being there. mtbf_s: of the job. total_s: when it ends.
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
        """Whether it works again; no: another failure, or the end.

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
        """A broken node goes to be repaired, and the first that stands by takes its place."""
        if self.spares is None:
            return 0.0
        heapq.heappush(self.repaired, self.now + self.spares.repair_s)
        return max(0.0, heapq.heappop(self.repaired) - self.now)
