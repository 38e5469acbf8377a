"""Perform a schedule with real stages on real ranks, operation by operation.

    F   receive x from the stage before (or take it from the batch), compute y, send it; the last
        stage computes the loss                          keeps x and the graph's end
    I   receive the gradient of y from the stage after (the last has the loss), compute that of x,
        send it                                          keeps what W needs
    W   add the weights' gradients to `.grad`            keeps nothing
    B   I, then W. In a stage whose backward is never split this is torch's own backward.

It adds to plain.py: any schedule instead of 1F1B alone, so that the schedule that runs is the one
that is validated, simulated and drawn; several stages per rank, split backwards, outputs of any
shape, weighted losses, a tied weight, and an order of messages that is safe on nccl
(stage_messages.py).

Layout: a rank holds its stages whole. The batch is cut along dim 0 into m microbatches, which may
differ in size by one row. Gradients are those of the batch's mean loss: the mean over its rows, or
weighted by a WeightedLoss. (A batch norm normalizes over a microbatch, not over the batch.)
Wire: see stage_messages.py.

Tied weights: the token embedding of the first stage is also the head's weight on the last. Each of
the two stages computes a part of its gradient. Both copies stay equal only if both ranks take the
same step, with the sum of both parts:

    rank of the first stage   part of the embedding   part + part    the same bits on both:
    rank of the last stage    part of the head        part + part    first plus last, in that order

Wire: the weight's bytes each way between the two ranks, once per step, after the last microbatch.
Paper: Megatron-LM, arXiv:2104.04473, and its `_allreduce_word_embedding_grads`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from labkit.comm import Group
from labkit.comm.group import chosen
from labkit.global_norm import mark_gradient_shard
from labkit.pipeline import pipeline_checks as checks
from labkit.pipeline.deferred import WeightGradStore
from labkit.pipeline.op import Kind, Op, Schedule, consumer
from labkit.pipeline.simulation import Span
from labkit.pipeline.stage_messages import StageMessages
from labkit.pipeline.validation import validate

Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class WeightedLoss:
    """A loss that is a mean over something other than rows, such as targets that are not padding.

    `weight(targets)` returns what the mean of a microbatch is divided by, here the number of such
    targets. It is called before the first forward, since a backward may come before the last
    forward. No step checks that the weight is right.
    """

    mean: Loss
    weight: Callable[[Tensor], float]

    def __call__(self, output: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss over a microbatch."""
        return self.mean(output, targets)


