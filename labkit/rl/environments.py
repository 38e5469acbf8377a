"""Environments that step together: gymnasium's CartPole, and one that is slow on purpose.

    actions (E,) -> | env 0 | env 1 | env 2 |   one after the other, in this process
                        |       |       |
    observations (E, O), rewards (E,), ended (E,)

An environment whose episode has ended starts the next one at once: the observation is then the
first of the new episode. There are two ends. A terminal state has no future. An episode that is
cut off has one, such as CartPole's after 500 steps, so its last observation is kept: a learner
adds its value to the last reward (actor_critic.py).

Every environment has a number, and random numbers of its own that depend on this number and the
seed alone. So it does the same on whichever rank it is, and a run on three ranks collects what one
process with all environments collects.

`make` is a function from a number to a gymnasium environment. `cart_pole` is one. `slow_cart_pole`
makes another, which is how a slow actor enters a run: no algorithm of this room knows of it.
Paper: Barto, Sutton and Anderson, "Neuronlike adaptive elements that can solve difficult learning
control problems", 1983 (CartPole); Towers et al., "Gymnasium", arXiv:2407.17032.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium
import torch
from torch import Tensor

Environment = gymnasium.Env[Any, Any]
Make = Callable[[int], Environment]
"""From an environment's number to the environment."""


def cart_pole(number: int) -> Environment:
    """Make a CartPole: a reward of 1 for each step in which the pole stands, 500 at most."""
    return gymnasium.make("CartPole-v1")


def slow_cart_pole(delay_s: Mapping[int, float]) -> Make:
    """Return a `make` of CartPoles, some of which take longer for a step.

    delay_s: by environment number, seconds that each of its steps sleeps, {3: 0.005}.
    """

    def make(number: int) -> Environment:
        return Slow(cart_pole(number), delay_s.get(number, 0.0))

    return make


class Slow(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment that sleeps before each step, as one does that waits for another program."""

    def __init__(self, environment: Environment, delay_s: float) -> None:
        super().__init__(environment)
        self.delay_s = delay_s

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Sleep, and step."""
        if self.delay_s:
            time.sleep(self.delay_s)
        return super().step(action)


class Sizes(NamedTuple):
    """Numbers of an environment that a policy must know."""

    observation: int
    num_actions: int


def sizes_of(environment: Environment) -> Sizes:
    """Return the length of an observation and the number of actions.

    ValueError for an environment without a vector of observations and a list of actions.
    """
    shape = environment.observation_space.shape
    num_actions = getattr(environment.action_space, "n", None)
    if shape is None or len(shape) != 1 or num_actions is None:
        raise ValueError(
            f"{environment}: observations {environment.observation_space}, actions "
            f"{environment.action_space}; the policies here need a vector and a Discrete space"
        )
    return Sizes(shape[0], int(num_actions))


class Step(NamedTuple):
    """Results of a step of E environments."""

    rewards_E: Tensor
    ended_E: Tensor
    """True where the episode ended, by a terminal state or cut off."""
    cut_off: dict[int, Tensor]
    """By place among the E: the last observation, (O,), of an episode that was cut off."""
    finished: list[float]
    """Returns of the episodes that ended."""


class Environments:
    """Environments of one rank. `observations_EO` are the newest."""

    def __init__(self, numbers: Sequence[int], seed: int, make: Make = cart_pole) -> None:
        """Make and reset the environments of these numbers. float32 observations."""
        self._all = [make(number) for number in numbers]
        seeds = [seed * 10_007 + number for number in numbers]
        self.generators = [torch.Generator().manual_seed(each) for each in seeds]
        """One for each environment: actions and minibatches are drawn with it."""
        first = [each.reset(seed=own)[0] for each, own in zip(self._all, seeds, strict=True)]
        self.observations_EO = torch.stack([torch.as_tensor(each) for each in first])
        self._totals = [0.0] * len(self)

    def __len__(self) -> int:
        return len(self._all)

    @property
    def sizes(self) -> Sizes:
        """Length of an observation and number of actions."""
        return sizes_of(self._all[0])

    def uniforms(self, num_steps: int) -> Tensor:
        """Draw (num_steps, E) numbers in [0, 1), each column by its environment's generator."""
        drawn = [torch.rand(num_steps, generator=each) for each in self.generators]
        return torch.stack(drawn, dim=1)

    def step(self, actions: Sequence[int]) -> Step:
        """Step each environment; one whose episode ends starts the next."""
        rewards, ended, finished = [], [], []
        cut_off: dict[int, Tensor] = {}
        observations = []
        for place, (environment, action) in enumerate(zip(self._all, actions, strict=True)):
            observation, reward, is_terminal, is_cut_off, _ = environment.step(action)
            rewards.append(float(reward))
            ended.append(is_terminal or is_cut_off)
            self._totals[place] += rewards[-1]
            if ended[-1]:
                if not is_terminal:
                    cut_off[place] = torch.as_tensor(observation)
                finished.append(self._totals[place])
                self._totals[place] = 0.0
                observation = environment.reset()[0]
            observations.append(torch.as_tensor(observation))
        self.observations_EO = torch.stack(observations)
        return Step(torch.tensor(rewards), torch.tensor(ended), cut_off, finished)
