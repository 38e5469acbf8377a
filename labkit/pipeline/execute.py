"""A schedule performed: real stages on real ranks, operation by operation.

    F   take the input from the stage before (or from the batch), compute, hand on the output
    B   take the output's gradient from the stage after (the last has the loss), back, hand on
    I   the same, but the weights' gradients wait
    W   the weights' gradients

No schedule is known here by name: `step` performs whatever list it is given.

Layout: a rank holds its stages whole. The batch is cut into m microbatches along dim 0, which need
not be equal; gradients are those of the mean loss over the batch: over its rows, or over what a
WeightedLoss is a mean over. (What looks at a whole batch, such as a batch norm, sees a microbatch.)
Wire: see wires.py.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from labkit.comm import Group
from labkit.comm.group import chosen
from labkit.global_norm import as_part
from labkit.pipeline import pipeline_checks as checks
from labkit.pipeline.op import Kind, Schedule, consumer
from labkit.pipeline.tied import set_aside, sum_tied_gradients
from labkit.pipeline.timing import Span
from labkit.pipeline.validate import validate
from labkit.pipeline.wires import Wires
from labkit.pipeline.work import Loss, WeightedLoss, Work

_REGIONS = {
    Kind.F: "forward",
    Kind.B: "backward",
    Kind.I: "input gradients",
    Kind.W: "weight gradients",
}


@dataclass(frozen=True)
class Step:
    """What a rank has of a step that is done.

    loss: the mean over the batch, on the rank of the last stage, else None; losses: the mean of
    each microbatch, there. spans: its operations, in seconds of the machine's clock, without what
    it waited for. in_flight: the most microbatches whose activations it held at once; on several
    stages a microbatch counts each time.
    """

    loss: float | None
    losses: tuple[float, ...]
    spans: tuple[Span, ...]
    in_flight: int


class Pipeline:
    """The stages of one rank, and the schedule by which all ranks perform a step.

    stages: stage -> module, those that `schedule.stages_of(rank)` names. Each takes one tensor and
    gives one, of as many rows (dim 0). loss: (output, targets) -> the mean over the rows of a
    microbatch, or a WeightedLoss, such as token_loss; the last stage calls it. tied: a weight that
    the first stage shares with the last, on both ranks: their gradients are added up. Without it
    two copies drift apart.
    Every rank makes its Pipeline at the same point. While the inputs keep their sizes, so do the
    outputs of the stages, and their dtype.
    ScheduleError: no training step. ValueError: other stages, another number of ranks, or other
    schedules on some ranks.
    """

    def __init__(
        self,
        schedule: Schedule,
        stages: Mapping[int, nn.Module],
        loss: Loss,
        group: Group | None = None,
        *,
        tied: Tensor | None = None,
    ) -> None:
        validate(schedule)
        self.schedule, self.group = schedule, chosen(group)
        checks.stages(stages, schedule, self.group)
        checks.same_plan(schedule, tied, self.group)
        self.stages, self.loss, self.tied = dict(stages), loss, tied
        self._means = None if isinstance(loss, WeightedLoss) else checks.MeanOfMeans(loss)
        self._wires = Wires(schedule, self.group)
        self._is_whole = True  # False while a step is under way, and after one that has failed

    def step(self, inputs: Tensor, targets: Tensor) -> Step:
        """Forward and backward of one batch; gradients are added to the parameters' `.grad`.

        Every rank passes the whole batch, inputs (rows, ...) and targets (rows, ...): tokens are
        small. The first stage uses the inputs, the last the targets.
        ValueError: fewer rows than microbatches, unequal numbers of rows, or a loss over rows where
        the microbatches have other shares of targets that are IGNORED.
        """
        rank, num_stages = self.group.rank, self.schedule.num_stages
        if not self._is_whole:
            raise RuntimeError(
                "the step before this one has failed, and its messages are still under way; make "
                "a new Pipeline in a new run"
            )
        work = self._work(inputs, targets)
        self._is_whole, before = False, set_aside(self.tied)
        self._wires.begin([len(part) for part in work.inputs], tuple(inputs.shape[1:]))
        spans: list[Span] = []
        in_flight = 0
        for op in self.schedule.rows[rank]:
            need, product = op.needs(num_stages), op.product
            taken = None if need is None else self._wires.take(need)
            start = time.perf_counter()
            with self.group.region(_REGIONS[op.kind]):
                made = work.perform(op, taken)
            spans.append(Span(op, start, time.perf_counter()))
            if made is not None and consumer(product, num_stages) is not None:
                self._wires.send(product, made)
            del taken, made  # what has been used is let go before the next message is taken
            in_flight = max(in_flight, len(work.held))
        self._wires.end()
        if self.tied is not None:
            sum_tied_gradients(self.tied, before, self.schedule, self.group)
        if self.group.size > 1:
            for stage in self.stages.values():
                for parameter in stage.parameters():
                    as_part(parameter)
        self._is_whole = True
        return Step(work.mean_loss(), work.losses(), tuple(spans), in_flight)

    def _work(self, inputs: Tensor, targets: Tensor) -> Work:
        device = self.group.device
        return Work(
            self.schedule, self.stages, self.loss, inputs, targets, device, means=self._means
        )


def execute(
    schedule: Schedule,
    stages: Mapping[int, nn.Module],
    loss: Loss,
    inputs: Tensor,
    targets: Tensor,
    group: Group | None = None,
    *,
    tied: Tensor | None = None,
) -> Step:
    """One step of a Pipeline that is made for it. See there, and `Pipeline.step`."""
    return Pipeline(schedule, stages, loss, group, tied=tied).step(inputs, targets)