class Pipeline:
    """The stages of one rank, and the schedule by which all ranks perform a step.

    stages: stage -> module, for each of `schedule.stages_of(rank)`. A module takes one tensor and
    returns one with as many rows (dim 0). loss: (output, targets) -> the mean over the rows of a
    microbatch, or a WeightedLoss, such as token_loss; the last stage calls it. tied: a weight that
    the first and the last stage share, given on both ranks: a step sums its two gradients. Without
    it the two copies drift apart.
    Every rank makes its Pipeline at the same point. The sizes and dtypes of the stages' outputs may
    change only with the sizes of the inputs.
    ScheduleError for a schedule that is no training step. ValueError for other stages or another
    number of ranks than the schedule's, and for schedules that differ between ranks.
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
        checks.require_same_schedule(schedule, tied, self.group)
        self.stages, self.loss, self.tied = dict(stages), loss, tied
        self._means = None if isinstance(loss, WeightedLoss) else checks.MeanLossCheck(loss)
        self._stage_messages = StageMessages(schedule, self.group)
        self._is_usable = True  # False during a step, and after one that has failed

    def step(self, inputs: Tensor, targets: Tensor) -> Step:
        """Run forward and backward of one batch, and add gradients to the parameters' `.grad`.

        Every rank passes the whole batch, inputs (rows, ...) and targets (rows, ...): tokens are
        small. The first stage uses the inputs, the last the targets.
        ValueError for fewer rows than microbatches, for unequal numbers of rows, and for a loss
        over rows if the microbatches have different shares of IGNORED targets.
        """
        rank, num_stages = self.group.rank, self.schedule.num_stages
        if not self._is_usable:
            raise RuntimeError(
                "an earlier step has failed, and its messages may still arrive; make a new "
                "Pipeline in a new run"
            )
        work = self._work(inputs, targets)
        self._is_usable, before = False, pop_gradient(self.tied)
        self._stage_messages.begin([len(part) for part in work.inputs], tuple(inputs.shape[1:]))
        spans: list[Span] = []
        in_flight = 0
        for op in self.schedule.rows[rank]:
            need, product = op.needs(num_stages), op.product
            taken = None if need is None else self._stage_messages.take(need)
            start = time.perf_counter()
            with self.group.region(_REGIONS[op.kind]):
                made = work.perform(op, taken)
            spans.append(Span(op, start, time.perf_counter()))
            if made is not None and consumer(product, num_stages) is not None:
                self._stage_messages.send(product, made)
            del taken, made  # free used tensors before the next message is taken
            in_flight = max(in_flight, len(work.held))
        self._stage_messages.end()
        if self.tied is not None:
            sum_tied_gradients(self.tied, before, self.schedule, self.group)
        if self.group.size > 1:
            for stage in self.stages.values():
                for parameter in stage.parameters():
                    mark_gradient_shard(parameter)
        self._is_usable = True
        return Step(work.mean_loss(), work.losses(), tuple(spans), in_flight)

    def _work(self, inputs: Tensor, targets: Tensor) -> Work:
        device = self.group.device
        return Work(
            self.schedule, self.stages, self.loss, inputs, targets, device, means=self._means
        )


@dataclass(frozen=True)
class Step:
    """The result of a step on one rank.

    loss: the mean over the batch, on the rank of the last stage, else None. losses: the mean of
    each microbatch, on that rank. spans: the rank's operations, in seconds of the machine's clock,
    without waiting for messages. in_flight: the most microbatches whose activations it held at
    once; a microbatch on two of its stages counts twice.
    """

    loss: float | None
    losses: tuple[float, ...]
    spans: tuple[Span, ...]
    in_flight: int


_REGIONS = {
    Kind.F: "forward",
    Kind.B: "backward",
    Kind.I: "input gradients",
    Kind.W: "weight gradients",
}


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
    """Make a Pipeline and perform one step. For arguments see Pipeline and `Pipeline.step`."""
    return Pipeline(schedule, stages, loss, group, tied=tied).step(inputs, targets)


class Work:
    """A step's microbatches on one rank. `held`: (stage, microbatch) -> what backward needs."""

    def __init__(
        self,
        schedule: Schedule,
        stages: Mapping[int, nn.Module],
        loss: Loss,
        inputs: Tensor,
        targets: Tensor,
        device: torch.device,
        means: checks.MeanLossCheck | None = None,
    ) -> None:
        checks.batch(inputs, targets, schedule.num_microbatches)
        self.inputs = inputs.to(device).tensor_split(schedule.num_microbatches)
        self.held: dict[tuple[int, int], _Held] = {}
        self._targets = targets.to(device).tensor_split(schedule.num_microbatches)
        self._shares = self._shares_of(targets.tensor_split(schedule.num_microbatches), loss)
        self._stages, self._loss = stages, loss
        self._last = schedule.num_stages - 1
        self._losses: dict[int, Tensor] = {}  # microbatch -> its mean
        self._means = means
        self._splits = {op.stage for row in schedule.rows for op in row if op.kind is Kind.I}
        self._compute = {
            Kind.F: self._forward,
            Kind.B: self._backward,
            Kind.I: self._backward_of_input,
            Kind.W: self._backward_of_weights,
        }

    def perform(self, op: Op, taken: Tensor | None) -> Tensor | None:
        """Perform an operation on the received product `taken`; return the product to send."""
        return self._compute[op.kind](op, taken)

    def losses(self) -> tuple[float, ...]:
        """Return the losses by microbatch on the rank of the last stage; () elsewhere."""
        if not self._losses:
            return ()
        return tuple(torch.stack([self._losses[each] for each in sorted(self._losses)]).tolist())

    def mean_loss(self) -> float | None:
        """Return the batch's mean loss on the rank of the last stage; None elsewhere."""
        if not self._losses:
            return None
        return sum(mean * share for mean, share in zip(self.losses(), self._shares, strict=True))

    def _shares_of(self, targets: Sequence[Tensor], loss: Loss) -> list[float]:
        """Return each microbatch's weight in the batch's mean; the weights sum to 1."""
        if isinstance(loss, WeightedLoss):
            weights = [float(loss.weight(part)) for part in targets]
        else:
            checks.rows_count_alike(targets)
            weights = [float(len(part)) for part in targets]
        total = sum(weights)
        return [weight / total if total else 0.0 for weight in weights]

    def _forward(self, op: Op, taken: Tensor | None) -> Tensor | None:
        x = self.inputs[op.microbatch] if taken is None else taken.requires_grad_()
        deferred = WeightGradStore() if op.stage in self._splits else None
        with deferred or nullcontext():
            y = self._output(op, x)
            checks.output(y, x, op, self._stages[op.stage])
            if op.stage == self._last:
                y = self._part_of_loss(y, op)
        end = get_gradient_edge(y) if y.requires_grad else None  # None in frozen first stages
        self.held[op.stage, op.microbatch] = _Held(x, end, deferred)
        return y

    def _output(self, op: Op, x: Tensor) -> Tensor:
        output: Tensor = self._stages[op.stage](x)
        return output

    def _part_of_loss(self, y: Tensor, op: Op) -> Tensor:
        """Return the microbatch's part of the batch's mean loss."""
        targets = self._targets[op.microbatch]
        mean = self._loss(y, targets)
        checks.loss(mean)
        if self._means is not None:
            self._means.look_at(y.detach(), targets, mean.detach())
        self._losses[op.microbatch] = mean.detach()
        return mean * self._shares[op.microbatch]

    def _backward(self, op: Op, taken: Tensor | None) -> Tensor | None:
        made = self._backward_of_input(op, taken)
        self._backward_of_weights(op, None)
        return made

    def _backward_of_input(self, op: Op, taken: Tensor | None) -> Tensor | None:
        x, end, deferred = self.held[op.stage, op.microbatch]
        assert x is not None
        grad = torch.ones_like(self._losses[op.microbatch]) if taken is None else taken
        if end is not None:
            (deferred.backward if deferred else torch.autograd.backward)(end, grad)
        self.held[op.stage, op.microbatch] = _Held(None, None, deferred)
        if op.stage == 0:
            return None  # no stage before the first one needs a gradient
        return torch.zeros_like(x) if x.grad is None else x.grad

    def _backward_of_weights(self, op: Op, _: Tensor | None) -> None:
        deferred = self.held.pop((op.stage, op.microbatch)).deferred
        if deferred is not None:
            deferred.accumulate()


