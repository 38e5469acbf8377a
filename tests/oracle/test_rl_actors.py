"""A3C and IMPALA: what the server and the learner did, done again in one process."""

import math
import time

import gymnasium
import pytest
import torch

from labkit import RankError, run
from labkit.rl import a3c, impala
from labkit.rl.actor_critic import ActorCritic, RLConfig
from labkit.rl.environments import Environments, sizes_of

# Five environments, two and three for two actors. In float64 only the order of adding is left.
SHARED = {"num_environments": 5, "num_steps": 6, "num_samples": 360, "seed": 4}
SHARED |= {"dtype": torch.float64}
CONFIG = impala.ImpalaConfig(**SHARED, rollouts_per_update=2, queue_size=3, publish_every=3)
TOLERANCE = 1e-9


def short(number):
    """A pole may fall after 8 steps, and the 12th step is the last."""
    return gymnasium.make("CartPole-v1", max_episode_steps=12)


def first_policy(config):
    return ActorCritic(sizes_of(short(0)), config.seed, config.dtype)


def adam(policy, config):
    return torch.optim.Adam(policy.parameters(), lr=config.learning_rate, eps=1e-5)


def distance(history, policy):
    return max((history.parameters[n] - p).abs().max() for n, p in policy.named_parameters())


def write_down_updates(world, config):
    """Train, and return the record with all batches of the learner."""
    batches = []
    update = impala.Learner.update

    def update_and_keep(self, batch):
        batches.append(batch)
        update(self, batch)

    impala.Learner.update = update_and_keep
    try:
        return impala.train(world, config, short), batches
    finally:
        impala.Learner.update = update


@pytest.fixture(scope="module")
def learned():
    result = run(write_down_updates, 3, (CONFIG,))
    (history, batches), *others = result.values
    assert all(each.episodes == history.episodes for each, _ in others)
    return result, history, batches


def update_again(policy, optimizer, batch, config):
    """The learner's step as a loop over samples, with the paper's recursion."""
    losses = []
    for _, rollout in batch:
        num_steps, num_environments = rollout.actions_TE.shape
        for e in range(num_environments):
            log_probs = [policy.log_probs(each) for each in rollout.observations_TEO[:, e]]
            values = [policy.values(each) for each in rollout.observations_TEO[:, e]]
            following = [*values[1:], policy.values(rollout.last_EO[e])]
            v_after = following[-1].item()
            v_next = v_after
            for t in reversed(range(num_steps)):
                action = rollout.actions_TE[t, e]
                ratio = math.exp(log_probs[t][action].item() - rollout.log_probs_TE[t, e].item())
                weight = min(1.0, ratio) if config.corrects else 1.0
                discount = 0.0 if rollout.ended_TE[t, e] else config.gamma
                reward, value = rollout.rewards_TE[t, e].item(), values[t].item()
                advantage = weight * (reward + discount * v_next - value)
                error = weight * (reward + discount * following[t].item() - value)
                trace = discount * weight * (v_next - following[t].item())
                v_next = value + error + trace
                entropy = -(log_probs[t].exp() * log_probs[t]).sum()
                losses.append(
                    config.value_weight * (values[t] - v_next) ** 2 / 2
                    - advantage * log_probs[t][action]
                    - config.entropy_weight * entropy
                )
    optimizer.zero_grad()
    torch.stack(losses).mean().backward()
    torch.nn.utils.clip_grad_norm_(policy.parameters(), config.max_norm)
    optimizer.step()


def test_the_learners_updates_are_those_of_one_process_with_the_same_rollouts(learned):
    _, history, batches = learned
    policy = first_policy(CONFIG)
    optimizer = adam(policy, CONFIG)
    versions = {0: first_policy(CONFIG).log_probs}
    for number, batch in enumerate(batches):
        for version, rollout in batch:
            assert version % 3 == 0 and version <= number, "only published versions act"
            with torch.no_grad():
                taken = versions_log_probs(versions[version], rollout)
            assert (taken - rollout.log_probs_TE).abs().max() < TOLERANCE
        update_again(policy, optimizer, batch, CONFIG)
        frozen = first_policy(CONFIG)
        frozen.load_state_dict(policy.state_dict())
        versions[number + 1] = frozen.log_probs
    assert distance(history, policy) < TOLERANCE
    assert history.num_updates == len(batches)


def versions_log_probs(log_probs, rollout):
    of_all = log_probs(rollout.observations_TEO)
    return of_all.gather(-1, rollout.actions_TE[..., None]).squeeze(-1)


def test_rollouts_are_used_in_order_and_their_staleness_is_counted(learned):
    _, history, batches = learned
    for num_environments in (2, 3):
        own = [q for batch in batches for q in batch if len(q.rollout.last_EO) == num_environments]
        for before, after in zip(own, own[1:]):
            assert torch.equal(before.rollout.last_EO, after.rollout.observations_TEO[0])
            assert before.version <= after.version
    expected = [number - each.version for number, batch in enumerate(batches) for each in batch]
    assert history.staleness == expected and max(expected) > 0


