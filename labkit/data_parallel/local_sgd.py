"""Local SGD: ranks train alone for some steps, and average their parameters instead of gradients.

    every rank    w -> H inner steps on its own share -> w_rank
    together      d = mean over ranks of (w - w_rank)         one all-reduce per H steps
                  w = outer step with d instead of a gradient

With an outer learning rate of 1 and no momentum the outer step is the mean of the parameters: plain
local SGD. DiLoCo uses AdamW as the inner optimizer and Nesterov momentum as the outer one, and H
can then be hundreds.
Wire: each rank sends 2(n-1)/n of the parameters' bytes in H steps, 1/H of data parallelism's.
Papers: Stich, "Local SGD converges fast and communicates little", arXiv:1805.09767; Douillard et
al., "DiLoCo", arXiv:2311.08105.
"""

import itertools
from dataclasses import dataclass

import torch
from torch import nn

from labkit.comm import Group
from labkit.data import Batch, Corpus
from labkit.data_parallel.reduction import copy_from_flat, flattened
from labkit.data_parallel.replica import Replica
from labkit.model import GPT, GPTConfig
from labkit.optimizer import checked_rate, checked_share
from labkit.train import TrainConfig, Trained, copy_parameters, fit, loss, summed_losses


@dataclass(frozen=True, kw_only=True)
class OuterOptimizer:
    """The outer step. The defaults are DiLoCo's; OuterOptimizer(learning_rate=1, momentum=0) is a
    mean.

    TypeError and ValueError for an invalid learning rate, and a momentum that is not below 1.
    """

    learning_rate: float = 0.7
    momentum: float = 0.9

    def __post_init__(self) -> None:
        checked_rate(self.learning_rate)
        checked_share("momentum", self.momentum)


class LocalSGD(Replica):
    """A module that each rank trains alone between two calls of `average()`."""

    def __init__(
        self,
        module: nn.Module,
        group: Group | None = None,
        outer: OuterOptimizer = OuterOptimizer(),
    ) -> None:
        """Wrap a module. Memory: the last common parameters and the momentum, each of its size."""
        super().__init__(module, group, broadcast_buffers=False)
        self.outer = outer
        self._last_average = flattened(module.parameters())
        self._velocity = torch.zeros_like(self._last_average)

    def reduce_gradients(self) -> None:
        """Do nothing: every rank uses its own gradients."""

    @torch.no_grad()
    def average(self) -> None:
        """Make the outer step, after which all ranks have the same parameters again.

        Wire: one all-reduce of all parameters.
        """
        moved = self._last_average - flattened(self.module.parameters())
        with self.group.label("outer step"):
            self.group.all_reduce(moved, "mean", out=moved)
        self._velocity.mul_(self.outer.momentum).add_(moved)
        # Nesterov momentum: the step also goes ahead along the updated velocity.
        self._last_average -= self.outer.learning_rate * (
            moved + self.outer.momentum * self._velocity
        )
        copy_from_flat(self._last_average, self.module.parameters())


def train(
    world: Group,
    config: GPTConfig,
    settings: TrainConfig,
    corpus: Corpus | None = None,
    *,
    inner_steps: int = 4,
    outer: OuterOptimizer = OuterOptimizer(),
) -> Trained:
    """Train on `labkit.train.train_serial`'s batches, with one average per `inner_steps` steps.

    losses: of the global batch before each step. Each rank computes the loss of its share with its
    own parameters. ValueError unless the number of steps is a multiple of inner_steps.
    """
    if settings.num_steps % inner_steps:
        raise ValueError(
            f"num_steps={settings.num_steps} must be a multiple of inner_steps={inner_steps}, so "
            "that ranks end with the same parameters"
        )
    module = GPT(config, settings.seed, settings.dtype).to(world.device)
    model = LocalSGD(module, world, outer)
    optimizer = settings.make_optimizer(module.parameters())
    steps = itertools.count(1)

    def step(batch: Batch) -> float:
        share = batch.share(world.rank, world.size).to(world.device)
        optimizer.zero_grad()
        value = loss(model, share)
        value.backward()
        optimizer.step()
        if next(steps) % inner_steps == 0:
            model.average()
        return value.item() * share.num_targets / max(1, batch.num_targets)

    parts = fit(step, config, settings, corpus)
    return Trained(summed_losses(parts, world), copy_parameters(module))
