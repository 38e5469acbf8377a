"""Environments that step together, advantages, and the record of a training."""

from types import SimpleNamespace

import gymnasium
import pytest
import torch

from labkit.rl import environments as module
from labkit.rl.actor_critic import ActorCritic, RLConfig, Rollout, advantages, draw
from labkit.rl.environments import Environments, cart_pole, sizes_of, slow_cart_pole
from labkit.rl.history import Episode, History


def walk(numbers, num_steps=40, make=cart_pole, seed=0):
    """Observations (num_steps, E, O), with actions drawn by each environment's generator."""
    environments = Environments(numbers, seed, make)
    seen = []
    for uniform in environments.uniforms(num_steps):
        environments.step((uniform > 0.5).int().tolist())
        seen.append(environments.observations_EO)
    return torch.stack(seen)


def test_an_environment_does_the_same_whichever_others_are_beside_it():
    together = walk(range(4))
    assert torch.equal(together[:, 2:], walk([2, 3]))
    assert not torch.equal(together[:, 0], together[:, 1])
    assert not torch.equal(together, walk(range(4), seed=1))


def test_an_episode_that_ends_is_followed_by_the_next():
    environments = Environments([0], 0)
    lengths, length = [], 0
    for _ in range(60):
        step = environments.step([1])  # always to the right: the pole falls within 12 steps
        length += 1
        assert step.rewards_E.tolist() == [1.0]
        if step.ended_E[0]:
            assert step.finished == [length] and not step.cut_off
            assert environments.observations_EO.abs().max() < 0.05, "the first of an episode"
            lengths.append(length)
            length = 0
    assert len(lengths) >= 4


def test_an_episode_that_is_cut_off_leaves_its_last_observation():
    environments = Environments(
        [0, 1], 0, lambda number: gymnasium.make("CartPole-v1", max_episode_steps=3 + number)
    )
    steps = [environments.step([0, 1]) for _ in range(4)]
    assert [list(each.cut_off) for each in steps] == [[], [], [0], [1]]
    assert steps[2].cut_off[0][1] < -0.3, "three pushes to the left, and not the first of the next"
    assert steps[2].ended_E.tolist() == [True, False]


def test_a_slow_environment_sleeps_and_does_the_same(monkeypatch):
    slept = []
    monkeypatch.setattr(module, "time", SimpleNamespace(sleep=slept.append))
    assert torch.equal(walk(range(3), 5, slow_cart_pole({1: 0.25})), walk(range(3), 5))
    assert slept == [0.25] * 5


def test_only_vectors_and_discrete_actions_have_sizes():
    assert sizes_of(cart_pole(0)) == (4, 2)
    with pytest.raises(ValueError, match="need a vector and a Discrete space"):
        sizes_of(gymnasium.make("Pendulum-v1"))


def test_actions_are_drawn_with_their_probabilities():
    log_probs = torch.tensor([0.25, 0.5, 0.25]).log().expand(4, 3)
    assert draw(log_probs, torch.tensor([0.0, 0.25, 0.7, 0.9999])).tolist() == [0, 1, 1, 2]


def test_a_policy_depends_on_its_seed_alone():
    first, same, other = (ActorCritic(sizes_of(cart_pole(0)), seed) for seed in (0, 0, 1))
    assert all(map(torch.equal, first.parameters(), same.parameters()))
    assert not torch.equal(first.actor[0].weight, other.actor[0].weight)
    probabilities = first.log_probs(torch.randn(50, 4)).exp()
    assert (probabilities - 0.5).abs().max() < 0.05, "it begins by trying everything"


def test_advantages_are_the_discounted_sums_of_errors_up_to_an_end():
    ended = torch.tensor([[0, 1], [1, 0], [0, 0], [0, 0]]).bool()
    rewards, values = torch.rand(4, 2), torch.rand(4, 2)
    last = torch.rand(2)
    rollout = Rollout(*[torch.empty(0)] * 3, rewards, ended, torch.empty(0))
    found = advantages(rollout, values, last, gamma=0.9, lam=0.5)
    for e in range(2):
        following = [*values[1:, e], last[e]]
        for t in range(4):
            total = 0.0
            for later in range(t, 4):
                future = 0.0 if ended[later, e] else 0.9 * following[later]
                total += 0.45 ** (later - t) * (rewards[later, e] + future - values[later, e])
                if ended[later, e]:
                    break
            assert found[t, e].item() == pytest.approx(float(total), abs=1e-6)


def test_shares_of_environments_differ_by_one_at_most():
    shares = [list(RLConfig(num_environments=7).share(rank, 3)) for rank in range(3)]
    assert [len(each) for each in shares] == [2, 2, 3] and sum(shares, []) == list(range(7))


def test_a_threshold_is_reached_by_the_mean_of_a_whole_window():
    episodes = [Episode(10 * n, n / 2, float(n), 0) for n in range(1, 9)]
    history = History(episodes, 4.0, 6, [60, 20], [1.0, 3.0], [], {})
    assert [each.total for each in history.mean_returns(4)] == [2.5, 3.5, 4.5, 5.5, 6.5]
    assert history.reached(4.5, 4) == (60, 3.0, 4.5, 0)
    assert history.reached(7.0, 4) is None and history.reached(1.0, 9) is None
    assert history.num_samples == 80 and history.samples_per_s == 20
    assert history.updates_per_s == 1.5 and history.idle_shares == [0.25, 0.75]
