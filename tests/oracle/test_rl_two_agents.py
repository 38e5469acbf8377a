"""Two agents: any number of ranks learns what one process does, and each agent acts alone."""

import itertools

import pytest
import torch

from labkit import run
from labkit.rl import two_agents
from labkit.rl.two_agents import GAMES, LEARNERS, OVER, AgentsConfig, Plays

# Nine episodes divide by none of 2 and 4.
SMALL = {"num_updates": 5, "num_episodes": 9, "last_epsilon": 0.5, "dtype": torch.float64}


def trained(world):
    """All learners in all games: returns of the episodes, and parameters."""
    found = {}
    for name, learner in itertools.product(GAMES, LEARNERS):
        config = AgentsConfig(learner=learner, caution=0.5, **SMALL)
        history = two_agents.train(world, GAMES[name], config)
        totals = sorted(episode.total for episode in history.episodes)
        found[name, learner] = totals, history.samples_by_rank, history.parameters
    return found


@pytest.fixture(scope="module")
def on_ranks():
    return {n: run(trained, n).values for n in (1, 2, 3, 4)}


@pytest.mark.parametrize("n", [2, 3, 4])
def test_ranks_play_and_learn_what_one_process_does(on_ranks, n):
    for key, (totals, samples, parameters) in on_ranks[1][0].items():
        for found in on_ranks[n]:
            assert found[key][0] == totals
            assert sum(found[key][1]) == samples[0]
            for name, parameter in parameters.items():
                assert torch.allclose(found[key][2][name], parameter, rtol=0, atol=1e-11), key


def naive_loss(agents, plays, learner, caution):
    """The loss of a step, written out by episode from the papers' formulas."""

    def total(state, q0, q1):
        if learner == "vdn":
            return q0 + q1
        row = agents.mixer[state]
        W, b, w, v = row[:16].abs().view(2, 8), row[16:24], row[24:32].abs(), row[32]
        return w @ torch.nn.functional.elu(q0 * W[0] + q1 * W[1] + b) + v

    loss = 0
    for state, a0, a1, reward, following in zip(
        *(each.tolist() for each in (plays.states_B, *plays.actions_2B, plays.rewards_B)),
        plays.next_B.tolist(),
        strict=True,
    ):
        q0, q1 = agents.tables_2SA[0, state, a0], agents.tables_2SA[1, state, a1]
        own, best = [q0, q1], [0.0, 0.0]
        if following != OVER:
            best = [agents.tables_2SA[agent, following].max().detach() for agent in (0, 1)]
        if learner != "independent":
            own = [total(state, q0, q1)]
            best = [0.0 if following == OVER else total(following, *best).detach()]
        for value, future in zip(own, best, strict=True):
            error = reward + future - value
            loss = loss + (caution if error < 0 else 1.0) * error**2 / 2
    return loss


@pytest.mark.parametrize("learner", LEARNERS)
def test_gradients_are_those_of_the_written_loss(learner):
    agents = LEARNERS[learner](3, 2, 0, torch.float64)
    plays = Plays(
        torch.tensor([0, 1, 0, 2]),
        torch.tensor([[0, 1, 1, 1], [1, 0, 0, 1]]),
        torch.tensor([0.0, 7, -3, 8]).double(),
        torch.tensor([1, OVER, 2, OVER]),
    )
    parameters = list(agents.parameters())
    found = torch.autograd.grad(two_agents.loss_sum(agents, plays, 0.3), parameters)
    expected = torch.autograd.grad(naive_loss(agents, plays, learner, 0.3), parameters)
    for each, right in zip(found, expected, strict=True):
        assert torch.allclose(each, right, rtol=0, atol=1e-12)
    assert any(each.abs().sum() > 0 for each in expected)


@pytest.mark.parametrize("learner", ["vdn", "qmix"])
def test_the_best_actions_of_the_agents_are_the_best_of_the_team(learner):
    for seed in range(20):
        agents = LEARNERS[learner](3, 4, seed, torch.float64)
        for state in range(3):
            values_2A = agents.tables_2SA[:, state].detach()
            pairs = torch.cartesian_prod(values_2A[0], values_2A[1]).T
            totals = agents.totals(pairs, torch.full((16,), state))[0]
            best = values_2A.argmax(1).tolist()
            assert divmod(int(totals.argmax()), 4) == tuple(best)


def test_agents_act_alone_and_exchange_nothing():
    tables = torch.zeros(2, 3, 2)
    tables[0, 0, 1] = tables[0, 2, 1] = tables[1, 2, 1] = 1.0
    result = run(two_agents.execute, 3, (GAMES["two steps"], tables))
    assert result.values == [None, None, 8.0]
    peers = [
        {operation.peer for operation in timeline.operations} for timeline in result.timeline[:2]
    ]
    assert peers == [{2}, {2}]
    sent = [each.by_operation["send"].sent_bytes for each in result.traffic]
    assert sent == [2 * 8, 2 * 8, 2 * 3 * 8]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"learner": "coma"}, "learner='coma': give one of independent, vdn, qmix"),
        ({"caution": 1.5}, "caution=1.5: 0 to 1"),
        ({"num_episodes": 0}, "num_episodes=0: 1 or more"),
    ],
)
def test_wrong_settings_are_refused(settings, words):
    with pytest.raises(ValueError, match=words):
        AgentsConfig(**settings)
