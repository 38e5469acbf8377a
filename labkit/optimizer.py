"""SGD and AdamW, written out: what they keep beside each parameter is what ZeRO shards.

    SGD     u = momentum * u + g           w = w - lr * u                      keeps u, or nothing
    AdamW   m = b1 * m + (1 - b1) * g      w = w - lr * weight_decay * w
            v = b2 * v + (1 - b2) * g^2    w = w - lr * m' / (sqrt(v') + eps)  keeps m and v

with m' = m / (1 - b1^t) and v' = v / (1 - b2^t): both averages start at 0, and this undoes it.

They equal torch.optim's, whose place they take because its first step loads torch's compiler: over
a second in every fresh process, where twenty steps of the lab's model take a third of one.
Papers: Kingma and Ba, arXiv:1412.6980; Loshchilov and Hutter, arXiv:1711.05101.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class Optimizer(Protocol):
    """What a training step asks of an optimizer; torch.optim's fit too."""

    def zero_grad(self) -> None:
        """Forget the gradients."""

    def step(self) -> None:
        """Move the parameters along their gradients."""


class SGD:
    """Stochastic gradient descent. Keeps as many numbers as there are parameters, or none.

    `velocity[i]` belongs to `parameters[i]`: None before its first step, and without momentum.
    A parameter without a gradient stays as it is.
    """

    def __init__(
        self, parameters: Iterable[Tensor], learning_rate: float, momentum: float = 0.0
    ) -> None:
        self.parameters = list(parameters)
        self.learning_rate = learning_rate
        self.momentum = momentum
        self.velocity: list[Tensor | None] = [None] * len(self.parameters)

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Move each parameter against its gradient, or against the running sum of them."""
        for index, parameter in enumerate(self.parameters):
            update = parameter.grad
            if update is None:
                continue
            if self.momentum:
                velocity = self.velocity[index]
                if velocity is None:
                    velocity = self.velocity[index] = torch.zeros_like(parameter)
                update = velocity.mul_(self.momentum).add_(update)
            parameter.sub_(update, alpha=self.learning_rate)


@dataclass
class AdamState:
    """What AdamW keeps beside one parameter: two tensors of its shape, and the number of steps."""

    mean: Tensor
    mean_square: Tensor
    num_steps: int = 0


class AdamW:
    """Adam with decoupled weight decay. Keeps twice as many numbers as there are parameters.

    `state[i]` belongs to `parameters[i]`, and is None before its first step.
    A parameter without a gradient stays as it is.
    """

    def __init__(
        self,
        parameters: Iterable[Tensor],
        learning_rate: float,
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
        weight_decay: float = 0.1,
    ) -> None:
        self.parameters = list(parameters)
        self.learning_rate = learning_rate
        self.betas = betas
        self.eps = eps
        self.weight_decay = weight_decay
        self.state: list[AdamState | None] = [None] * len(self.parameters)

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Move each parameter by about the learning rate, whatever the size of its gradient."""
        for index, parameter in enumerate(self.parameters):
            if parameter.grad is None:
                continue
            state = self.state[index]
            if state is None:
                zeros = torch.zeros_like(parameter)
                state = self.state[index] = AdamState(zeros, zeros.clone())
            self._update(parameter, parameter.grad, state)

    def _update(self, parameter: Tensor, grad: Tensor, state: AdamState) -> None:
        beta1, beta2 = self.betas
        state.num_steps += 1
        state.mean.lerp_(grad, 1 - beta1)
        state.mean_square.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        mean = state.mean / (1 - beta1**state.num_steps)
        mean_square = state.mean_square / (1 - beta2**state.num_steps)
        parameter.mul_(1 - self.learning_rate * self.weight_decay)
        parameter.addcdiv_(mean, mean_square.sqrt_().add_(self.eps), value=-self.learning_rate)
