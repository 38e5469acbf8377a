"""Rung 5: two agents, one reward. Values are learned together; each agent then acts alone.

    training     agent 0   observation -> Q_0 of its action -+
                                                             +-> mixer -> Q_tot, learned from the
                 agent 1   observation -> Q_1 of its action -+            reward of both
    execution    agent 0   observation -> argmax Q_0         no mixer, and no messages
                 agent 1   observation -> argmax Q_1

Both agents choose without seeing the other's action, and get the same reward. Three learners, which
differ only in what has to equal the reward and the value of the future:

    independent   Q_0, and Q_1: to each agent the other one is a part of the world, which changes
    vdn           Q_0 + Q_1
    qmix          w(s) . elu(W(s) [Q_0, Q_1] + b(s)) + v(s), with no weight of W or w below 0

In vdn and qmix Q_tot grows with Q_0 and with Q_1. So the action that is best for Q_0 together with
the one that is best for Q_1 is best for Q_tot: no agent needs to know the mixer.

An error that says "worse than expected" may come from the other agent's exploring. `caution` is the
weight of such errors. Below 1 an agent is optimistic: it remembers what an action was worth at the
other's better choices (hysteretic Q-learning; with qmix, its optimistic weighting).

Over ranks: episodes are dealt out, and gradients summed in one all-reduce. All ranks draw the
random numbers of all episodes, so any number of ranks plays and learns what one process does.
Layout: tables and mixer replicated; episodes sharded. Wire: 2(n-1)/n of the gradients' bytes per
rank and update; for execution see `execute`.

Suffixes: B episodes, S states, A actions of an agent, H hidden numbers, K values that are learned.
Papers: Sunehag et al., "Value-decomposition networks", arXiv:1706.05296; Rashid et al., "QMIX",
arXiv:1803.11485, and "Weighted QMIX", arXiv:2006.10800; Matignon et al., "Hysteretic Q-learning",
2007. Games: Claus and Boutilier, "The dynamics of reinforcement learning in cooperative multiagent
systems", 1998 (climbing, penalty); QMIX (two steps).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from labkit import arguments
from labkit.comm import Group
from labkit.optimizer import AdamW
from labkit.rl.history import History, Recorder
from labkit.rl.ppo import sum_gradients

OVER = -1


class Game(NamedTuple):
    """A game of two agents. Play begins in state 0, which both observe."""

    rewards_SAA: Tensor  # by state, action of agent 0, action of agent 1
    next_SAA: Tensor  # the state that follows, or OVER
    best: float  # the largest return of all strategies


def matrix_game(rewards: list[list[float]]) -> Game:
    """Return a game of one step, by the rewards of agent 0's action (row) and agent 1's."""
    rewards_SAA = torch.tensor([rewards])
    return Game(rewards_SAA, torch.full(rewards_SAA.shape, OVER), rewards_SAA.max().item())


GAMES = {
    "climbing": matrix_game([[11.0, -30, 0], [-30, 7, 6], [0, 0, 5]]),
    "penalty": matrix_game([[10.0, 0, -30], [0, 2, 0], [-30, 0, 10]]),  # two optima to agree on
    "two steps": Game(  # agent 0 chooses the second state: always 7, or 8 if both choose action 1
        torch.tensor([[[0.0, 0], [0, 0]], [[7, 7], [7, 7]], [[0, 1], [1, 8]]]),
        torch.tensor([[[1, 1], [2, 2]], [[OVER] * 2] * 2, [[OVER] * 2] * 2]),
        best=8.0,
    ),
}


class Independent(nn.Module):
    """A table of values for each agent, (2, S, A). Each is learned from the reward alone."""

    def __init__(self, num_states: int, num_actions: int, seed: int, dtype: torch.dtype) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        first_2SA = torch.randn(2, num_states, num_actions, generator=generator) / 10
        self.tables_2SA = nn.Parameter(first_2SA.to(dtype))
        self.start(num_states, generator, dtype)

    def start(self, num_states: int, generator: torch.Generator, dtype: torch.dtype) -> None:
        """Make the mixer's parameters."""

    def totals(self, chosen_2B: Tensor, states_B: Tensor) -> Tensor:
        """Return the values that are learned from the reward, (K, B), from those of the actions."""
        return chosen_2B


