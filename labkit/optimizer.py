"""SGD and AdamW, written out: the states that they keep for each parameter are what ZeRO shards.

    SGD     u = momentum * u + g           w = w - lr * u                      keeps u, or nothing
    AdamW   m = b1 * m + (1 - b1) * g      w = w - lr * weight_decay * w
            v = b2 * v + (1 - b2) * g^2    w = w - lr * m' / (sqrt(v') + eps)  keeps m and v

with m' = m / (1 - b1^t) and v' = v / (1 - b2^t): both averages start at 0, and this undoes it.

They equal torch.optim's, and are used instead because its first step loads torch's compiler: over a
second in every new process, while twenty steps of the lab's model take a third of one.
Papers: Kingma and Ba, arXiv:1412.6980; Loshchilov and Hutter, arXiv:1711.05101.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from labkit import arguments


class Optimizer(Protocol):
    """The methods that a training step needs of an optimizer; torch.optim's fit too."""

    def zero_grad(self) -> None:
        """Forget the gradients."""

    def step(self) -> None:
        """Move the parameters along their gradients."""


def checked(parameters: Iterable[Tensor]) -> list[Tensor]:
    """Return leaves to train, each once. TypeError for anything else, such as a single tensor."""
    is_many = isinstance(parameters, Iterable) and not isinstance(parameters, Tensor)
    found = list(parameters) if is_many else []
    if not all(isinstance(each, Tensor) and each.is_leaf for each in found) or not found:
        raise TypeError("give an iterable of parameters, such as module.parameters()")
    return list({id(each): each for each in found}.values())


def mark_replaced(parameters: Iterable[Tensor]) -> None:
    """Mark parameters that a sharded module has replaced by shards, which it trains instead."""
    for parameter in parameters:
        parameter.__dict__[_REPLACED] = True


def require_in_use(parameters: Iterable[Tensor]) -> None:
    """Raise RuntimeError for parameters that were replaced, and never get gradients."""
    num_replaced = sum(_REPLACED in parameter.__dict__ for parameter in parameters)
    if num_replaced:
        raise RuntimeError(
            f"{num_replaced} parameters of this optimizer are those of a module that was sharded "
            "after the optimizer was made. The sharded module trains its shards, so this step "
            "would change nothing. Shard the module first. Then make the optimizer from "
            "FullyShardedModule(...).parameters()"
        )


_REPLACED = "_is_replaced_by_shards"


def checked_rate(value: object, name: str = "learning_rate") -> float:
    """Check a learning rate, weight decay or eps, 0 or more. TypeError, ValueError."""
    return arguments.number(name, value, "a finite number of 0 or more", least=0)


def checked_share(name: str, value: object) -> float:
    """Check the share of a running average that stays: momentum, a beta. TypeError, ValueError."""
    allowed = "0 or more, and below 1, or nothing is ever forgotten; 0.9 is usual"
    return arguments.number(name, value, allowed, least=0, below=1)


def states_of(optimizer: Any) -> list[dict[str, Any]]:
    """Return an optimizer's states beside each parameter, by name; {} before the first step.

    optimizer: torch's or the lab's. The tensors are its own, not copies; those on disk are read.
    """
    if hasattr(optimizer, "read_states"):
        read: list[dict[str, Any]] = optimizer.read_states()
        return read
    if isinstance(optimizer, torch.optim.Optimizer):
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        return [dict(optimizer.state.get(p, {})) for p in parameters]
    if isinstance(optimizer, AdamW):
        return [{} if state is None else dict(vars(state)) for state in optimizer.state]
    return [{} if v is None else {"velocity": v} for v in optimizer.velocity]


class OwnedFragment(NamedTuple):
    """Elements `start` to `stop` of a parameter, which this rank's optimizer updates."""

    parameter: Tensor
    start: int
    stop: int
    target: Tensor
    """The updated tensor: the parameter, a view of these elements, or a master of either."""
    values: dict[str, Any]
    """The optimizer's states of them, and their master under `MASTER` where there is one."""


MASTER = "master"


def fragments_of(optimizer: Any) -> list[OwnedFragment]:
    """Return what an optimizer updates on this rank, in its order: whole parameters, or parts."""
    if hasattr(optimizer, "fragments"):
        return list(optimizer.fragments())
    groups = getattr(optimizer, "param_groups", None) or [{"params": optimizer.parameters}]
    parameters = [p for group in groups for p in group["params"]]
    pairs = zip(parameters, states_of(optimizer), strict=True)
    return [OwnedFragment(p, 0, p.numel(), p, values) for p, values in pairs]


