"""Large batches: learning rates and optimizers for gradients averaged over more examples.

k times the batch means k times fewer steps. To get as far in one step, the learning rate grows with
k (linear scaling). The first steps, with large and changing gradients, would diverge at that rate,
so a warmup raises it gradually. Beyond some thousands of examples a rate that is small for one
layer is large for another. LARS and LAMB give each layer a step in proportion to the size of its
weights.

    LARS    local = trust * |w| / (|g| + weight_decay * |w|)
            v = momentum * v + lr * local * (g + weight_decay * w)         w = w - v
    LAMB    u = m' / (sqrt(v') + eps) + weight_decay * w                   m', v' are Adam's
            w = w - lr * |w| / |u| * u

A layer here is a parameter. If a norm is 0, the ratio is 1. For LARS that is a trap: a bias that
starts at zero makes a first step of the whole learning rate, a thousand times that of a weight, and
one that starts small hardly moves. So plain SGD updates biases and the parameters of norms, with a
second optimizer.
Papers: Goyal et al., "Accurate, large minibatch SGD", arXiv:1706.02677; You, Gitman and Ginsburg,
arXiv:1708.03888 (LARS); You et al., arXiv:1904.00962 (LAMB).
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from labkit.optimizer import (
    AdamState,
    AdamW,
    checked,
    checked_rate,
    checked_share,
)


def scaled_learning_rate(learning_rate: float, batch: int, base_batch: int) -> float:
    """Return the learning rate for `batch` by linear scaling from `base_batch`.

    scaled_learning_rate(0.1, batch=8192, base_batch=256) == 3.2
    """
    return learning_rate * batch / base_batch


def warmed_up(learning_rate: float, step: int, warmup_steps: int, start: float = 0.0) -> float:
    """Return the rate of a linear warmup, from `start` at step 0 to `learning_rate`, then constant.

    Goyal et al. start at the rate that is right for the base batch.

    warmed_up(3.2, step=50, warmup_steps=100) == 1.6
    """
    if step >= warmup_steps:
        return learning_rate
    return start + (learning_rate - start) * step / warmup_steps


class LARS:
    """SGD with momentum and a step per layer in proportion to |w| / |g|. Keeps v.

    `velocity[i]` belongs to `parameters[i]`. A parameter without a gradient stays as it is.
    """

    def __init__(
        self,
        parameters: Iterable[Tensor],
        learning_rate: float,
        momentum: float = 0.9,
        weight_decay: float = 5e-4,
        trust: float = 1e-3,
    ) -> None:
        """trust: share of its own size by which a layer may change in a step; the paper's eta.

        TypeError and ValueError for impossible numbers.
        """
        self.parameters = checked(parameters)
        self.learning_rate = checked_rate(learning_rate)
        self.momentum = checked_share("momentum", momentum)
        self.weight_decay = checked_rate(weight_decay, "weight_decay")
        self.trust = checked_rate(trust, "trust")
        self.velocity: list[Tensor | None] = [None] * len(self.parameters)

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Move each parameter."""
        for index, parameter in enumerate(self.parameters):
            if parameter.grad is None:
                continue
            velocity = self.velocity[index]
            if velocity is None:
                velocity = self.velocity[index] = torch.zeros_like(parameter)
            size, slope = _norm(parameter), _norm(parameter.grad)
            local = self.trust * size / (slope + self.weight_decay * size)
            rate = self.learning_rate * _or_one(local, size, slope)
            decayed = parameter.grad + self.weight_decay * parameter
            velocity.mul_(self.momentum).add_(rate * decayed)
            parameter.sub_(velocity)


class LAMB(AdamW):
    """AdamW whose step, for each layer, has the learning rate times the layer's own size."""

    def __init__(
        self,
        parameters: Iterable[Tensor],
        learning_rate: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
    ) -> None:
        """The defaults are the paper's, not those of AdamW here."""
        super().__init__(parameters, learning_rate, betas, eps, weight_decay)

    def _update(self, parameter: Tensor, grad: Tensor, state: AdamState) -> None:
        mean, divisor = self._averaged(grad, state)
        update = mean / divisor + self.weight_decay * parameter
        size, length = _norm(parameter), _norm(update)
        parameter.sub_(self.learning_rate * _or_one(size / length, size, length) * update)


def _norm(x: Tensor) -> Tensor:
    """Return |x| as a tensor, (), in float32 at least; `.item()` would make the host wait for a
    GPU."""
    return torch.linalg.vector_norm(x, dtype=torch.promote_types(x.dtype, torch.float32))


def _or_one(ratio: Tensor, *norms: Tensor) -> Tensor:
    """Return `ratio`, (), or 1 if a norm is 0 or not finite."""
    are_sizes = (torch.stack(norms) > 0).all()
    are_finite = torch.isfinite(torch.stack([*norms, ratio])).all()
    return torch.where(are_sizes & are_finite, ratio, 1.0)
