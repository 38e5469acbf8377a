"""Reinforcement learning on CartPole: samples and minutes to a threshold, and idle time by rank.

    PPO            data parallelism, 2 ranks (labkit/rl/ppo.py)
    single file    PPO in one process, in the style of the well-known single-file programs, written
                   from the papers: torch's Adam, gymnasium's vector environment, minibatches drawn
                   from all samples, each with its own mean of the advantages, an episode that is
                   cut off counts as one that ended; settings as PPO's
    IMPALA         a learner and 2 actors (labkit/rl/impala.py)
    A3C            a server and 2 workers (labkit/rl/a3c.py)
    DQN            prioritised replay in shards, 2 ranks (labkit/rl/dqn.py)

Written down before tuning:

    threshold      a mean return of 475 over 100 episodes in a row, in training, with drawn actions
    seeds          1, 2, 3, 4, 5; settings are tuned on seed 0. The median counts
    samples        at most 200,000 for PPO, 500,000 for IMPALA and A3C, and 60,000 for DQN
    asked          the median of PPO and of IMPALA reaches it; the others are reported
    minutes        on 2 cores, of the whole training, annealing included

Then one slow environment: it sleeps 5 ms before each of its steps. The share of time in which each
rank waits, and the samples of each rank. Then old weights: versions are published every 20 updates
only, with and without V-trace's correction, at the same seeds.

    python benchmarks/rl.py                            everything, about 25 minutes
    python benchmarks/rl.py PPO IMPALA --seeds 1       some, with some seeds
    python benchmarks/rl.py --file runs.jsonl          runs that the file has are not made again
"""

import json
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import gymnasium
import torch
from measure import command_line, machine
from torch import Tensor, nn

import labkit
from labkit import arguments
from labkit.rl import a3c, dqn, impala, ppo
from labkit.rl.actor_critic import ActorCritic, RLConfig
from labkit.rl.environments import Sizes, cart_pole, slow_cart_pole
from labkit.rl.history import History, Recorder

THRESHOLD, SEEDS = 475, (1, 2, 3, 4, 5)
PPO = ppo.PPOConfig(num_samples=100_000)
A3C = RLConfig(num_samples=400_000, num_environments=16)
IMPALA = impala.ImpalaConfig(num_samples=400_000, num_environments=16)
DQN = dqn.DQNConfig(num_samples=60_000)
TIMEOUT_S = 1500


def single_file_ppo(world: labkit.Group, config: ppo.PPOConfig) -> History:
    """Train in this process alone. Everything is drawn from torch's global generator."""
    torch.manual_seed(config.seed)
    environments = gymnasium.make_vec(
        "CartPole-v1",
        num_envs=config.num_environments,
        vectorization_mode="sync",
        vector_kwargs={"autoreset_mode": gymnasium.vector.AutoresetMode.SAME_STEP},
    )
    agent = ActorCritic(Sizes(4, 2), config.seed)
    adam = torch.optim.Adam(agent.parameters(), lr=config.learning_rate, eps=1e-5)
    shape = config.num_steps, config.num_environments
    obs, actions = torch.zeros(*shape, 4), torch.zeros(shape, dtype=torch.long)
    logprobs, rewards, dones, values = (torch.zeros(shape) for _ in range(4))
    recorder = Recorder(world)
    totals = torch.zeros(config.num_environments)
    next_obs = torch.as_tensor(environments.reset(seed=config.seed)[0])
    next_done = torch.zeros(config.num_environments)
    for iteration in range(config.num_iterations):
        adam.param_groups[0]["lr"] = config.learning_rate * (1 - iteration / config.num_iterations)
        for t in range(config.num_steps):
            obs[t], dones[t] = next_obs, next_done
            with torch.no_grad():
                distribution = torch.distributions.Categorical(logits=agent.actor(next_obs))
                actions[t] = distribution.sample()
                logprobs[t] = distribution.log_prob(actions[t])
                values[t] = agent.values(next_obs)
            stepped = environments.step(actions[t].numpy())
            next_obs, reward = torch.as_tensor(stepped[0]), torch.as_tensor(stepped[1]).float()
            next_done = torch.as_tensor(stepped[2] | stepped[3]).float()
            rewards[t] = reward
            totals += reward
            recorder.stepped(config.num_environments, totals[next_done.bool()].tolist())
            totals *= 1 - next_done
        advantages = _advantages(rewards, dones, values, agent, next_obs, next_done, config)
        returns = advantages + values
        flat = [each.flatten(0, 1) for each in (obs, actions, logprobs, advantages, returns)]
        for _ in range(config.num_epochs):
            order = torch.randperm(len(flat[1]))
            for rows in order.tensor_split(config.num_minibatches):
                _update(agent, adam, [each[rows] for each in flat], config)
                recorder.num_updates += 1
    return recorder.history(agent)