def test_actors_get_the_weights_only_where_a_newer_version_was_published(learned):
    result, history, batches = learned
    sent = result.traffic[0].by_operation["send"]
    num_parameters = sum(each.numel() for each in history.parameters.values())
    num_replies = result.traffic[1].by_operation["send"].count
    num_replies += result.traffic[2].by_operation["send"].count
    num_weights = sent.count - num_replies
    assert sent.sent_bytes == 8 * (num_replies + num_weights * num_parameters)
    assert 0 < num_weights <= 2 * (len(batches) // 3)


def test_without_the_correction_old_rollouts_count_as_new_ones():
    off = impala.ImpalaConfig(**SHARED, publish_every=5, corrects=False)
    history, batches = run(write_down_updates, 2, (off,)).values[0]
    policy = first_policy(off)
    optimizer = adam(policy, off)
    for batch in batches:
        update_again(policy, optimizer, batch, off)
    assert distance(history, policy) < TOLERANCE
    assert max(history.staleness) >= 4


def test_one_worker_of_a3c_is_a_serial_run():
    config = RLConfig(**SHARED)
    result = run(a3c.train, 2, (config, short))
    environments = Environments(range(5), config.seed, short)
    policy, returns = first_policy(config), []
    optimizer = adam(policy, config)
    for _ in range(360 // 30):
        steps = []
        for uniforms in environments.uniforms(config.num_steps):
            seen = environments.observations_EO
            probabilities = policy.log_probs(seen).exp().detach()
            actions = [int(u >= p[0]) for u, p in zip(uniforms, probabilities)]
            steps.append((seen, actions, environments.step(actions)))
            returns += steps[-1][2].finished
        losses = []
        for e in range(5):
            target = policy.values(environments.observations_EO[e]).item()
            for seen, actions, step in reversed(steps):
                if step.ended_E[e]:
                    cut_off = step.cut_off.get(e)
                    target = 0.0 if cut_off is None else policy.values(cut_off).item()
                target = step.rewards_E[e].item() + config.gamma * target
                log_probs, value = policy.log_probs(seen[e]), policy.values(seen[e])
                losses.append(
                    config.value_weight * (value - target) ** 2 / 2
                    - (target - value.item()) * log_probs[actions[e]]
                    + config.entropy_weight * (log_probs.exp() * log_probs).sum()
                )
        optimizer.zero_grad()
        torch.stack(losses).mean().backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), config.max_norm)
        optimizer.step()
    history = result.values[0]
    assert distance(history, policy) < TOLERANCE
    assert [each.total for each in history.episodes] == returns
    assert history.staleness == [0] * 12


class Together(gymnasium.Wrapper):
    """After 1 step, and after 12, goes on when all five environments have come as far.

    So all workers have their first parameters before one sends a gradient, and have ended an
    episode before one goes on alone, however a machine shares out its cores.
    """

    def __init__(self, number, folder):
        super().__init__(short(number))
        self.number, self.folder, self.num_steps = number, folder, 0

    def step(self, action):
        while self.num_steps in (1, 12) and len(list(self.folder.glob(f"{self.num_steps}-*"))) < 5:
            time.sleep(0.001)
        self.num_steps += 1
        (self.folder / f"{self.num_steps}-{self.number}").touch()
        return super().step(action)


def test_asynchronous_workers_make_updates_of_any_age(tmp_path):
    def make(number):
        return Together(number, tmp_path)

    history = run(a3c.train, 4, (RLConfig(**SHARED), make)).values[0]
    assert history.num_updates == len(history.staleness) == 360 * 3 // 30
    assert sum(history.staleness) > 0
    assert history.samples_by_rank[0] == 0 and min(history.samples_by_rank[1:]) > 0
    assert {each.rank for each in history.episodes} == {1, 2, 3}


@pytest.mark.parametrize(
    ("train", "config", "world_size", "words"),
    [
        (impala.train, CONFIG, 1, "actors and a learner: run it on 2 ranks or more"),
        (a3c.train, RLConfig(), 1, "a server and workers: run it on 2 ranks or more"),
        (impala.train, impala.ImpalaConfig(num_environments=1), 3, "num_environments=1 on 2 ranks"),
    ],
)
def test_worlds_without_an_actor_or_its_environment_are_refused(train, config, world_size, words):
    with pytest.raises(RankError, match=words):
        run(train, world_size, (config,))


def test_a_queue_that_holds_no_batch_is_refused():
    with pytest.raises(ValueError, match="queue_size=1: rollouts_per_update=2 or more"):
        impala.ImpalaConfig(queue_size=1)


def test_an_error_of_an_actor_ends_the_run():
    def fails(number):
        environment = short(number)
        if number == 4:
            environment.step = lambda action: 1 / 0
        return environment

    with pytest.raises(RankError, match="rank 2 raised ZeroDivisionError"):
        run(impala.train, 3, (CONFIG, fails))
