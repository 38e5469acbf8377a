"""Replay in shards draws as one memory does, and DQN over ranks learns as one process does."""

import copy
from dataclasses import replace

import pytest
import torch

from labkit import RankError, run
from labkit.rl import dqn
from labkit.rl.environments import Environments
from labkit.rl.replay import ShardedReplay, SumTree

# Rows on each rank: unequal shards, an empty one, and one memory with all rows.
SHARDS = ([29], [20, 9], [20, 0, 9], [5, 17, 1, 6])
# Whole multiples of 1/8: their sums are exact in any order.
PRIORITIES = torch.randint(1, 64, (29,), generator=torch.Generator().manual_seed(1)).double() / 8
BATCH, NUM_SAMPLES, BETA = 301, 30, 0.5
WRONG = 1e-6
"""The probability that a sampler which is right fails the statistical test, for a random seed.

The seed is fixed, so the test gives the same result each time.
"""


def shard_of(world, sizes):
    """A shard whose rows are their own numbers, from 0 over all ranks."""
    start = sum(sizes[: world.rank])
    numbers = torch.arange(start, start + sizes[world.rank])
    memory = ShardedReplay(
        world, max(sizes[world.rank], 1), 1, seed=3, dtype=torch.float64
    )  # fmt: skip
    memory.add(numbers.double()[:, None], PRIORITIES[numbers])
    return memory


def drawn_rows(world, sizes):
    """How often all ranks together draw each row, the weight of each, and rows by rank."""
    memory = shard_of(world, sizes)
    counts, weights, num_rows = torch.zeros(29), torch.zeros(29).double(), 0
    for _ in range(NUM_SAMPLES):
        sample = memory.sample(BATCH, BETA)
        rows = sample.rows_BW[:, 0].long()
        counts += rows.bincount(minlength=29)
        weights[rows] = sample.weights_B
        num_rows += len(rows)
        memory.update(sample, PRIORITIES[rows])
    return world.all_reduce(counts), world.all_reduce(weights, "max"), num_rows


def p_value(counts, priorities):
    """The probability of counts at least as far from their expectation: Pearson's chi-square."""
    expected = counts.sum() * priorities / priorities.sum()
    statistic = ((counts - expected) ** 2 / expected).sum()
    return torch.special.gammaincc(torch.tensor((len(counts) - 1) / 2), statistic / 2).item()


@pytest.fixture(scope="module")
def drawn():
    return [run(drawn_rows, len(sizes), (sizes,)).values for sizes in SHARDS]


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_draws_go_by_priority_over_all_shards(drawn, n):
    counts = drawn[n - 1][0][0]
    assert counts.sum() == BATCH * NUM_SAMPLES
    assert p_value(counts, PRIORITIES) > WRONG


@pytest.mark.parametrize("n", [2, 3, 4])
def test_shards_draw_the_rows_that_one_memory_draws_with_the_same_numbers(drawn, n):
    assert torch.equal(drawn[n - 1][0][0], drawn[0][0][0])


def test_a_sampler_that_takes_as_many_rows_from_each_shard_fails_the_statistical_test():
    random = torch.Generator().manual_seed(0)
    counts = torch.zeros(29)
    for own in torch.arange(29).split([5, 17, 1, 6]):
        drawn = torch.multinomial(PRIORITIES[own], 2257, replacement=True, generator=random)
        counts += own[drawn].bincount(minlength=29)
    assert p_value(counts, PRIORITIES) < WRONG


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_weights_are_those_of_the_whole_memory(drawn, n):
    of_all = (29 * PRIORITIES / PRIORITIES.sum()) ** -BETA
    weights = drawn[n - 1][0][1]
    assert torch.allclose(weights, of_all / of_all.max(), rtol=1e-12)