class VDN(Independent):
    """Their sum is learned."""

    def totals(self, chosen_2B: Tensor, states_B: Tensor) -> Tensor:
        """Return Q_tot, (1, B)."""
        return chosen_2B.sum(0, keepdim=True)


class QMIX(Independent):
    """A network that grows with both values is learned. Its weights depend on the state."""

    hidden = 8

    def start(self, num_states: int, generator: torch.Generator, dtype: torch.dtype) -> None:
        """Make a row for each state: W (2, H), b (H), w (H) and v, one behind the other."""
        size = 4 * self.hidden + 1
        first = torch.randn(num_states, size, generator=generator) / 2
        self.mixer = nn.Parameter(first.to(dtype))

    def totals(self, chosen_2B: Tensor, states_B: Tensor) -> Tensor:
        """Return Q_tot, (1, B)."""
        sizes = [self.hidden] * 4 + [1]
        W0_BH, W1_BH, b_BH, w_BH, v_B1 = self.mixer[states_B].split(sizes, 1)
        q0_B1, q1_B1 = chosen_2B[:, :, None]
        hidden_BH = F.elu(W0_BH.abs() * q0_B1 + W1_BH.abs() * q1_B1 + b_BH)
        return ((w_BH.abs() * hidden_BH).sum(1) + v_B1[:, 0])[None]


LEARNERS: dict[str, type[Independent]] = {"independent": Independent, "vdn": VDN, "qmix": QMIX}


@dataclass(frozen=True, kw_only=True)
class AgentsConfig:
    """Settings of a training. TypeError and ValueError for a value that trains nothing."""

    learner: str = "vdn"  # one of LEARNERS
    num_updates: int = 400
    num_episodes: int = 32  # episodes of an update, over all ranks
    learning_rate: float = 0.1
    first_epsilon: float = 1.0  # share of random actions: it falls in a line
    last_epsilon: float = 0.05
    caution: float = 1.0  # weight of errors that say "worse than expected"
    seed: int = 0
    dtype: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        if self.learner not in LEARNERS:
            raise ValueError(f"learner={self.learner!r}: give one of {', '.join(LEARNERS)}")
        for name in ("num_updates", "num_episodes"):
            arguments.whole(name, getattr(self, name), "1 or more")
        arguments.number("learning_rate", self.learning_rate, "above 0; 0.1 is usual here", above=0)
        for name in ("first_epsilon", "last_epsilon", "caution"):
            arguments.number(name, getattr(self, name), "0 to 1", least=0, most=1)


class Plays(NamedTuple):
    """One step of B episodes."""

    states_B: Tensor
    actions_2B: Tensor
    rewards_B: Tensor
    next_B: Tensor


def train(world: Group, game: Game, config: AgentsConfig) -> History:
    """Train both agents; return the record of all ranks, and the parameters, on every rank."""
    num_states, num_actions, _ = game.rewards_SAA.shape
    agents = LEARNERS[config.learner](num_states, num_actions, config.seed, config.dtype)
    optimizer = AdamW(agents.parameters(), config.learning_rate, (0.9, 0.999), weight_decay=0.0)
    random = torch.Generator().manual_seed(config.seed)
    recorder = Recorder(world)
    epsilons = torch.linspace(config.first_epsilon, config.last_epsilon, config.num_updates)
    for epsilon in epsilons.tolist():
        # Equal on all ranks: for each step, agent and episode one number, and one for the action.
        drawn = torch.rand(num_states, 2, 2, config.num_episodes, generator=random)
        share = drawn.tensor_split(world.size, dim=3)[world.rank]
        steps = play(agents, game, epsilon, share, recorder)
        optimizer.zero_grad()
        losses = torch.stack([loss_sum(agents, each, config.caution) for each in steps])
        (losses.sum() / config.num_episodes).backward()
        with recorder.waiting():
            sum_gradients(agents, world)
        optimizer.step()
        recorder.num_updates += 1
    return recorder.history(agents)


