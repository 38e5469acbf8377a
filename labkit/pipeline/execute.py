"""A schedule performed: real stages on real ranks, operation by operation.

    F   take the input from the stage before (or from the batch), compute, hand on the output
    B   take the output's gradient from the stage after (the last has the loss), back, hand on
    I   the same, but the weights' gradients wait
    W   the weights' gradients

No schedule is known here by name: `step` performs whatever list it is given.

Layout: a rank holds its stages whole. The batch is cut into m microbatches along dim 0, which need
not be equal; gradients are those of the mean loss over the rows of the batch.
Wire: see wires.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from labkit.comm import Group
from labkit.comm.group import chosen
from labkit.pipeline import checks
from labkit.pipeline.deferred import DeferredWeights
from labkit.pipeline.op import Kind, Op, Schedule, consumer
from labkit.pipeline.tied import sum_tied_gradients
from labkit.pipeline.timing import Span
from labkit.pipeline.validate import validate
from labkit.pipeline.wires import Wires

Loss = Callable[[Tensor, Tensor], Tensor]
_REGIONS = {
    Kind.F: "forward",
    Kind.B: "backward",
    Kind.I: "input gradients",
    Kind.W: "weight gradients",
}


@dataclass(frozen=True)
class Step:
    """What a rank has of a step that is done.

    loss: the mean over the batch, on the rank of the last stage, else None. spans: its operations,
    in seconds of the machine's clock, without what it waited for. in_flight: the most microbatches
    whose activations it held at once; on several stages a microbatch counts each time.
    """

    loss: float | None
    spans: tuple[Span, ...]
    in_flight: int


class Pipeline:
    """The stages of one rank, and the schedule by which all ranks perform a step.

    stages: stage -> module, those that `schedule.stages_of(rank)` names. Each takes one tensor and
    gives one, of as many rows (dim 0). loss: (output, targets) -> the mean over the rows of a
    microbatch; the last stage calls it. tied: a weight that the first stage shares with the last,
    on the ranks that hold it; its gradients are added up.
    ScheduleError: no training step. ValueError: other stages, or another number of ranks.
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
        self.stages, self.loss, self.tied = dict(stages), loss, tied
        self._wires = Wires(schedule, self.group)

    def step(self, inputs: Tensor, targets: Tensor) -> Step:
        """Forward and backward of one batch; gradients are added to the parameters' `.grad`.

        Every rank passes the whole batch, inputs (rows, ...) and targets (rows, ...): tokens are
        small. The first stage uses the inputs, the last the targets.
        ValueError: fewer rows than microbatches, or unequal numbers of rows.
        """
        rank, num_stages = self.group.rank, self.schedule.num_stages
        work = _Work(self, inputs, targets)
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
            sum_tied_gradients(self.tied, self.schedule, self.group)
        return Step(work.loss(), tuple(spans), in_flight)


def execute(
    schedule: Schedule,
    stages: Mapping[int, nn.Module],
    loss: Loss,
    inputs: Tensor,
    targets: Tensor,
    group: Group | None = None,
) -> Step:
    """One step of a Pipeline that is made for it. See there, and `Pipeline.step`."""
    return Pipeline(schedule, stages, loss, group).step(inputs, targets)


class _Held(NamedTuple):
    """What a stage keeps of a microbatch between its operations."""

    x: Tensor | None
    # The graph's end in the place of the output: once sent, nobody needs its numbers here.
    end: GradientEdge | None
    deferred: DeferredWeights | None


class _Work:
    """A step's microbatches on one rank: what each kind of operation computes."""

    def __init__(self, pipeline: Pipeline, inputs: Tensor, targets: Tensor) -> None:
        schedule, device = pipeline.schedule, pipeline.group.device
        checks.batch(inputs, targets, schedule.num_microbatches)
        self.inputs = inputs.to(device).tensor_split(schedule.num_microbatches)
        self.held: dict[tuple[int, int], _Held] = {}  # (stage, microbatch), from F to B or W
        self._targets = targets.to(device).tensor_split(schedule.num_microbatches)
        self._num_rows = len(inputs)
        self._stages, self._loss = pipeline.stages, pipeline.loss
        self._last = schedule.num_stages - 1
        self._losses: list[Tensor] = []
        self._splits = {op.stage for row in schedule.rows for op in row if op.kind is Kind.I}
        self._compute = {
            Kind.F: self._forward,
            Kind.B: self._backward,
            Kind.I: self._backward_of_input,
            Kind.W: self._backward_of_weights,
        }

    def perform(self, op: Op, taken: Tensor | None) -> Tensor | None:
        """What the operation yields for another stage. taken: what one has made for it."""
        return self._compute[op.kind](op, taken)

    def loss(self) -> float | None:
        """The mean over the batch, where the last stage is."""
        return torch.stack(self._losses).sum().item() if self._losses else None

    def _forward(self, op: Op, taken: Tensor | None) -> Tensor | None:
        x = self.inputs[op.microbatch] if taken is None else taken.requires_grad_()
        deferred = DeferredWeights() if op.stage in self._splits else None
        with deferred or nullcontext():
            y = self._stages[op.stage](x)
            checks.output(y, x, op)
            if op.stage == self._last:
                y = self._part_of_loss(y, op)
        self.held[op.stage, op.microbatch] = _Held(x, get_gradient_edge(y), deferred)
        return y

    def _part_of_loss(self, y: Tensor, op: Op) -> Tensor:
        """Of the mean over the batch: a larger microbatch counts more."""
        targets = self._targets[op.microbatch]
        part = self._loss(y, targets)
        checks.loss(part)
        part = part * (len(targets) / self._num_rows)
        self._losses.append(part.detach())
        return part

    def _backward(self, op: Op, taken: Tensor | None) -> Tensor | None:
        made = self._backward_of_input(op, taken)
        self._backward_of_weights(op, None)
        return made

    def _backward_of_input(self, op: Op, taken: Tensor | None) -> Tensor | None:
        x, end, deferred = self.held[op.stage, op.microbatch]
        assert x is not None and end is not None
        grad = torch.ones_like(self._losses[0]) if taken is None else taken
        torch.autograd.backward(end, grad)
        self.held[op.stage, op.microbatch] = _Held(None, None, deferred)
        if op.stage == 0:
            return None  # nobody has computed what comes in there
        return torch.zeros_like(x) if x.grad is None else x.grad

    def _backward_of_weights(self, op: Op, _: Tensor | None) -> None:
        deferred = self.held.pop((op.stage, op.microbatch)).deferred
        if deferred is not None:
            deferred.accumulate()
