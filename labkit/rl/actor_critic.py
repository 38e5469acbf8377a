"""A small policy with a value function, rollouts of it, and advantages.

    observation (O,) -+-> tanh, tanh -> log-probabilities of the actions (A,)    the actor
                      +-> tanh, tanh -> value: the expected return from here     the critic

    rollout     T steps of E environments with one version of the policy

                  t = 0   o a r    o a r    o a r        log-probability of each action
                      1   o a r    o a r    o a r        as the policy had it that acted
                            ...
                    last  o        o        o            observations after the last step

    advantage   how much better an action was than the critic expected

                  d_t = r_t + gamma V(o_t+1) - V(o_t)              0 for V after an end
                  A_t = d_t + gamma lambda A_t+1                   starts again after an end

lambda = 0 trusts the critic after one step, lambda = 1 the rewards until the end of the rollout.
A return is A_t + V(o_t): the critic learns it.

An episode that was cut off would have gone on, so gamma V(last observation) is added to its last
reward. After that, both kinds of end are treated alike.

Suffixes: T steps, E environments, O numbers of an observation, A actions, N samples of any order.
Papers: Mnih et al., "Asynchronous methods for deep reinforcement learning", arXiv:1602.01783;
Schulman et al., "High-dimensional continuous control using generalized advantage estimation",
arXiv:1506.02438; Pardo et al., "Time limits in reinforcement learning", arXiv:1712.00378.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from labkit import arguments
from labkit.rl.environments import Environments, Sizes
from labkit.rl.history import Recorder

HIDDEN = 64
_EXPLORING = 0.01  # an actor with a small last layer begins with almost equal probabilities


@dataclass(frozen=True, kw_only=True)
class RLConfig:
    """Settings that all rungs share. TypeError and ValueError for a value that trains nothing."""

    num_environments: int = 8  # over all ranks that act
    num_steps: int = 32  # steps of each environment, in a rollout
    num_samples: int = 100_000  # environment steps of all ranks, after which training ends
    learning_rate: float = 1e-3
    gamma: float = 0.98  # the value of a reward that comes a step later
    value_weight: float = 0.5  # weight of the critic's loss
    entropy_weight: float = 0.01  # weight of the entropy, which keeps the actor exploring
    max_norm: float = 0.5  # a longer gradient is scaled down to this norm
    seed: int = 0  # for parameters, environments and actions
    dtype: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        for name in ("num_environments", "num_steps", "num_samples"):
            arguments.whole(name, getattr(self, name), "1 or more")
        arguments.number("learning_rate", self.learning_rate, "above 0; 1e-3 is usual", above=0)
        arguments.number("gamma", self.gamma, "0 to 1; 0.98 is usual here", least=0, most=1)
        arguments.number("value_weight", self.value_weight, "0 or more", least=0)
        arguments.number("entropy_weight", self.entropy_weight, "0 or more", least=0)
        arguments.number("max_norm", self.max_norm, "above 0; 0.5 is usual", above=0)
        arguments.whole("seed", self.seed, "0 or more", least=0)

    def share(self, rank: int, num_ranks: int) -> range:
        """Return the numbers of the environments of one of the ranks that act.

        Shares differ by 1 at most. ValueError where a rank would have none.
        """
        if num_ranks > self.num_environments:
            raise ValueError(
                f"num_environments={self.num_environments} on {num_ranks} ranks that act: each "
                f"needs one, so give {num_ranks} or more"
            )
        first, after = (self.num_environments * each // num_ranks for each in (rank, rank + 1))
        return range(first, after)


class ActorCritic(nn.Module):
    """Two networks of two hidden layers each. Their initial parameters depend on the seed alone."""

    def __init__(self, sizes: Sizes, seed: int, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.actor = _layers(sizes.observation, sizes.num_actions, _EXPLORING, generator).to(dtype)
        self.critic = _layers(sizes.observation, 1, 1.0, generator).to(dtype)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of parameters, log-probabilities and values."""
        return next(self.parameters()).dtype

    def log_probs(self, observations: Tensor) -> Tensor:
        """Return the log-probability of each action: (..., O) -> (..., A)."""
        logits: Tensor = self.actor(observations.to(self.dtype))
        return logits.log_softmax(-1)

    def values(self, observations: Tensor) -> Tensor:
        """Return the value of each observation: (..., O) -> (...)."""
        values: Tensor = self.critic(observations.to(self.dtype))
        return values.squeeze(-1)

    def forward(self, observations: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return log-probability of the action taken, entropy and value, each (...)."""
        log_probs = self.log_probs(observations)
        taken = log_probs.gather(-1, actions[..., None]).squeeze(-1)
        entropy = -(log_probs.exp() * log_probs).sum(-1)
        return taken, entropy, self.values(observations)


def _layers(inputs: int, outputs: int, gain: float, generator: torch.Generator) -> nn.Sequential:
    layers: list[nn.Module] = []
    for size, gain_here in ((HIDDEN, math.sqrt(2)), (HIDDEN, math.sqrt(2)), (outputs, gain)):
        linear = nn.Linear(inputs, size)
        nn.init.orthogonal_(linear.weight, gain_here, generator=generator)
        nn.init.zeros_(linear.bias)
        layers += [linear, nn.Tanh()]
        inputs = size
    return nn.Sequential(*layers[:-1])


class Rollout(NamedTuple):
    """T steps of E environments, with the log-probabilities of the policy that acted."""

    observations_TEO: Tensor
    actions_TE: Tensor
    log_probs_TE: Tensor
    rewards_TE: Tensor
    """With the value of the future of an episode that was cut off."""
    ended_TE: Tensor
    last_EO: Tensor
    """Observations after the last step."""


@torch.no_grad()
def collect(
    policy: ActorCritic,
    environments: Environments,
    num_steps: int,
    gamma: float,
    recorder: Recorder,
) -> Rollout:
    """Act for `num_steps` steps, with actions drawn by each environment's own generator."""
    observations, actions, log_probs, rewards, ended = [], [], [], [], []
    for uniform_E in environments.uniforms(num_steps):
        observations_EO = environments.observations_EO
        log_probs_EA = policy.log_probs(observations_EO)
        actions_E = draw(log_probs_EA, uniform_E)
        step = environments.step(actions_E.tolist())
        recorder.stepped(len(environments), step.finished)
        rewards_E = step.rewards_E.to(policy.dtype)
        for place, observation_O in step.cut_off.items():
            rewards_E[place] += gamma * policy.values(observation_O)
        observations.append(observations_EO)
        actions.append(actions_E)
        log_probs.append(log_probs_EA.gather(1, actions_E[:, None])[:, 0])
        rewards.append(rewards_E)
        ended.append(step.ended_E)
    return Rollout(
        torch.stack(observations),
        torch.stack(actions),
        torch.stack(log_probs),
        torch.stack(rewards),
        torch.stack(ended),
        environments.observations_EO,
    )


def draw(log_probs_EA: Tensor, uniform_E: Tensor) -> Tensor:
    """Return an action for each row, (E,): the first whose cumulative probability exceeds u."""
    below_EA = log_probs_EA.exp().cumsum(-1) <= uniform_E[:, None]
    return below_EA.sum(-1).clamp(max=log_probs_EA.shape[-1] - 1)


def advantages(
    rollout: Rollout, values_TE: Tensor, last_value_E: Tensor, gamma: float, lam: float
) -> Tensor:
    """Return generalised advantages, (T, E). lam: lambda, 0 to 1."""
    goes_on_TE = gamma * (~rollout.ended_TE).to(values_TE.dtype)
    next_TE = torch.cat([values_TE[1:], last_value_E[None]])
    advantage_E, found = torch.zeros_like(last_value_E), []
    for t in reversed(range(len(values_TE))):
        delta_E = rollout.rewards_TE[t] + goes_on_TE[t] * next_TE[t] - values_TE[t]
        advantage_E = delta_E + goes_on_TE[t] * lam * advantage_E
        found.append(advantage_E)
    return torch.stack(found[::-1])


def actor_critic_loss(
    log_probs: Tensor,
    entropy: Tensor,
    values: Tensor,
    targets: Tensor,
    advantages: Tensor,
    config: RLConfig,
) -> Tensor:
    """Return the mean loss of samples, (...) each; no gradient flows into the last two."""
    of_values = config.value_weight * (values - targets).square() / 2
    return (of_values - advantages * log_probs - config.entropy_weight * entropy).mean()
