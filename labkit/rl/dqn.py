"""Rung 4: DQN with replay over ranks. Each rank acts, keeps what it saw, and learns from any shard.

    rank 0   environments -> transitions, priorities -> shard 0 -+        +-> learns -> g0 -+
    rank 1   environments -> transitions, priorities -> shard 1 -+-> draw +-> learns -> g1 -+-> step
    rank 2   environments -> transitions, priorities -> shard 2 -+        +-> learns -> g2 -+
                                                          ^                     |
                                                          +-- new priorities ---+

    round    all ranks act for some steps; each adds its transitions to its own shard
             updates: draw over all shards, loss, one all-reduce, step, priorities sent back

Off-policy learning uses a transition many times, whichever policy made it. So ranks need not act
equally often: with a deadline, a slow actor adds fewer transitions, and no rank waits for it.

A transition is a row: observation, action, the rewards of n steps, a discount, the observation
after them. The discount is gamma^n, or 0 where the episode ended before; a rollout's last rows have
fewer steps. The target is that of double DQN. The newest parameters choose the next action, and
older ones, copied every few updates, say what it is worth:

    error = rewards + discount Q_old(after, argmax Q(after)) - Q(observation, action)
    loss = sum of weight * huber(error) / B            priority = (|error| + 0.01)^alpha

A rank computes the priorities of its new transitions itself, as Ape-X's actors do.

It equals one process that has all shards behind each other in one memory: the same environments,
the same draws, and a loss that is a sum over the ranks.
Layout: parameters, old parameters and optimizer state replicated; experience sharded.
Wire: 2(n-1)/n of the gradients' bytes per rank and update, and what replay.py sends.
Papers: Mnih et al., "Human-level control through deep reinforcement learning", 2015; van Hasselt et
al., "Deep reinforcement learning with double Q-learning", arXiv:1509.06461; Horgan et al.,
"Distributed prioritized experience replay" (Ape-X), arXiv:1803.00933.
"""

from __future__ import annotations

import copy
import math
import time
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from labkit import arguments
from labkit.comm import Group
from labkit.data_parallel.plain import broadcast_parameters
from labkit.optimizer import AdamW
from labkit.rl.actor_critic import RLConfig
from labkit.rl.environments import Environments, Make, Sizes, cart_pole
from labkit.rl.history import History, Recorder
from labkit.rl.ppo import sum_gradients
from labkit.rl.replay import Sample, ShardedReplay

_LEAST_ERROR = 0.01  # a transition without an error is still drawn now and then


@dataclass(frozen=True, kw_only=True)
class DQNConfig(RLConfig):
    """Settings of DQN. ValueError for a value that trains nothing."""

    num_steps: int = 32  # steps of each environment in a round
    num_updates: int = 32  # updates in a round
    num_ahead: int = 3  # steps whose rewards a transition has
    max_norm: float = 10.0
    batch: int = 128  # transitions of an update, over all ranks
    capacity: int = 50_000  # transitions that all ranks keep together
    copy_every: int = 64  # updates between two copies of the parameters for the target
    alpha: float = 0.6  # 0 draws all transitions equally often
    beta: float = 0.4  # at the beginning, and 1 at the end of training; see ShardedReplay.sample
    last_epsilon: float = 0.04  # share of random actions: it falls from 1 to this
    exploring: float = 0.2  # share of training in which it falls
    deadline_s: float = math.inf  # in a round, no rank begins another step after that

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("num_updates", "num_ahead", "batch", "copy_every"):
            arguments.whole(name, getattr(self, name), "1 or more")
        arguments.whole(
            "capacity",
            self.capacity,
            "num_environments * num_steps or more, so that a round fits",
            least=self.num_environments * self.num_steps,
        )
        for name in ("alpha", "beta", "last_epsilon", "exploring"):
            arguments.number(name, getattr(self, name), "0 to 1", least=0, most=1)

    @property
    def num_rounds(self) -> int:
        """Rounds of all environments that make up num_samples."""
        return self.num_samples // (self.num_environments * self.num_steps)

    def epsilon(self, done: float) -> float:
        """Return the share of random actions after a share of the training, 0 to 1."""
        falls = min(1.0, done / self.exploring) if self.exploring else 1.0
        return 1.0 - (1.0 - self.last_epsilon) * falls


class QNetwork(nn.Sequential):
    """Values of all actions: (..., O) -> (..., A). Two hidden layers."""

    def __init__(self, sizes: Sizes, seed: int, dtype: torch.dtype, hidden: int = 128) -> None:
        widths = (sizes.observation, hidden, hidden, sizes.num_actions)
        layers: list[nn.Module] = []
        generator = torch.Generator().manual_seed(seed)
        for inputs, outputs in zip(widths, widths[1:], strict=False):
            linear = nn.Linear(inputs, outputs, dtype=dtype)
            nn.init.orthogonal_(linear.weight, math.sqrt(2), generator=generator)
            nn.init.zeros_(linear.bias)
            layers += [linear, nn.ReLU()]
        super().__init__(*layers[:-1])


class Transitions(NamedTuple):
    """Columns of rows, (N, ...)."""

    observations: Tensor
    actions: Tensor
    rewards: Tensor
    discounts: Tensor
    after: Tensor

    @classmethod
    def of(cls, rows_NW: Tensor) -> Transitions:
        """Cut rows of W = 2 O + 3 numbers into columns."""
        size = (rows_NW.shape[1] - 3) // 2
        observations, action, reward, discount, after = rows_NW.split([size, 1, 1, 1, size], 1)
        return cls(observations, action.long(), reward[:, 0], discount[:, 0], after)