@torch.no_grad()
def _advantages(
    rewards: Tensor,
    dones: Tensor,
    values: Tensor,
    agent: ActorCritic,
    next_obs: Tensor,
    next_done: Tensor,
    config: ppo.PPOConfig,
) -> Tensor:
    next_value, advantages, last = agent.values(next_obs), torch.zeros_like(rewards), 0
    for t in reversed(range(config.num_steps)):
        goes_on = 1 - (dones[t + 1] if t + 1 < config.num_steps else next_done)
        following = values[t + 1] if t + 1 < config.num_steps else next_value
        delta = rewards[t] + config.gamma * following * goes_on - values[t]
        advantages[t] = last = delta + config.gamma * config.lam * goes_on * last
    return advantages


def _update(
    agent: ActorCritic, adam: torch.optim.Adam, minibatch: list[Tensor], config: ppo.PPOConfig
) -> None:
    obs, actions, logprobs, advantages, returns = minibatch
    distribution = torch.distributions.Categorical(logits=agent.actor(obs))
    ratio = (distribution.log_prob(actions) - logprobs).exp()
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    clipped = ratio.clamp(1 - config.clip, 1 + config.clip)
    policy_loss = torch.max(-advantages * ratio, -advantages * clipped).mean()
    value_loss = 0.5 * (agent.values(obs) - returns).square().mean()
    entropy = distribution.entropy().mean()
    loss = policy_loss + config.value_weight * value_loss - config.entropy_weight * entropy
    adam.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(agent.parameters(), config.max_norm)
    adam.step()


Train = Callable[..., History]
CANDIDATES: dict[str, tuple[Train, int, RLConfig]] = {
    "PPO": (ppo.train, 2, PPO),
    "single file": (single_file_ppo, 1, PPO),
    "IMPALA": (impala.train, 3, IMPALA),
    "A3C": (a3c.train, 3, A3C),
    "DQN": (dqn.train, 2, DQN),
}


@dataclass(frozen=True)
class Solved:
    """One training."""

    name: str
    seed: int
    samples: int | None
    """Samples until the threshold; None: it was not reached."""
    minutes: float
    """Minutes of the whole training."""
    samples_per_s: float
    updates_per_s: float
    best: float
    """The highest mean return of 100 episodes."""
    last: float
    staleness: float
    idle: list[float]


def trained(name: str, seed: int, train: Train, num_ranks: int, config: RLConfig) -> Solved:
    """Train once."""
    settings = replace(config, seed=seed)
    history = labkit.run(train, num_ranks, (settings,), timeout=TIMEOUT_S).values[0]
    reached, means = history.reached(THRESHOLD), history.mean_returns()
    return Solved(
        name,
        seed,
        reached and reached.samples,
        history.seconds / 60,
        history.samples_per_s,
        history.updates_per_s,
        max(each.total for each in means),
        means[-1].total,
        statistics.fmean(history.staleness or [0]),
        [round(each, 3) for each in history.idle_shares],
    )


