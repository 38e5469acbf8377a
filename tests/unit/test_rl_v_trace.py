"""V-trace against the paper's sum, and the queue between actors and learner."""

import math
import threading

import pytest
import torch

from labkit.rl.actor_critic import Rollout, advantages
from labkit.rl.environments import Sizes
from labkit.rl.rollout_queue import BoundedQueue, Queued, packed, shapes_of, unpacked
from labkit.rl.v_trace import v_trace

T, E, GAMMA = 7, 3, 0.9


@pytest.fixture
def steps():
    """Random steps: log-ratios, rewards, ends, values, last values. Two episodes end inside."""
    generator = torch.Generator().manual_seed(0)
    log_ratios, rewards, values = torch.randn(3, T, E, dtype=torch.float64, generator=generator)
    ended = torch.zeros(T, E, dtype=torch.bool)
    ended[2, 0] = ended[5, 0] = ended[T - 1, 1] = True
    return log_ratios, rewards, ended, values, torch.randn(E, generator=generator).double()


def of_the_paper(log_ratios, rewards, ended, values, last, limit):
    """Remark: the sum over later steps t of gamma^(t-s) (c_s ... c_t-1) d_t, for one place."""
    v, advantage = torch.zeros(T, E).double(), torch.zeros(T, E).double()
    for e in range(E):
        following = [*values[1:, e], last[e]]
        ratios = [math.exp(each) for each in log_ratios[:, e]]
        discounts = [0.0 if each else GAMMA for each in ended[:, e]]
        for s in range(T):
            total = 0.0
            for t in range(s, T):
                delta = rewards[t, e] + discounts[t] * following[t] - values[t, e]
                traces = [discounts[i] * min(limit, ratios[i]) for i in range(s, t)]
                total += math.prod(traces) * min(limit, ratios[t]) * delta
            v[s, e] = values[s, e] + total
        for s in range(T):
            after = v[s + 1, e] if s + 1 < T else last[e]
            weight = min(limit, ratios[s])
            advantage[s, e] = weight * (rewards[s, e] + discounts[s] * after - values[s, e])
    return v, advantage


@pytest.mark.parametrize("limit", [1.0, 2.5])
def test_the_recursion_is_the_papers_sum(steps, limit):
    found = v_trace(*steps, gamma=GAMMA, limit=limit)
    expected = of_the_paper(*steps, limit)
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-12)


def test_on_policy_the_targets_are_returns_of_n_steps(steps):
    log_ratios, rewards, ended, values, last = steps
    found = v_trace(torch.zeros_like(log_ratios), *steps[1:], gamma=GAMMA)
    nothing = torch.empty(0)
    rollout = Rollout(nothing, nothing, nothing, rewards, ended, nothing)
    errors = advantages(rollout, values, last, GAMMA, lam=1.0)
    torch.testing.assert_close(found.values, values + errors, rtol=0, atol=1e-12)
    torch.testing.assert_close(found.advantages, errors, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("log_ratio_of", "limit", "value"),
    [
        ({0: 0.0, 1: 0.0}, 1.0, 0.5),  # not corrected: the value of the policy that acted
        ({0: math.log(1.8), 1: math.log(0.2)}, 1.0, 0.5 / 0.6),  # min(mu, pi), normalised
        ({0: math.log(1.8), 1: math.log(0.2)}, 2.0, 0.9),  # without a limit that binds: pi's
    ],
)
def test_the_limit_decides_whose_values_are_learned(log_ratio_of, limit, value):
    """Action 0 pays 1 and ends the episode, action 1 pays 0; mu is (0.5, 0.5), pi (0.9, 0.1)."""
    actions = [0, 1]  # as often as mu takes them
    log_ratios = torch.tensor([[log_ratio_of[a] for a in actions]], dtype=torch.float64)
    rewards = torch.tensor([[1.0 - a for a in actions]], dtype=torch.float64)
    ended, critic = torch.ones(1, 2, dtype=torch.bool), torch.zeros((), dtype=torch.float64)
    for _ in range(200):
        values = critic.expand(1, 2)
        found = v_trace(log_ratios, rewards, ended, values, values[0], gamma=0.9, limit=limit)
        critic = found.values.mean()
    assert critic.item() == pytest.approx(value)


def test_a_message_holds_a_version_and_a_rollout():
    rollout = Rollout(
        torch.randn(T, E, 4),
        torch.randint(2, (T, E)),
        torch.randn(T, E),
        torch.randn(T, E),
        torch.rand(T, E) > 0.5,
        torch.randn(E, 4),
    )
    message = packed(Queued(12345, rollout), torch.float32)
    version, back = unpacked(message, shapes_of(Sizes(4, 2), T, E))
    assert version == 12345 and message.shape == (1 + T * E * 8 + E * 4,)
    assert all(map(torch.equal, back, rollout))
    assert [each.dtype for each in back] == [each.dtype for each in rollout]


def test_a_full_queue_holds_back_the_next_rollout():
    queue, items = BoundedQueue(2), [Queued(version, None) for version in range(5)]
    put = []

    def actor():
        for item in items:
            put.append(queue.put(item))

    thread = threading.Thread(target=actor)
    thread.start()
    assert queue.get(2) == items[:2]
    assert queue.get(1) == items[2:3]
    assert len(queue._waiting) <= 2
    assert queue.get(2) == items[3:], "in order, each once"
    thread.join()
    assert put == [True] * 5
    queue.put(items[0])
    queue.put(items[1])
    third = []
    waits = threading.Thread(target=lambda: third.append(queue.put(items[2])))
    waits.start()
    queue.close()
    waits.join()
    assert third == [False], "the queue was full until it was closed"


def test_a_failure_of_a_thread_reaches_the_learner():
    queue = BoundedQueue(1)
    queue.close(ZeroDivisionError("on purpose"))
    with pytest.raises(RuntimeError, match="a thread of the learner has failed") as found:
        queue.get(1)
    assert isinstance(found.value.__cause__, ZeroDivisionError)