class _Held(NamedTuple):
    """The tensors that a stage keeps of a microbatch between its operations."""

    x: Tensor | None
    # The graph's end instead of the output, whose memory is not needed once it is sent.
    end: GradientEdge | None
    deferred: WeightGradStore | None


def pop_gradient(weight: Tensor | None) -> Tensor | None:
    """Remove and return a tied weight's gradient before a step.

    Earlier steps have already summed it over the two ranks. A step sums only what it adds.
    """
    if weight is None:
        return None
    before, weight.grad = weight.grad, None
    return before


def sum_tied_gradients(
    weight: Tensor, before: Tensor | None, schedule: Schedule, group: Group
) -> None:
    """Make `weight.grad` the sum of the first stage's gradient, the last stage's and `before`.

    Both ranks call it. If one rank holds both stages and one weight, autograd has summed already.
    """
    first, last = schedule.rank_of[0], schedule.rank_of[schedule.num_stages - 1]
    mine = torch.zeros_like(weight) if weight.grad is None else weight.grad
    if first != last and group.rank in (first, last):
        theirs = torch.empty_like(mine)
        peer = last if group.rank == first else first
        with group.region("tied weight"):
            with group.label("gradient of the tied weight"), group.together():
                sent, arriving = group.isend(mine, peer), group.irecv(theirs, peer)
            arriving.wait()
            sent.wait()
        mine = mine + theirs if group.rank == first else theirs + mine
    weight.grad = mine if before is None else before + mine
