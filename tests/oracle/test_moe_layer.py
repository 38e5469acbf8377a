"""A layer of experts over ranks against the same layer in one process: values and all gradients.

In float64 the two differ by rounding: sums of a few hundred terms of size 1, so 1e-12 is far above
it, and far below what one row in the wrong place would do.
"""

import functools
from dataclasses import replace

import pytest
import torch

from labkit import run
from labkit.model import GPTConfig
from labkit.moe import ExpertParallelMoE, MoE, MoEConfig, expert_load
from labkit.moe.plain import switch_layer

CONFIG = GPTConfig(hidden=6, num_heads=2, ffn=5)
CASES = {
    "dropless": MoEConfig(num_experts=4),
    "drops": MoEConfig(num_experts=4, capacity_factor=0.6),
    "top 1, as it is": MoEConfig(num_experts=4, top_k=1, weights="of_all", expert_ffn=7),
    "5 experts, top 3": MoEConfig(num_experts=5, top_k=3, capacity_factor=0.9),
    "fewer experts than ranks": MoEConfig(num_experts=2, top_k=1, weights="of_all"),
    "a bias": MoEConfig(num_experts=4, router="bias_balanced"),
    "expert choice": MoEConfig(num_experts=4, router="expert_choice"),
}
PLAIN = MoEConfig(num_experts=12, top_k=1, weights="of_all")  # up to 4 ranks divide the experts
TOKENS = [7, 0, 12, 5]  # number of tokens by rank
LIMIT = 1e-12


def filled(layer):
    """By name, so that a rank's experts are those of the whole."""
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            generator = torch.Generator().manual_seed(sum(map(ord, name)))
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    if hasattr(layer.router, "bias_E"):
        layer.router.bias_E.copy_(torch.linspace(-0.2, 0.2, layer.router.num_experts))
    return layer.double()


def inputs_of(rank):
    """x (1, N, D) of a rank, and the gradient of its output."""
    generator = torch.Generator().manual_seed(rank)
    shape = (1, TOKENS[rank], CONFIG.hidden)
    return (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))


def pass_of(layer, x, grad, *groups):
    """Output, gradient of x, of the parameters by name, choices and dropped ones."""
    x.requires_grad_()
    y, routing = layer(x, *groups)
    # Through logits and probabilities too, as the auxiliary losses do.
    loss = (y * grad).sum() + routing.logits_NE.square().sum() + routing.probs_NE[:, 0].sum()
    loss.backward()
    gradients = {name: p.grad for name, p in layer.named_parameters()}
    return y.detach(), x.grad, gradients, routing.chosen_E, routing.dropped_E


def pass_of_all(world):
    passes = {
        name: pass_of(filled(ExpertParallelMoE(CONFIG, moe, world)), *inputs_of(world.rank))
        for name, moe in CASES.items()
    }
    return {**passes, "plain": plain_pass(world)}


@torch.no_grad()
def plain_pass(world):
    layer, num_here = filled(MoE(CONFIG, PLAIN)), PLAIN.num_experts // world.size
    held = range(world.rank * num_here, (world.rank + 1) * num_here)
    experts = {expert: layer.experts[str(expert)] for expert in held}
    x, _ = inputs_of(world.rank)
    return switch_layer(x[0], layer.router.gate.weight, experts, world)


@functools.cache
def ranks(world_size):
    return run(pass_of_all, world_size).values


def serial(name, world_size):
    x, grad = (torch.cat(each, 1) for each in zip(*map(inputs_of, range(world_size))))
    return pass_of(filled(MoE(CONFIG, CASES[name])), x, grad, TOKENS[:world_size])


def by_token(layer, x_ND, routing):
    """Each token through its experts, one by one."""
    y_ND = torch.zeros_like(x_ND)
    for token, expert, weight in zip(routing.token_A, routing.expert_A, routing.weight_A):
        y_ND[token] += weight * layer.experts[str(int(expert))](x_ND[token])
    return y_ND


@pytest.mark.parametrize("name", CASES)
def test_the_serial_layer_is_each_token_through_its_experts(name):
    layer = filled(MoE(CONFIG, CASES[name]))
    x = torch.randn(1, 19, CONFIG.hidden, dtype=torch.float64)
    with torch.no_grad():
        y, routing = layer(x)
        expected = by_token(layer, x[0], routing)
    torch.testing.assert_close(y[0], expected, rtol=0, atol=LIMIT)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@pytest.mark.parametrize("name", CASES)