def load_fragments(optimizer: Any, states: Sequence[dict[str, Any]]) -> None:
    """Give an optimizer the states of `fragments_of`, in that order. It keeps them, no copies."""
    getattr(optimizer, "load_fragments", partial(load_states, optimizer))(states)


def state_tensors(optimizer: Any) -> list[Tensor]:
    """Return all tensors of any optimizer's state, which it lists itself if it can."""
    if hasattr(optimizer, "state_tensors"):
        return list(optimizer.state_tensors())
    # Some keep lists of tensors, such as L-BFGS.
    leaves = [leaf for state in states_of(optimizer) for leaf in tree_leaves(state)]
    return [leaf for leaf in leaves if isinstance(leaf, Tensor)]


def load_states(optimizer: Any, states: Sequence[Mapping[str, Any]]) -> None:
    """Make the optimizer keep these tensors, in its order: the inverse of `states_of`."""
    if hasattr(optimizer, "write_states"):
        optimizer.write_states(states)
    elif isinstance(optimizer, torch.optim.Optimizer):
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        for parameter, state in zip(parameters, states, strict=True):
            optimizer.state[parameter] = dict(state)
    elif isinstance(optimizer, AdamW):
        optimizer.state = [AdamState(**state) if state else None for state in states]
    else:
        optimizer.velocity = [state.get("velocity") for state in states]


class SGD:
    """Stochastic gradient descent. Keeps as many numbers as there are parameters, or none.

    `velocity[i]` belongs to `parameters[i]`: None before its first step, and without momentum.
    A parameter without a gradient stays as it is. TypeError and ValueError for an invalid rate.
    """

    def __init__(
        self, parameters: Iterable[Tensor], learning_rate: float, momentum: float = 0.0
    ) -> None:
        self.parameters = checked(parameters)
        self.learning_rate = checked_rate(learning_rate)
        self.momentum = checked_share("momentum", momentum)
        self.velocity: list[Tensor | None] = [None] * len(self.parameters)

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Move each parameter against its gradient, or against the running sum of them."""
        require_in_use(self.parameters)
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
    """AdamW's states of one parameter: two tensors of its shape, and the number of steps."""

    mean: Tensor
    mean_square: Tensor
    num_steps: int = 0


class AdamW:
    """Adam with decoupled weight decay. Keeps twice as many numbers as there are parameters.

    `state[i]` belongs to `parameters[i]`, and is None before its first step.
    A parameter without a gradient stays as it is. TypeError and ValueError for an invalid rate.
    """

    def __init__(
        self,
        parameters: Iterable[Tensor],
        learning_rate: float,
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
        weight_decay: float = 0.1,
    ) -> None:
        self.parameters = checked(parameters)
        self.learning_rate = checked_rate(learning_rate)
        self.betas = checked_share("betas[0]", betas[0]), checked_share("betas[1]", betas[1])
        self.eps = checked_rate(eps, "eps")
        self.weight_decay = checked_rate(weight_decay, "weight_decay")
        self.state: list[AdamState | None] = [None] * len(self.parameters)

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Move each parameter by about the learning rate, whatever the size of its gradient."""
        require_in_use(self.parameters)
        for index, parameter in enumerate(self.parameters):
            if parameter.grad is None:
                continue
            state = self.state[index]
            if state is None:
                zeros = torch.zeros_like(parameter)
                state = self.state[index] = AdamState(zeros, zeros.clone())
            self._update(parameter, parameter.grad, state)

    def _averaged(self, grad: Tensor, state: AdamState) -> tuple[Tensor, Tensor]:
        """Update the averages by a gradient; return m' and sqrt(v') + eps, new tensors."""
        beta1, beta2 = self.betas
        state.num_steps += 1
        state.mean.lerp_(grad, 1 - beta1)
        state.mean_square.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        mean = state.mean / (1 - beta1**state.num_steps)
        mean_square = state.mean_square / (1 - beta2**state.num_steps)
        return mean, mean_square.sqrt_().add_(self.eps)

    def _update(self, parameter: Tensor, grad: Tensor, state: AdamState) -> None:
        mean, size = self._averaged(grad, state)
        parameter.mul_(1 - self.learning_rate * self.weight_decay)
        parameter.addcdiv_(mean, size, value=-self.learning_rate)
