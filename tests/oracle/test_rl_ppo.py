"""PPO under data parallelism against one process with the same experience, in another form."""

import gymnasium
import pytest
import torch

from labkit import RankError, run
from labkit.rl import ppo
from labkit.rl.actor_critic import ActorCritic
from labkit.rl.environments import Environments

# Five environments divide by none of 2, 3 and 4. In float64 only the order of adding is left.
CONFIG = ppo.PPOConfig(
    num_environments=5,
    num_steps=12,
    num_samples=2 * 5 * 12,
    num_epochs=2,
    num_minibatches=5,
    entropy_weight=0.02,
    lam=0.7,
    seed=3,
    dtype=torch.float64,
)
TOLERANCE = 1e-9


def short(number):
    """A pole may fall after 8 steps, and the 12th step is the last."""
    return gymnasium.make("CartPole-v1", max_episode_steps=12)


def serial(config):
    """All environments in one process: a loop over samples, and torch's Adam."""
    environments = Environments(range(config.num_environments), config.seed, short)
    policy = ActorCritic(environments.sizes, config.seed, config.dtype)
    adam = torch.optim.Adam(policy.parameters(), lr=0.0, eps=1e-5)
    returns = []
    for iteration in range(config.num_iterations):
        adam.param_groups[0]["lr"] = config.learning_rate * (1 - iteration / config.num_iterations)
        steps = []
        for uniforms in environments.uniforms(config.num_steps):
            seen = environments.observations_EO
            with torch.no_grad():
                probabilities = policy.log_probs(seen).exp()
            actions = [int(u >= p[0]) for u, p in zip(uniforms, probabilities)]
            step = environments.step(actions)
            returns += step.finished
            steps.append((seen, actions, probabilities, step))
        advantage, target = targets_of(policy, steps, environments.observations_EO, config)
        flat = advantage.flatten()
        advantage = (advantage - flat.mean()) / (flat.std(correction=0) + 1e-8)
        for _ in range(config.num_epochs):
            orders = [
                torch.randperm(config.num_steps, generator=each).tolist()
                for each in environments.generators
            ]
            cuts = torch.arange(config.num_steps).tensor_split(config.num_minibatches)
            for cut in cuts:
                places = [(orders[e][k], e) for k in cut for e in range(config.num_environments)]
                losses = [loss_of(policy, steps, advantage, target, *at, config) for at in places]
                adam.zero_grad()
                torch.stack(losses).mean().backward()
                torch.nn.utils.clip_grad_norm_(policy.parameters(), config.max_norm)
                adam.step()
    return dict(policy.named_parameters()), returns


@torch.no_grad()
def targets_of(policy, steps, last, config):
    """Advantages as the sum that defines them, term by term; and returns."""
    values = [policy.values(seen) for seen, *_ in steps] + [policy.values(last)]
    advantage = torch.zeros(len(steps), len(last), dtype=config.dtype)
    for t in range(len(steps)):
        for e in range(len(last)):
            weight = 1.0
            for later in range(t, len(steps)):
                step = steps[later][3]
                future = values[later + 1][e]
                if step.ended_E[e]:
                    cut_off = step.cut_off.get(e)
                    future = 0.0 if cut_off is None else policy.values(cut_off)
                delta = step.rewards_E[e] + config.gamma * future - values[later][e]
                advantage[t, e] += weight * delta
                weight *= config.gamma * config.lam
                if step.ended_E[e]:
                    break
    return advantage, advantage + torch.stack(values[:-1])


def loss_of(policy, steps, advantage, target, t, e, config):
    """The loss of one sample."""
    seen, actions, before, _ = steps[t]
    probabilities = policy.log_probs(seen[e]).exp()
    ratio = probabilities[actions[e]] / before[e, actions[e]]
    gain = advantage[t, e]
    limit = 1 + config.clip if gain > 0 else 1 - config.clip
    surrogate = min(ratio * gain, limit * gain)
    entropy = -sum(p * p.log() for p in probabilities)
    error = policy.values(seen[e]) - target[t, e]
    return config.value_weight * error**2 / 2 - surrogate - config.entropy_weight * entropy


@pytest.fixture(scope="module")
def expected():
    return serial(CONFIG)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_ranks_with_uneven_shares_equal_one_process_with_the_same_experience(expected, world_size):
    parameters, returns = expected
    result = run(ppo.train, world_size, (CONFIG, short))
    for history in result.values:
        for name, parameter in parameters.items():
            assert (history.parameters[name] - parameter).abs().max() < TOLERANCE
        assert sorted(each.total for each in history.episodes) == sorted(returns)
    history = result.values[0]
    assert {12.0} < set(returns), "some poles fall, and some episodes are cut off"
    assert history.num_updates == 2 * 2 * 5
    shares = [len(CONFIG.share(rank, world_size)) for rank in range(world_size)]
    assert history.samples_by_rank == [24 * share for share in shares]
    # One message for all gradients of an update, and two numbers for each iteration.
    reduced = result.traffic[0].by_operation["all_reduce"]
    assert reduced.count == 20 + 2
    numel = sum(each.numel() for each in parameters.values())
    assert reduced.payload_bytes == 8 * (20 * numel + 2 * 2)


def test_a_rank_without_an_environment_is_refused():
    with pytest.raises(RankError, match="num_environments=2 on 3 ranks"):
        few = ppo.PPOConfig(num_environments=2, num_samples=64)
        run(ppo.train, 3, (few,))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"num_samples": 100}, "num_samples=100: one iteration of 8 environments takes 256"),
        ({"num_minibatches": 33}, "num_minibatches=33: 1 to num_steps=32"),
        ({"gamma": 1.5}, "gamma=1.5: 0 to 1"),
        ({"clip": 0}, "clip=0: above 0"),
    ],
)
def test_wrong_settings_are_refused(settings, words):
    with pytest.raises(ValueError, match=words):
        ppo.PPOConfig(**settings)
