"""Routers, capacities and their losses: each against a definition written out beside it."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from labkit.model import GPTConfig
from labkit.moe import (
    BiasBalancedRouter,
    ExpertChoiceRouter,
    ExpertLoad,
    MoEConfig,
    TopKRouter,
    expert_capacity,
    experts_by_rank,
    load_balancing_loss,
    within_capacity,
    z_loss,
)
from labkit.moe.moe_layer import make_router
from tests.serial_runs import one_thread  # noqa: F401

N, D, E = 37, 6, 5


def router_of(kind=TopKRouter, top_k=2, dtype=torch.float64, **settings):
    torch.manual_seed(0)
    router = kind(D, E, top_k, **settings).to(dtype)
    nn.init.normal_(router.gate.weight)
    return router


def tokens(num_tokens=N, dtype=torch.float64, seed=1):
    return torch.randn(
        num_tokens, D, dtype=dtype, generator=torch.Generator().manual_seed(seed)
    ).requires_grad_()


def kept_by_hand(experts_Nk, num_experts, capacity):
    """One choice after the other: all first ones, then all second ones."""
    room = [capacity] * num_experts
    kept = torch.zeros_like(experts_Nk, dtype=torch.bool)
    for choice in range(experts_Nk.shape[1]):
        for token in range(experts_Nk.shape[0]):
            expert = int(experts_Nk[token, choice])
            if room[expert] > 0:
                room[expert] -= 1
                kept[token, choice] = True
    return kept


@pytest.mark.parametrize("weights", ["of_all", "of_chosen"])
@pytest.mark.parametrize("top_k", [2, 3, E])
def test_each_token_goes_to_its_k_most_likely_experts(weights, top_k):
    router, x = router_of(top_k=top_k, weights=weights), tokens()
    routing = router(x)
    probs = torch.softmax(x @ router.gate.weight.T, dim=1)
    for token in range(N):
        mine = routing.token_A == token
        found = dict(zip(routing.expert_A[mine].tolist(), routing.weight_A[mine].tolist()))
        best = sorted(range(E), key=lambda e: -probs[token, e].item())[:top_k]
        assert list(found) == best
        scale = sum(probs[token, e].item() for e in best) if weights == "of_chosen" else 1
        for expert, weight in found.items():
            assert weight == pytest.approx(probs[token, expert].item() / scale, rel=1e-12)
    assert routing.chosen_E.sum() == N * top_k
    assert routing.num_dropped == 0


def test_renormalised_weights_add_up_to_one_and_the_others_do_not():
    sums = {
        weights: torch.zeros(N, dtype=torch.float64).index_add(0, r.token_A, r.weight_A)
        for weights in ("of_chosen", "of_all")
        for r in [router_of(weights=weights)(tokens())]
    }
    torch.testing.assert_close(sums["of_chosen"], torch.ones(N, dtype=torch.float64))
    assert (sums["of_all"] < 0.999).any()


def test_ties_between_experts_go_to_the_first():
    router = router_of()
    nn.init.zeros_(router.gate.weight)
    assert router(tokens()).chosen_E.tolist() == [N, N, 0, 0, 0]


def test_gradients_of_the_weights_are_the_numerical_ones():
    router = router_of(top_k=2)

    def weights_of(x):
        return router(x).weight_A

    assert torch.autograd.gradcheck(weights_of, (tokens(5),))


def test_scores_are_computed_in_float32_at_least():
    # In bfloat16 logits near 60 are a multiple of a quarter; the softmax of those is another one.
    router, x = router_of(dtype=torch.bfloat16), tokens(dtype=torch.bfloat16)
    routing = router(20 * x)
    exact = torch.softmax((20 * x).double() @ router.gate.weight.double().T, dim=1)
    assert routing.probs_NE.dtype == torch.float32
    assert routing.weight_A.dtype == torch.bfloat16
    torch.testing.assert_close(routing.probs_NE.double(), exact, rtol=1e-4, atol=1e-6)


@given(experts=st.lists(st.permutations(range(4)), max_size=12), capacity=st.integers(0, 8))
def test_the_kept_choices_are_those_of_a_plain_loop(experts, capacity):
    experts_Nk = torch.tensor(experts, dtype=torch.int64).view(-1, 4)[:, :2]
    kept = within_capacity(experts_Nk, 4, capacity)
    assert torch.equal(kept, kept_by_hand(experts_Nk, 4, capacity))


def test_first_choices_come_before_second_ones_and_early_tokens_before_late_ones():
    experts_Nk = torch.tensor([[0, 1], [1, 0], [0, 1], [0, 2]])
    kept = within_capacity(experts_Nk, 3, 2)
    # Expert 0: first choices of tokens 0 and 2; token 1's second and token 3's first have no room.
    assert kept.tolist() == [[True, True], [True, False], [True, False], [False, True]]


@pytest.mark.parametrize(
    ("num_tokens", "top_k", "factor", "capacity"),
    [(100, 1, 1.0, 10), (100, 2, 1.25, 25), (100, 1, 1.1, 11), (7, 2, 1.0, 2), (0, 2, 1.0, 0)],
)
def test_the_capacity_is_the_factor_times_the_balanced_load(num_tokens, top_k, factor, capacity):
    assert expert_capacity(num_tokens, 10, top_k, factor) == capacity


def test_dropped_choices_are_counted_and_the_rest_keep_their_weights():
    free, full = router_of(), router_of(capacity_factor=0.7)
    all_of_them, some = free(tokens()), full(tokens())
    assert torch.equal(some.chosen_E, all_of_them.chosen_E)
    assert some.num_dropped == 2 * N - len(some.token_A) > 0
    assert some.kept_E.max() <= expert_capacity(N, E, 2, 0.7)
    weights = {
        pair: weight
        for *pair, weight in zip(all_of_them.token_A, all_of_them.expert_A, all_of_them.weight_A)
        for pair in [tuple(map(int, pair))]
    }
    for token, expert, weight in zip(some.token_A, some.expert_A, some.weight_A):
        assert weights[int(token), int(expert)] == weight


def test_each_group_of_tokens_has_a_capacity_of_its_own():
    router, x = router_of(capacity_factor=0.7), tokens()
    groups, before = [10, 0, 20, 7], 0
    routing = router(x, groups)
    for size in groups:
        of_group = router(x[before : before + size])
        mine = (routing.token_A >= before) & (routing.token_A < before + size)
        assert torch.equal(routing.token_A[mine] - before, of_group.token_A)
        assert torch.equal(routing.expert_A[mine], of_group.expert_A)
        before += size
    assert len(router(x).token_A) != len(routing.token_A)


def test_the_balance_loss_is_1_in_balance_and_the_number_of_experts_if_all_choose_one():
    router = router_of(weights="of_all", top_k=1)
    nn.init.zeros_(router.gate.weight)
    flat = router(tokens())
    # Probabilities are equal: whatever is chosen, sum f_e / E * E is 1.
    assert load_balancing_loss(flat).item() == pytest.approx(1)
    with torch.no_grad():
        router.gate.weight[0] = 100
    certain = router(tokens().abs())
    assert load_balancing_loss(certain).item() == pytest.approx(E)


@pytest.mark.parametrize("top_k", [1, 2, 4])
def test_auxiliary_losses_are_the_papers_sums(top_k):
    x = tokens()
    router = router_of(weights="of_all", top_k=top_k)
    routing = router(x)
    probs = torch.softmax(x @ router.gate.weight.T, 1).tolist()
    f = [sum(1 for e in routing.expert_A.tolist() if e == each) / (N * top_k) for each in range(E)]
    P = [sum(row[each] for row in probs) / N for each in range(E)]
    expected = E * sum(a * b for a, b in zip(f, P))
    assert load_balancing_loss(routing).item() == pytest.approx(expected, rel=1e-12)
    logits = (x @ router.gate.weight.T).tolist()
    z = sum(math.log(sum(map(math.exp, row))) ** 2 for row in logits) / N
    assert z_loss(routing).item() == pytest.approx(z, rel=1e-12)


@pytest.mark.parametrize("sizes", [[37], [20, 17], [30, 0, 7]])
def test_parts_of_the_losses_add_up_with_their_gradients(sizes):
    router = router_of()
    x = tokens()
    whole = router(x)
    gate = router.gate.weight
    both = load_balancing_loss(whole) + z_loss(whole)
    (expected,) = torch.autograd.grad(both, gate)
    parts = [router(part) for part in x.split(sizes)]
    total = sum(load_balancing_loss(part, whole.chosen_E, N) + z_loss(part, N) for part in parts)
    (found,) = torch.autograd.grad(total, gate)
    torch.testing.assert_close(total, both, rtol=1e-13, atol=0)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-15)


def test_the_mean_of_the_ranks_own_losses_is_another_loss():
    router, x = router_of(), tokens()
    own = [load_balancing_loss(router(part)).item() for part in (x[:18], x[18:])]
    assert abs(sum(own) / 2 - load_balancing_loss(router(x)).item()) > 1e-3


def test_dropping_does_not_change_the_balance_loss():
    free, full = router_of()(tokens()), router_of(capacity_factor=0.5)(tokens())
    assert full.num_dropped
    assert load_balancing_loss(free) == load_balancing_loss(full)


def test_a_descent_on_the_balance_loss_balances():
    x = tokens(400) + torch.tensor([2.0] + [0.0] * (D - 1))  # the shared part favours one expert
    router = router_of()
    before = load_balancing_loss(router(x)).item()
    for _ in range(300):
        value = load_balancing_loss(router(x))
        (grad,) = torch.autograd.grad(value, router.gate.weight)
        with torch.no_grad():
            router.gate.weight -= 0.5 * grad
    assert load_balancing_loss(router(x)).item() < 1.02 < before


def test_a_bias_balances_without_changing_weights():
    x = tokens(400) + torch.tensor([1.0] + [0.0] * (D - 1))
    router = router_of(BiasBalancedRouter, rate=0.01)
    uneven = router(x).chosen_E
    for _ in range(200):
        router.rebalance(router(x).chosen_E)
    routing = router(x)
    mean = 2 * 400 / E
    assert routing.chosen_E.max() < 1.15 * mean < uneven.max()
    plain = chosen_weights_by_hand(routing)
    torch.testing.assert_close(routing.weight_A, plain)


def chosen_weights_by_hand(routing):
    p_A = routing.probs_NE[routing.token_A, routing.expert_A]
    sums = torch.zeros(routing.num_tokens, dtype=p_A.dtype).index_add(0, routing.token_A, p_A)
    return p_A / sums[routing.token_A]


def test_a_bias_moves_by_its_rate_against_the_load():
    router = router_of(BiasBalancedRouter, rate=0.25)
    router.rebalance(torch.tensor([9, 0, 3, 2, 1]))  # mean 3
    assert router.bias_E.tolist() == [-0.25, 0.25, 0, 0.25, 0.25]
    assert "bias_E" in router.state_dict()


def test_every_expert_chooses_equally_many_tokens():
    router, x = router_of(ExpertChoiceRouter), tokens()
    routing = router(x)
    taken = math.ceil(2 * N / E)
    assert routing.chosen_E.tolist() == [taken] * E
    probs = torch.softmax(x @ router.gate.weight.T, 1)
    for expert in range(E):
        mine = routing.expert_A == expert
        best = sorted(range(N), key=lambda n: -probs[n, expert].item())[:taken]
        assert routing.token_A[mine].tolist() == best
        torch.testing.assert_close(routing.weight_A[mine], probs[best, expert])
    per_token = torch.bincount(routing.token_A, minlength=N)
    assert per_token.min() < 2 < per_token.max()


def test_expert_choice_looks_at_later_tokens():
    x = tokens().detach()
    later = x.clone()
    later[-1] *= 10
    first = lambda r: set(zip(r.token_A.tolist(), r.expert_A.tolist()))  # noqa: E731
    chosen = {}
    for kind in (ExpertChoiceRouter, TopKRouter):
        before, after = (first(router_of(kind)(each)) for each in (x, later))
        chosen[kind] = {p for p in before ^ after if p[0] < N - 1}
    assert chosen[ExpertChoiceRouter]
    assert not chosen[TopKRouter]


@pytest.mark.parametrize("kind", [TopKRouter, BiasBalancedRouter, ExpertChoiceRouter])
def test_an_empty_batch_has_an_empty_routing(kind):
    routing = router_of(kind)(tokens(0), [0, 0])
    assert routing.token_A.numel() == routing.num_dropped == 0
    assert load_balancing_loss(routing) == z_loss(routing) == 0


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"top_k": 6}, "top_k=6: .*num_experts=5"),
        ({"top_k": 1}, "weights='of_all'"),
        ({"weights": "softmax"}, "softmax"),
        ({"capacity_factor": 0}, "capacity_factor=0"),
    ],
)
def test_an_invalid_router_is_refused(settings, words):
    with pytest.raises(ValueError, match=words):
        router_of(**settings)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"top_k": 5}, "top_k=5: .*num_experts=4"),
        ({"router": "random"}, "random"),
        ({"router": "expert_choice", "capacity_factor": 1.0}, "capacity_factor"),
        ({"balance_coefficient": -1}, "balance_coefficient"),
        ({"expert_ffn": 0}, "=0"),
        ({"capacity_factor": math.nan}, "nan"),
    ],
)
def test_an_invalid_config_is_refused(settings, words):
    with pytest.raises(ValueError, match=words):
        MoEConfig(**settings)


def test_groups_that_are_not_all_tokens_are_refused():
    with pytest.raises(ValueError, match="7 tokens.* 37"):
        router_of(capacity_factor=1.0)(tokens(), [3, 4])


def test_a_config_makes_its_router():
    config = GPTConfig(hidden=8, num_heads=2)
    router = make_router(config, MoEConfig(router="bias_balanced", bias_rate=0.5, weights="of_all"))
    assert (type(router), router.rate, router.weights) == (BiasBalancedRouter, 0.5, "of_all")
    router = make_router(config, MoEConfig(capacity_factor=1.5))
    assert (type(router), router.capacity_factor) == (TopKRouter, 1.5)
    assert type(make_router(config, MoEConfig(router="expert_choice"))) is ExpertChoiceRouter


def test_experts_are_dealt_out_in_order_and_the_first_ranks_have_more():
    assert experts_by_rank(5, 3) == (range(2), range(2, 4), range(4, 5))
    assert experts_by_rank(2, 3) == (range(1), range(1, 2), range(2, 2))
    assert experts_by_rank(8, 1) == (range(8),)


def test_a_load_adds_up_by_expert_and_by_rank():
    load = ExpertLoad(((4, 1, 0), (2, 0, 3)), ((1, 0, 0), (0, 0, 2)), experts_by_rank(3, 2))
    assert load.by_expert == [6, 1, 3]
    assert load.by_rank == [7, 3]
    assert (load.dropped_by_expert, load.num_dropped) == ([1, 0, 2], 3)
    assert load.imbalance == 1.4
    assert load.between_ranks() == [[5, 0], [2, 3]]


@pytest.mark.parametrize("enabled", [False, True])
def test_a_router_computes_in_float32_under_autocast_too(enabled):
    torch.manual_seed(0)
    router, x_ND = TopKRouter(16, 4, 2), torch.randn(8, 16)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
        logits_NE, probs_NE = router.scores(x_ND)
    assert (logits_NE.dtype, probs_NE.dtype) == (torch.float32, torch.float32)
    assert torch.equal(logits_NE, x_ND @ router.gate.weight.T)


def test_a_bias_adds_up_in_float32_whatever_the_model_is():
    router = BiasBalancedRouter(16, 2, 1, rate=0.001, weights="of_all").to(torch.bfloat16)
    assert router.gate.weight.dtype == torch.bfloat16 and router.bias_E.dtype == torch.float32
    for _ in range(1500):
        router.rebalance(torch.tensor([4, 0]))
    assert torch.allclose(router.bias_E, torch.tensor([-1.5, 1.5]), rtol=1e-3)
    assert set(router.state_dict()) == {"gate.weight", "bias_E"}
    assert router.to("meta").bias_E.is_meta