def test_outputs_and_the_gradients_of_inputs_are_the_serial_ones(world_size, name):
    y, of_x, _, chosen, dropped = serial(name, world_size)
    values = [value[name] for value in ranks(world_size)]
    torch.testing.assert_close(torch.cat([v[0] for v in values], 1), y, rtol=0, atol=LIMIT)
    torch.testing.assert_close(torch.cat([v[1] for v in values], 1), of_x, rtol=0, atol=LIMIT)
    assert torch.equal(sum(v[3] for v in values), chosen)
    assert torch.equal(sum(v[4] for v in values), dropped)
    assert bool(dropped.sum()) == (CASES[name].capacity_factor is not None)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_the_plain_rungs_outputs_are_the_serial_ones(world_size):
    x = torch.cat([next(inputs_of(rank)) for rank in range(world_size)], 1)
    found = torch.cat([value["plain"] for value in ranks(world_size)])
    torch.testing.assert_close(found, filled(MoE(CONFIG, PLAIN))(x)[0][0], rtol=0, atol=LIMIT)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@pytest.mark.parametrize("name", CASES)
def test_an_experts_gradient_is_already_the_sum_over_the_ranks(world_size, name):
    expected = serial(name, world_size)[2]
    values = [value[name][2] for value in ranks(world_size)]
    found = {}
    for of_rank in values:
        experts = {n: g for n, g in of_rank.items() if ".experts." in f".{n}"}
        assert not experts.keys() & found.keys()  # an expert is on one rank only
        found |= experts
    # Gradients of the router are partial on every rank, and are summed here.
    found["router.gate.weight"] = sum(of_rank["router.gate.weight"] for of_rank in values)
    assert found.keys() == expected.keys()
    for parameter, gradient in expected.items():
        torch.testing.assert_close(found[parameter], gradient, rtol=0, atol=LIMIT)


def lonely(world):
    """All tokens of all ranks to expert 1, which nobody else shares."""
    layer = filled(ExpertParallelMoE(CONFIG, replace(CASES["top 1, as it is"]), world))
    with torch.no_grad():
        layer.router.gate.weight.zero_()
        layer.router.gate.weight[1] = 1
    x = torch.rand(1, TOKENS[world.rank], CONFIG.hidden, dtype=torch.float64)
    _, _, gradients, chosen, _ = pass_of(layer, x, torch.ones_like(x))
    _, routing = layer(x.detach())
    return gradients, chosen, expert_load(routing, world)


def test_experts_without_a_token_have_gradients_of_zeros():
    values = run(lonely, 4).values
    assert [chosen.tolist() for _, chosen, _ in values] == [[0, n, 0, 0] for n in TOKENS]
    for rank, (gradients, *_) in enumerate(values):
        up = gradients[f"experts.{rank}.up.weight"]
        assert bool(up.abs().sum()) == (rank == 1)


def test_a_skewed_router_gives_one_rank_most_of_the_tokens():
    for *_, load in run(lonely, 4).values:
        assert load.by_rank == [0, sum(TOKENS), 0, 0]
        assert load.imbalance == 4
        assert [sum(row) for row in load.kept] == TOKENS


def two_passes(world):
    """Gradients of two passes add up, whatever the counts of each."""
    layer = filled(ExpertParallelMoE(CONFIG, CASES["drops"], world))
    x, grad = inputs_of(world.rank)
    for part in (slice(3), slice(3, None)):
        pass_of(layer, x[:, part].clone(), grad[:, part])
    return {name: p.grad for name, p in layer.named_parameters()}


def test_gradients_of_microbatches_add_up():
    layer = filled(MoE(CONFIG, CASES["drops"]))
    for part in (slice(3), slice(3, None)):
        pairs = [[each[:, part] for each in inputs_of(rank)] for rank in range(3)]
        x, grad = (torch.cat(each, 1) for each in zip(*pairs))
        pass_of(layer, x, grad, [len(pair[0][0]) for pair in pairs])
    expected = {name: p.grad for name, p in layer.named_parameters()}
    for found in run(two_passes, 3).values:
        for name, gradient in found.items():
            if name.startswith("experts"):
                torch.testing.assert_close(gradient, expected[name], rtol=0, atol=LIMIT)


def load_of_batch(world, num_tokens, alike):
    """A fresh router and tokens that have much in common, or nothing."""
    layer = filled(ExpertParallelMoE(CONFIG, CASES["top 1, as it is"], world))
    generator = torch.Generator().manual_seed(world.rank)
    x = torch.randn(1, num_tokens, CONFIG.hidden, generator=generator, dtype=torch.float64)
    if alike:
        x = 0.1 * x + torch.linspace(-1, 1, CONFIG.hidden)
    return expert_load(layer(x)[1], world)


def test_a_batch_of_tokens_that_are_alike_makes_a_straggler():
    mixed, alike = (run(load_of_batch, 4, (400, each)).values for each in (False, True))
    for values, least, most in ((mixed, 1, 1.6), (alike, 3, 4)):
        assert len(set(values)) == 1  # every rank knows of all
        assert least <= values[0].imbalance <= most
        assert sum(values[0].by_rank) == 4 * 400
    # It is not the source: every rank's own tokens go to the same one.
    busiest = alike[0].by_rank.index(max(alike[0].by_rank))
    assert all(row.index(max(row)) == busiest for row in alike[0].between_ranks())