class Runs:
    """Runs that were made, in a file if there is one."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        lines = path.read_text().splitlines() if path and path.exists() else []
        self._made = [Solved(**json.loads(line)) for line in lines]

    def get(self, name: str, seed: int, train: Train, num_ranks: int, config: RLConfig) -> Solved:
        """Return the run of this name and seed, made now if need be."""
        for each in self._made:
            if (each.name, each.seed) == (name, seed):
                return each
        made = trained(name, seed, train, num_ranks, config)
        if self._path:
            with self._path.open("a") as file:
                file.write(json.dumps(asdict(made)) + "\n")
        return made


def report(name: str, runs: list[Solved]) -> bool:
    """Print a line; return whether the median run reached the threshold."""
    samples = sorted(each.samples or float("inf") for each in runs)
    middle = samples[len(samples) // 2]
    minutes = sorted(each.minutes for each in runs)
    print(
        f"  {name:<18}{_count(middle):>9} ({_count(samples[0])} to {_count(samples[-1])})"
        f"{statistics.median(minutes):>7.1f} min ({minutes[0]:.1f} to {minutes[-1]:.1f})"
        f"{statistics.median(each.samples_per_s for each in runs):>8.0f} samples/s"
        f"{statistics.median(each.updates_per_s for each in runs):>6.0f} updates/s"
        f"  staleness {statistics.fmean(each.staleness for each in runs):.1f}"
        f"  last 100: {statistics.median(each.last for each in runs):.0f}",
        flush=True,
    )
    return middle < float("inf")


def _count(samples: float) -> str:
    return "never" if samples == float("inf") else f"{samples:,.0f}"


def slow_actor() -> None:
    """Print idle time by rank, without and with an environment that sleeps."""
    few: dict[str, tuple[Train, int, Any]] = {
        "PPO": (ppo.train, 3, replace(PPO, num_samples=12_000, num_environments=9)),
        "A3C": (a3c.train, 4, replace(A3C, num_samples=12_000, num_environments=9)),
        "IMPALA": (impala.train, 4, replace(IMPALA, num_samples=12_000, num_environments=9)),
        "DQN": (dqn.train, 3, replace(DQN, num_samples=4_500, num_environments=9)),
        "DQN 50 ms": (
            dqn.train,
            3,
            replace(DQN, num_samples=4_500, num_environments=9, deadline_s=0.05),
        ),
    }
    for name, (train, num_ranks, config) in few.items():
        for words, make in (("equal", cart_pole), ("env 8 sleeps", slow_cart_pole({8: 0.005}))):
            run = labkit.run(train, num_ranks, (config, make), timeout=TIMEOUT_S)
            history = run.values[0]
            stale = statistics.fmean(history.staleness or [0])
            print(
                f"  {name:<8}{words:<14}{history.samples_per_s:>7.0f} samples/s  idle "
                f"{', '.join(f'{share:.0%}' for share in history.idle_shares)}  samples "
                f"{history.samples_by_rank}  staleness {stale:.1f}",
                flush=True,
            )


OLD_WEIGHTS = replace(IMPALA, num_samples=300_000, publish_every=20)


def main() -> None:
    """Print the tables."""
    parser = command_line(__doc__)
    known = [*CANDIDATES, "slow actor", "old weights"]
    parser.add_argument("what", nargs="*", default=known, help=f"some of {known}")
    parser.add_argument("--seeds", nargs="+", type=arguments.count, default=SEEDS)
    parser.add_argument("--file", type=Path, help="runs that it has are not made again")
    chosen = parser.parse_args()
    if unknown := set(chosen.what) - set(known):
        parser.error(f"{', '.join(unknown)}: choose among {known}")
    runs, seeds = Runs(chosen.file), chosen.seeds
    print(f"CartPole, seeds {seeds}. {machine()}")
    print(f"Samples until a mean return of {THRESHOLD} over 100 episodes: median (all)")
    for name, candidate in CANDIDATES.items():
        if name in chosen.what:
            report(name, [runs.get(name, seed, *candidate) for seed in seeds])
    if "old weights" in chosen.what:
        print(f"Versions published every {OLD_WEIGHTS.publish_every} updates")
        for name, corrects in (("V-trace", True), ("not corrected", False)):
            config = replace(OLD_WEIGHTS, corrects=corrects)
            report(name, [runs.get(name, seed, impala.train, 3, config) for seed in seeds])
    if "slow actor" in chosen.what:
        print("One slow environment")
        slow_actor()


if __name__ == "__main__":
    main()