def train(world: Group, config: DQNConfig, make: Make = cart_pole) -> History:
    """Train a Q-network; return the record of all ranks, and the parameters, on every rank.

    make: from an environment's number to the environment. ValueError where a rank would have no
    environment.
    """
    share = config.share(world.rank, world.size)
    environments = Environments(share, config.seed, make)
    sizes = environments.sizes
    q = QNetwork(sizes, config.seed + world.rank, config.dtype)
    broadcast_parameters(q, world)
    old_q = copy.deepcopy(q)
    optimizer = AdamW(q.parameters(), config.learning_rate, (0.9, 0.999), weight_decay=0.0)
    capacity = config.capacity // config.num_environments * len(share)
    width = 2 * sizes.observation + 3
    memory = ShardedReplay(world, capacity, width, seed=config.seed, dtype=config.dtype)
    recorder = Recorder(world)
    for number in range(config.num_rounds):
        done = number / config.num_rounds
        rows_NW = act(q, environments, config.epsilon(done), config, recorder)
        memory.add(rows_NW, priorities(errors(q, old_q, rows_NW), config.alpha))
        with recorder.waiting():
            world.barrier()  # so that the wait for slow environments is counted by itself
        for _ in range(config.num_updates):
            if recorder.num_updates % config.copy_every == 0:
                old_q.load_state_dict(q.state_dict())
            beta = config.beta + (1 - config.beta) * done
            sample = memory.sample(config.batch, beta)
            optimizer.zero_grad()
            errors_B = backward(q, old_q, sample, config)
            with recorder.waiting():
                sum_gradients(q, world)
            memory.update(sample, priorities(errors_B, config.alpha))
            nn.utils.clip_grad_norm_(q.parameters(), config.max_norm)
            optimizer.step()
            recorder.num_updates += 1
    return recorder.history(q)


@torch.no_grad()
def act(
    q: QNetwork,
    environments: Environments,
    epsilon: float,
    config: DQNConfig,
    recorder: Recorder,
) -> Tensor:
    """Act until the steps are made or the deadline is over, once at least; return the rows."""
    began_s = time.perf_counter()
    steps: list[tuple[Tensor, ...]] = []
    for uniform_E in environments.uniforms(config.num_steps):
        if steps and time.perf_counter() - began_s > config.deadline_s:
            break
        before_EO = environments.observations_EO.to(config.dtype)
        values_EA = q(before_EO)
        # The same number decides whether an action is random, and which one it then is.
        random_E = (uniform_E / max(epsilon, 1e-9) * values_EA.shape[1]).long()
        actions_E = torch.where(uniform_E < epsilon, random_E, values_EA.argmax(1))
        step = environments.step(actions_E.tolist())
        recorder.stepped(len(environments), step.finished)
        discount_E = config.gamma * (~step.ended_E).to(config.dtype)
        after_EO = environments.observations_EO.to(config.dtype, copy=True)
        for place, observation_O in step.cut_off.items():  # no end: it would have gone on
            discount_E[place], after_EO[place] = config.gamma, observation_O
        rewards_E = step.rewards_E.to(config.dtype)
        steps.append((before_EO, actions_E, rewards_E, discount_E, after_EO, step.ended_E))
    before, actions, rewards, discounts, after, ended = map(torch.stack, zip(*steps, strict=True))
    look_ahead(rewards, discounts, after, ended, config.num_ahead)
    columns = (each.to(config.dtype)[:, :, None] for each in (actions, rewards, discounts))
    return torch.cat([before, *columns, after], 2).flatten(0, 1)


def look_ahead(
    rewards_TE: Tensor, discounts_TE: Tensor, after_TEO: Tensor, ended_TE: Tensor, num_ahead: int
) -> None:
    """Make transitions of one step transitions of `num_ahead` steps, in place."""
    first = (rewards_TE.clone(), discounts_TE.clone(), after_TEO.clone())
    goes_on_TE = ~ended_TE
    for ahead in range(1, min(num_ahead, len(rewards_TE))):
        rewards, discounts, after = (each[ahead:] for each in first)
        goes_on = goes_on_TE[:-ahead]  # until here; a row near the end has fewer steps
        rewards_TE[:-ahead] += goes_on * discounts_TE[:-ahead] * rewards
        discounts_TE[:-ahead] *= torch.where(goes_on, discounts, 1.0)
        after_TEO[:-ahead] = torch.where(goes_on[:, :, None], after, after_TEO[:-ahead])
        goes_on_TE[:-ahead] &= ~ended_TE[ahead:]


def errors(q: QNetwork, old_q: QNetwork, rows_NW: Tensor) -> Tensor:
    """Return the errors of double DQN, (N,). Gradients flow into Q of the action taken only."""
    its = Transitions.of(rows_NW)
    with torch.no_grad():
        chosen = q(its.after).argmax(1, keepdim=True)
        targets = its.rewards + its.discounts * old_q(its.after).gather(1, chosen)[:, 0]
    return targets - q(its.observations).gather(1, its.actions)[:, 0]


def backward(q: QNetwork, old_q: QNetwork, sample: Sample, config: DQNConfig) -> Tensor:
    """Compute the gradients of this rank's part of the loss; return its errors, (B,)."""
    errors_B = errors(q, old_q, sample.rows_BW)
    losses_B = F.huber_loss(errors_B, torch.zeros_like(errors_B), reduction="none")
    ((sample.weights_B * losses_B).sum() / config.batch).backward()
    return errors_B.detach()


def priorities(errors_N: Tensor, alpha: float) -> Tensor:
    """Return a priority for each error, (N,), in float64."""
    return (errors_N.detach().abs().double() + _LEAST_ERROR) ** alpha
