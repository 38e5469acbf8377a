"""Rung 1: PPO under data parallelism. Each rank has environments; gradients are averaged.

    rank 0   env 0 1 2 -> rollout -> loss of its samples -> g0 -+
    rank 1   env 3 4   -> rollout -> loss of its samples -> g1 -+-> one all-reduce -> the same step
    rank 2   env 5 6   -> rollout -> loss of its samples -> g2 -+

    iteration   all ranks collect T steps
                advantages, with mean 0 and deviation 1 over the samples of all ranks
                epochs x minibatches: gradients, all-reduce, clipping, step

It equals one process with all environments, because four things are the same:

    weights       broadcast from rank 0 at the beginning
    samples       an environment has its own random numbers, wherever it is (environments.py)
    minibatches   of each environment T/m random steps, drawn by its own generator
    the mean      a rank's loss is its sum over its samples, divided by the number of all samples:
                  shares of 3, 2 and 2 environments need no further weights

Ranks with the same seed for their environments would collect the same samples: the gradient of n
ranks is then that of one, n times as expensive. Normalising advantages by a rank's own mean changes
the objective: its worst actions would look as good as another rank's best.

The loss keeps the new policy near the one that acted: with ratio = pi(a) / pi_old(a),

    - min(ratio A, clip(ratio, 1 - c, 1 + c) A) + weight (V - return)^2 / 2 - weight entropy

Layout: parameters and optimizer state replicated; environments and samples sharded.
Wire: 2(n-1)/n of the gradients' bytes per rank and minibatch, in one message; two numbers per
iteration. All ranks wait for the slowest environment, once per iteration.
Papers: Schulman et al., "Proximal policy optimization algorithms", arXiv:1707.06347; Heess et al.,
"Emergence of locomotion behaviours in rich environments", arXiv:1707.02286 (DPPO).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from labkit import arguments
from labkit.comm import Group
from labkit.data_parallel.parameter_server import gradients_of
from labkit.data_parallel.plain import broadcast_parameters
from labkit.data_parallel.reduction import flattened, parts_of
from labkit.optimizer import AdamW
from labkit.rl.actor_critic import ActorCritic, RLConfig, Rollout, advantages, collect
from labkit.rl.environments import Environments, Make, cart_pole
from labkit.rl.history import History, Recorder


@dataclass(frozen=True, kw_only=True)
class PPOConfig(RLConfig):
    """Settings of PPO. ValueError for a value that trains nothing."""

    num_epochs: int = 10  # each sample is used as often
    num_minibatches: int = 1  # updates of an epoch
    clip: float = 0.2
    lam: float = 0.8  # lambda of the advantages
    anneals: bool = True  # the learning rate falls to 0, in a line

    def __post_init__(self) -> None:
        super().__post_init__()
        arguments.whole("num_epochs", self.num_epochs, "1 or more")
        allowed = f"1 to num_steps={self.num_steps}: a minibatch has steps of every environment"
        arguments.whole("num_minibatches", self.num_minibatches, allowed, most=self.num_steps)
        arguments.number("clip", self.clip, "above 0; 0.2 is usual", above=0)
        arguments.number("lam", self.lam, "0 to 1; 0.95 is usual", least=0, most=1)
        per_iteration = self.num_environments * self.num_steps
        if self.num_samples < per_iteration:
            raise ValueError(
                f"num_samples={self.num_samples}: one iteration of {self.num_environments} "
                f"environments takes {per_iteration}; give as many, or fewer num_steps"
            )

    @property
    def num_iterations(self) -> int:
        """Rollouts of all environments that make up num_samples."""
        return self.num_samples // (self.num_environments * self.num_steps)


class Samples(NamedTuple):
    """Samples of a rank, (T, E, ...) or (N, ...), with their targets."""

    observations: Tensor
    actions: Tensor
    log_probs: Tensor
    advantages: Tensor
    returns: Tensor


def train(world: Group, config: PPOConfig, make: Make = cart_pole) -> History:
    """Train a policy; return the record of all ranks, and the parameters, on every rank.

    make: from an environment's number to the environment. ValueError where a rank would have no
    environment.
    """
    share = config.share(world.rank, world.size)
    environments = Environments(share, config.seed, make)
    # As programs do that set no seed: without the broadcast ranks would train different policies.
    policy = ActorCritic(environments.sizes, config.seed + world.rank, config.dtype)
    broadcast_parameters(policy, world)
    optimizer = AdamW(
        policy.parameters(), config.learning_rate, (0.9, 0.999), eps=1e-5, weight_decay=0.0
    )
    recorder = Recorder(world)
    for iteration in range(config.num_iterations):
        if config.anneals:
            left = 1 - iteration / config.num_iterations
            optimizer.learning_rate = config.learning_rate * left
        rollout = collect(policy, environments, config.num_steps, config.gamma, recorder)
        samples = targets(policy, rollout, config, world, recorder)
        for minibatch in minibatches(samples, environments, config):
            optimizer.zero_grad()
            num_samples = config.num_environments * len(minibatch.actions) // len(share)
            (loss_sum(policy, minibatch, config) / num_samples).backward()
            with recorder.waiting():
                sum_gradients(policy, world)
            nn.utils.clip_grad_norm_(policy.parameters(), config.max_norm)
            optimizer.step()
            recorder.num_updates += 1
    return recorder.history(policy)


@torch.no_grad()
def targets(
    policy: ActorCritic, rollout: Rollout, config: PPOConfig, world: Group, recorder: Recorder
) -> Samples:
    """Return the samples of a rollout, with advantages normalised over all ranks, and returns.

    Wire: an all-reduce of two numbers.
    """
    values_TE = policy.values(rollout.observations_TEO)
    last_value_E = policy.values(rollout.last_EO)
    advantages_TE = advantages(rollout, values_TE, last_value_E, config.gamma, config.lam)
    count = config.num_environments * config.num_steps
    sums = torch.stack([advantages_TE.sum(), advantages_TE.square().sum()])
    with recorder.waiting():  # for the slowest environment
        mean, mean_square = world.all_reduce(sums) / count
    deviation = (mean_square - mean**2).clamp(min=0).sqrt()
    return Samples(
        rollout.observations_TEO,
        rollout.actions_TE,
        rollout.log_probs_TE,
        (advantages_TE - mean) / (deviation + 1e-8),
        advantages_TE + values_TE,
    )


def minibatches(
    samples: Samples, environments: Environments, config: PPOConfig
) -> Iterator[Samples]:
    """Yield the minibatches of all epochs, (N, ...): the same steps on any number of ranks."""
    for _ in range(config.num_epochs):
        orders = [torch.randperm(config.num_steps, generator=g) for g in environments.generators]
        for steps_TE in torch.stack(orders, dim=1).tensor_split(config.num_minibatches):
            places_E = torch.arange(len(environments))
            yield Samples(*(each[steps_TE, places_E].flatten(0, 1) for each in samples))


def loss_sum(policy: ActorCritic, samples: Samples, config: PPOConfig) -> Tensor:
    """Return the sum of the samples' losses."""
    log_probs, entropy, values = policy(samples.observations, samples.actions)
    ratio = (log_probs - samples.log_probs).exp()
    clipped = ratio.clamp(1 - config.clip, 1 + config.clip)
    surrogate = torch.minimum(ratio * samples.advantages, clipped * samples.advantages)
    of_values = (values - samples.returns).square() / 2
    return (config.value_weight * of_values - surrogate - config.entropy_weight * entropy).sum()


def sum_gradients(module: nn.Module, group: Group) -> None:
    """Replace all gradients by their sums over the ranks, with one all-reduce for all of them."""
    flat = flattened(gradients_of(module))
    group.all_reduce(flat, out=flat)
    for parameter, part in parts_of(flat, module.parameters()):
        parameter.grad = part