@pytest.mark.parametrize("n", [2, 3, 4])
def test_ranks_learn_from_as_many_draws_or_one_less(drawn, n):
    nums = {num for _, _, num in drawn[n - 1]}
    assert nums <= {NUM_SAMPLES * (BATCH // n), NUM_SAMPLES * -(-BATCH // n)}


def changed_priorities(world, sizes):
    """Give each drawn row its own number + 1 as priority; return the priorities of this shard."""
    memory = shard_of(world, sizes)
    drawn = set()
    for _ in range(2):
        sample = memory.sample(BATCH, BETA)
        memory.update(sample, sample.rows_BW[:, 0] + 1)
        drawn |= set(sample.rows_BW[:, 0].long().tolist())
    return drawn, memory.tree.priorities[: len(memory)], memory.tree.total


def test_priorities_go_back_to_the_rows_they_belong_to():
    result = run(changed_priorities, 4, (SHARDS[3],))
    drawn = sorted(set().union(*(each for each, _, _ in result.values)))
    expected = PRIORITIES.clone()
    expected[drawn] = torch.tensor(drawn).double() + 1
    assert torch.equal(torch.cat([own for _, own, _ in result.values]), expected)
    for _, own, total in result.values:
        assert total == own.sum()


def test_a_drawn_row_is_sent_once_and_only_to_its_learner():
    def two_samples(world, sizes):
        memory = shard_of(world, sizes)
        return [memory.sample(BATCH, BETA).num_from for _ in range(2)]

    result = run(two_samples, 4, (SHARDS[3],))
    from_others = sum(
        num
        for rank, samples in enumerate(result.values)
        for num_from in samples
        for source, num in enumerate(num_from)
        if source != rank
    )
    sent = sum(each.by_operation["all_to_all"].sent_bytes for each in result.traffic)
    assert sent == from_others * (1 + 1) * 8  # a number and a weight


def test_a_full_shard_replaces_its_oldest_rows():
    def fill(world):
        memory = ShardedReplay(world, 3, 1)
        for number in range(5):
            memory.add(torch.tensor([[float(number)]]), torch.tensor([number + 1.0]))
        return memory.rows_NW[:, 0].tolist(), memory.tree.priorities.tolist(), len(memory)

    assert run(fill, 1).values[0] == ([3, 4, 2], [4, 5, 3], 3)


def test_a_slot_without_a_priority_is_never_found():
    tree = SumTree(5000)
    tree.set(torch.tensor([100, 4001]), torch.tensor([0.25, 0.5]).double())
    places = torch.tensor([0.0, 0.2, 0.25, 0.7, 0.75, 9.0]).double()
    assert tree.find(places).tolist() == [100, 100, 4001, 4001, 4001, 4001]


@pytest.mark.parametrize(
    ("rows", "priorities", "words"),
    [
        (torch.zeros(2, 3), torch.ones(2), r"shape \(2, 3\): give \(N, 2\), N at most 4"),
        (torch.zeros(5, 2), torch.ones(5), "N at most 4"),
        (torch.zeros(2, 2), torch.ones(3), "one by row, 2"),
        (torch.zeros(2, 2), torch.tensor([1.0, 0.0]), "finite ones above 0"),
        (torch.zeros(2, 2), torch.tensor([1.0, torch.inf]), "finite ones above 0"),
        (None, None, "the memory is empty on all ranks"),
    ],
)
def test_wrong_rows_and_priorities_are_refused(rows, priorities, words):
    def use(world):
        memory = ShardedReplay(world, 4, 2)
        memory.sample(3, 0.4) if rows is None else memory.add(rows, priorities)

    with pytest.raises(RankError, match=words):
        run(use, 1)


# Seven environments divide by none of 2, 3 and 4, and 13 draws neither. The shards overflow.
CONFIG = dqn.DQNConfig(
    num_environments=7,
    num_steps=3,
    num_updates=2,
    num_ahead=3,
    num_samples=7 * 3 * 10,
    batch=13,
    capacity=7 * 3 * 6,
    copy_every=5,
    dtype=torch.float64,
)


def one_process(config, num_ranks):
    """Train in one process, with lists: all environments, and a list of rows for each shard."""
    everything = Environments(range(config.num_environments), config.seed)
    shares = [config.share(rank, num_ranks) for rank in range(num_ranks)]
    q = dqn.QNetwork(everything.sizes, config.seed, config.dtype)
    old_q, num_updates = copy.deepcopy(q), 0
    optimizer = torch.optim.AdamW(
        q.parameters(), config.learning_rate, betas=(0.9, 0.999), weight_decay=0
    )
    memory = [[] for _ in shares]  # for each shard its [row, priority], oldest first
    random = torch.Generator().manual_seed(config.seed)

    def error(row):
        observation, action, reward, discount, after = row
        chosen = q(after).argmax()
        with torch.no_grad():
            target = reward + discount * old_q(after)[chosen]
        return target - q(observation)[action]

    for number in range(config.num_rounds):
        done = number / config.num_rounds
        new = [[] for _ in range(config.num_environments)]
        for uniform_E in everything.uniforms(config.num_steps):
            before, actions = everything.observations_EO.double(), []
            for observation, uniform in zip(before, uniform_E.tolist(), strict=True):
                epsilon = config.epsilon(done)
                at_random = int(uniform / epsilon * 2)
                greedy = int(q(observation).argmax())
                actions.append(at_random if uniform < epsilon else greedy)
            step = everything.step(actions)
            for each in range(config.num_environments):
                is_over = bool(step.ended_E[each])
                goes_on = not is_over or each in step.cut_off
                after = step.cut_off.get(each, everything.observations_EO[each]).double()
                row = (before[each], actions[each], float(step.rewards_E[each]), goes_on, after)
                new[each].append((*row, is_over))
        new = [[ahead(steps[t:], config.gamma) for t in range(3)] for steps in new]
        for rank, share in enumerate(shares):
            for step in range(config.num_steps):
                for each in share:
                    row = new[each][step]
                    priority = (abs(error(row).item()) + 0.01) ** config.alpha
                    memory[rank].append([row, priority])
            keep = config.capacity // config.num_environments * len(share)
            memory[rank] = memory[rank][-keep:]
        slots_of = [
            slot_order(rows, config, shares[rank], number) for rank, rows in enumerate(memory)
        ]
        line = [memory[rank][at] for rank, order in enumerate(slots_of) for at in order]
        for _ in range(config.num_updates):
            if num_updates % config.copy_every == 0:
                old_q.load_state_dict(q.state_dict())
            beta = config.beta + (1 - config.beta) * done
            total = sum(priority for _, priority in line)
            places = torch.rand(config.batch, dtype=torch.float64, generator=random) * total
            drawn = [at_place(line, place) for place in places.tolist()]
            of_all = [(len(line) * priority / total) ** -beta for _, priority in line]
            errors = torch.stack([error(line[at][0]) for at in drawn])
            weights = torch.tensor([of_all[at] / max(of_all) for at in drawn], dtype=torch.float64)
            losses = torch.nn.functional.huber_loss(errors, 0 * errors, reduction="none")
            optimizer.zero_grad()
            ((weights * losses).sum() / config.batch).backward()
            for at, its in zip(drawn, errors.tolist(), strict=True):
                line[at][1] = (abs(its) + 0.01) ** config.alpha
            torch.nn.utils.clip_grad_norm_(q.parameters(), config.max_norm)
            optimizer.step()
            num_updates += 1
    return dict(q.named_parameters())


def ahead(steps, gamma):
    """A transition of these steps, or of those up to the end of the episode."""
    rewards, discount = 0.0, 1.0
    for step in steps:
        rewards += discount * step[2]
        discount *= gamma * step[3]
        if step[5]:
            break
    return (*steps[0][:2], rewards, discount, step[4])


def slot_order(rows, config, share, number):
    """The rows of a shard, which are in order of age, in the order of their slots."""
    capacity = config.capacity // config.num_environments * len(share)
    num_added = (number + 1) * config.num_steps * len(share)
    oldest = num_added % capacity if num_added > capacity else 0
    return [(slot - oldest) % len(rows) for slot in range(len(rows))]


def at_place(line, place):
    """The entry of the line at a place, counted from its beginning."""
    for at, (_, priority) in enumerate(line):
        if place < priority:
            return at
        place -= priority
    raise AssertionError("beyond the end of the line")


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_dqn_over_ranks_learns_as_one_process_with_the_same_draws(n):
    expected = one_process(CONFIG, n)
    result = run(dqn.train, n, (CONFIG,))
    for history in result.values:
        assert history.num_updates == 20
        for name, parameter in history.parameters.items():
            assert torch.allclose(parameter, expected[name], rtol=0, atol=1e-11), name
    assert len({tuple(h.parameters["4.bias"].tolist()) for h in result.values}) == 1


def test_a_rank_that_reaches_the_deadline_adds_fewer_transitions():
    config = replace(CONFIG, deadline_s=0.0, num_samples=7 * 3 * 4)
    history = run(dqn.train, 2, (config,)).values[0]
    assert history.samples_by_rank == [3 * 4, 4 * 4], "one step of each environment in a round"
    assert history.num_updates == 4 * 2


def test_a_transition_of_three_steps_ends_with_its_episode():
    def column(*numbers):
        return torch.tensor(numbers)[:, None]

    # The episode is cut off after the second step, so it has a future, which is another episode's.
    ended = column(False, True, False, False)
    rewards, discounts = column(1.0, 2.0, 4.0, 8.0), column(0.5, 0.5, 0.5, 0.5)
    after = torch.arange(4.0)[:, None, None]
    dqn.look_ahead(rewards, discounts, after, ended, 3)
    assert rewards.flatten().tolist() == [1 + 0.5 * 2, 2, 4 + 0.5 * 8, 8]
    assert discounts.flatten().tolist() == [0.25, 0.5, 0.25, 0.5]
    assert after.flatten().tolist() == [1, 1, 3, 3]