@torch.no_grad()
def play(
    agents: Independent, game: Game, epsilon: float, drawn: Tensor, recorder: Recorder
) -> list[Plays]:
    """Play episodes to their ends; return their steps. drawn: (steps, 2, 2 agents, B)."""
    num_actions = game.rewards_SAA.shape[1]
    states_B = torch.zeros(drawn.shape[3], dtype=torch.int64)
    returns_B = torch.zeros(len(states_B))
    places_B = torch.arange(len(states_B))
    steps = []
    for whether_2B, which_2B in drawn:
        best_2B = agents.tables_2SA[:, states_B].argmax(2)
        random_2B = (which_2B[:, places_B] * num_actions).long()
        actions_2B = torch.where(whether_2B[:, places_B] < epsilon, random_2B, best_2B)
        rewards_B = game.rewards_SAA[states_B, *actions_2B]
        next_B = game.next_SAA[states_B, *actions_2B]
        steps.append(Plays(states_B, actions_2B, rewards_B, next_B))
        returns_B[places_B] += rewards_B
        recorder.stepped(len(states_B), returns_B[places_B[next_B == OVER]].tolist())
        states_B, places_B = next_B[next_B != OVER], places_B[next_B != OVER]
        if not len(states_B):
            break
    return steps


def loss_sum(agents: Independent, plays: Plays, caution: float) -> Tensor:
    """Return the sum of squared errors of a step; `caution` weighs those below 0."""
    with torch.no_grad():
        next_B = plays.next_B.clamp(min=0)
        future_KB = agents.totals(agents.tables_2SA[:, next_B].amax(2), next_B)
        targets_KB = plays.rewards_B + torch.where(plays.next_B == OVER, 0, future_KB)
    agents_21 = torch.arange(2)[:, None]
    chosen_2B = agents.tables_2SA[agents_21, plays.states_B, plays.actions_2B]
    errors_KB = targets_KB - agents.totals(chosen_2B, plays.states_B)
    weighted_KB = torch.where(errors_KB < 0, caution * errors_KB, errors_KB)
    return (weighted_KB * errors_KB).sum() / 2


def greedy_return(game: Game, tables_2SA: Tensor) -> float:
    """Return the return of an episode in which both agents choose their best actions."""
    state, total = 0, 0.0
    while state != OVER:
        place = (state, *tables_2SA[:, state].argmax(1).tolist())
        total, state = total + float(game.rewards_SAA[place]), int(game.next_SAA[place])
    return total


def execute(world: Group, game: Game, tables_2SA: Tensor) -> float | None:
    """Play an episode on three ranks: the agents are ranks 0 and 1, and rank 2 is the world.

    Returns the return on rank 2, None on the agents. An agent uses its own table only, and receives
    the state from rank 2. Wire: 8 bytes there and back, per step and agent; none between agents.
    """
    number = torch.zeros(1, dtype=torch.int64)
    if world.rank < 2:
        while (state := int(world.recv(number, src=2))) != OVER:
            world.send(tables_2SA[world.rank, state].argmax(0, keepdim=True), dst=2)
        return None
    state, total = 0, 0.0
    while True:
        for agent in (0, 1):
            world.send(torch.tensor([state]), dst=agent)
        if state == OVER:
            return total
        place = (state, *(int(world.recv(number, src=agent)) for agent in (0, 1)))
        total, state = total + float(game.rewards_SAA[place]), int(game.next_SAA[place])
