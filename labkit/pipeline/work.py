"""What each kind of operation computes, for one rank's stages in one step.

    F   x -> y, and on the last stage the loss        keeps x and the graph's end
    I   the gradient of y -> that of x                keeps what W needs
    W   adds the weights' gradients to `.grad`        keeps nothing
    B   I, then W

A stage whose backward is never split in the schedule has nothing to defer: its B is torch's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from labkit.pipeline import pipeline_checks as checks
from labkit.pipeline.deferred import DeferredWeights
from labkit.pipeline.op import Kind, Op, Schedule

Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class WeightedLoss:
    """A mean over something else than rows, such as the targets that are not padding.

    A microbatch with more of it counts more, so `weight(targets)` says how much there is in its
    targets: before the first forward, since a backward may come before the last. No step checks
    whether that is so.
    """

    mean: Loss
    weight: Callable[[Tensor], float]

    def __call__(self, output: Tensor, targets: Tensor) -> Tensor:
        """The mean over a microbatch."""
        return self.mean(output, targets)


class _Held(NamedTuple):
    """What a stage keeps of a microbatch between its operations."""

    x: Tensor | None
    # The graph's end instead of the output: once sent, nobody needs its numbers here.
    end: GradientEdge | None
    deferred: DeferredWeights | None


class Work:
    """A step's microbatches on one rank. `held`: (stage, microbatch) -> what is kept of it."""

    def __init__(
        self,
        schedule: Schedule,
        stages: Mapping[int, nn.Module],
        loss: Loss,
        inputs: Tensor,
        targets: Tensor,
        device: torch.device,
        means: checks.MeanOfMeans | None = None,
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
        """What the operation yields for another stage. taken: what one has made for it."""
        return self._compute[op.kind](op, taken)

    def losses(self) -> tuple[float, ...]:
        """By microbatch, where the last stage is; () elsewhere."""
        if not self._losses:
            return ()
        return tuple(torch.stack([self._losses[each] for each in sorted(self._losses)]).tolist())

    def mean_loss(self) -> float | None:
        """Over the batch, where the last stage is."""
        if not self._losses:
            return None
        return sum(mean * share for mean, share in zip(self.losses(), self._shares, strict=True))

    def _shares_of(self, targets: Sequence[Tensor], loss: Loss) -> list[float]:
        """What each microbatch counts in the batch's mean; all together count 1."""
        if isinstance(loss, WeightedLoss):
            weights = [float(loss.weight(part)) for part in targets]
        else:
            checks.rows_count_alike(targets)
            weights = [float(len(part)) for part in targets]
        total = sum(weights)
        return [weight / total if total else 0.0 for weight in weights]

    def _forward(self, op: Op, taken: Tensor | None) -> Tensor | None:
        x = self.inputs[op.microbatch] if taken is None else taken.requires_grad_()
        deferred = DeferredWeights() if op.stage in self._splits else None
        with deferred or nullcontext():
            y = self._output(op, x)
            checks.output(y, x, op, self._stages[op.stage])
            if op.stage == self._last:
                y = self._part_of_loss(y, op)
        end = get_gradient_edge(y) if y.requires_grad else None  # of frozen first stages
        self.held[op.stage, op.microbatch] = _Held(x, end, deferred)
        return y

    def _output(self, op: Op, x: Tensor) -> Tensor:
        output: Tensor = self._stages[op.stage](x)
        return output

    def _part_of_loss(self, y: Tensor, op: Op) -> Tensor:
        """What the microbatch adds to the batch's mean."""
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
            return None  # nobody has computed what comes in there
        return torch.zeros_like(x) if x.grad is None else x.grad

    def _backward_of_weights(self, op: Op, _: Tensor | None) -> None:
        deferred = self.held.pop((op.stage, op.microbatch)).deferred
        if deferred is not None:
            deferred.accumulate()
