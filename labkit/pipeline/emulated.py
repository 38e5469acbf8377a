"""A pipeline on emulated devices: each operation takes a given time, by sleeping.

This measures a schedule on few cores. Four stages cannot compute at once on two cores: such a
measurement is of the machine, not of the schedule. Here each operation computes as always and then
sleeps until its cost has passed. A sleeping rank needs no core, so the ranks do run at once, as on
four devices. Everything else is real: the messages, the order, the waiting.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from labkit.comm import Group
from labkit.pipeline.executor import Loss, Pipeline, Step, Work
from labkit.pipeline.op import Kind, Op, Schedule, require_schedule
from labkit.pipeline.simulation import Costs


class EmulatedPipeline(Pipeline):
    """A Pipeline whose operations take at least `costs`, in seconds; sends take their own time.

    Choose costs well above the time of the computation itself, which is not shortened.
    """

    def __init__(
        self,
        schedule: Schedule,
        stages: Mapping[int, nn.Module],
        loss: Loss,
        costs: Costs,
        group: Group | None = None,
    ) -> None:
        super().__init__(schedule, stages, loss, group)
        self.set_costs(costs)

    def set_costs(self, costs: Costs) -> None:
        """Let operations take at least these costs, in seconds, from the next step on."""
        self._seconds = {kind: costs.of(kind, self.schedule.num_stages) for kind in Kind}

    def _work(self, inputs: Tensor, targets: Tensor) -> Work:
        batch = (inputs, targets, self.group.device)
        work = _EmulatedWork(self.schedule, self.stages, self.loss, *batch)
        work.seconds = self._seconds
        return work


class _EmulatedWork(Work):
    seconds: dict[Kind, list[float]]

    def perform(self, op: Op, taken: Tensor | None) -> Tensor | None:
        end_s = time.perf_counter() + self.seconds[op.kind][op.stage]
        made = super().perform(op, taken)
        time.sleep(max(0.0, end_s - time.perf_counter()))
        return made


def emulated_step(world: Group, schedule: Schedule, costs: Costs, num_steps: int = 1) -> list[Step]:
    """Perform a schedule with small stages and these costs in seconds: run(emulated_step, p, ...).

    Returns this rank's steps without the first, which also sends shapes. For the n-th steps of all
    ranks `measured(schedule, [steps[n].spans for steps in run.values])` returns a Timing.
    """
    require_schedule(schedule)
    stages = {stage: nn.Linear(8, 8) for stage in schedule.stages_of(world.rank)}
    free = Costs(forward=0, input_gradient=0, weight_gradient=0)
    pipeline = EmulatedPipeline(schedule, stages, nn.functional.mse_loss, free, world)
    x = torch.randn(schedule.num_microbatches, 8)
    pipeline.step(x, x)
    pipeline.set_costs(costs)
    steps = []
    for _ in range(num_steps):
        world.barrier()
        steps.append(pipeline.step(x, x))
    return steps
