"""A small GPT with experts over dp x ep ranks, against the serial run of the same routing.

In float64 both round alike, so 1e-12 after some steps is far above rounding. A gradient of the
wrong scale, a row in the wrong place or a loss of the wrong batch are far above that: see the
mistakes.
"""

import functools
import math
import weakref
from dataclasses import replace

import pytest
import torch

from labkit import RankError, run
from labkit.mesh import Mesh
from labkit.model import GPTConfig
from labkit.moe import (
    ExpertParallelGPT,
    MoEConfig,
    MoEGPT,
    gather_parameters,
    reduce_gradients,
    shared_and_experts,
    train,
    train_moe,
    train_serial,
)
from labkit.moe.router import load_balancing_loss
from labkit.train import TrainConfig
from tests.serial_runs import one_thread  # noqa: F401

CONFIG = GPTConfig(context=7, num_layers=2, hidden=16, num_heads=2)
# 5 sequences: no number of ranks divides them. Coefficients far above the usual ones, so that a
# wrong auxiliary loss shows.
SGD = TrainConfig(
    num_sequences=5, num_steps=2, optimizer="sgd", learning_rate=0.3, dtype=torch.float64
)
MOE = MoEConfig(num_experts=4, balance_coefficient=0.2, z_coefficient=0.05)
CASES = {
    "dropless": (MOE, SGD),
    "drops": (replace(MOE, capacity_factor=0.8), SGD),
    "5 experts": (replace(MOE, num_experts=5, top_k=3), SGD),
    "top 1": (replace(MOE, top_k=1, weights="of_all", capacity_factor=1.0), SGD),
    "a bias": (replace(MOE, router="bias_balanced", bias_rate=0.01), SGD),
    "expert choice": (replace(MOE, router="expert_choice"), SGD),
}
ADAMW = replace(SGD, optimizer="adamw", learning_rate=3e-3)
# Every routing on a mesh of two axes. On (1, 6) a rank has no sequence.
RUNS = [((2, 2), name) for name in CASES]
RUNS += [((1, 3), "drops"), ((1, 3), "5 experts"), ((1, 6), "drops")]
RUNS += [(mesh, "dropless") for mesh in [(1, 1), (1, 2), (2, 1)]]
LIMIT = 1e-12


def train_each(world, dp, ep, names):
    return {name: train(world, CONFIG, *CASES[name], dp=dp, ep=ep) for name in names}


@functools.cache
def ranks(dp, ep):
    names = [name for mesh, name in RUNS if mesh == (dp, ep)]
    return run(train_each, dp * ep, (dp, ep, names), timeout=600).values


@functools.cache
def serial(name, num_groups):
    return train_serial(CONFIG, *CASES[name], num_groups=num_groups)


def differences(found, expected):
    """Return the differences of losses, of their terms, and of parameters."""
    losses = [(found.losses, expected.losses)]
    losses += [(found.terms[term], expected.terms[term]) for term in expected.terms]
    return (
        max(abs(a - b) for one, two in losses for a, b in zip(one, two, strict=True)),
        found.largest_difference(expected),
    )


@pytest.mark.parametrize(("mesh", "name"), RUNS)
def test_steps_are_the_serial_ones(mesh, name):
    expected = serial(name, math.prod(mesh))
    for trained in ranks(*mesh):
        assert max(differences(trained[name], expected)) < LIMIT
        assert torch.equal(trained[name].chosen_SLE, expected.chosen_SLE)
        assert torch.equal(trained[name].dropped_SLE, expected.dropped_SLE)


@pytest.mark.parametrize("name", CASES)
def test_the_serial_runs_learn_and_drop_where_they_should(name):
    trained = serial(name, 4)
    assert trained.losses[-1] < trained.losses[0] - 0.03
    moe, _ = CASES[name]
    assert bool(trained.dropped_SLE.sum()) == (moe.capacity_factor is not None)
    total = SGD.num_sequences * CONFIG.context * moe.top_k
    if name != "expert choice":
        assert (trained.chosen_SLE.sum(2) == total).all()


def test_groups_decide_what_is_dropped():
    assert not torch.equal(serial("drops", 1).dropped_SLE, serial("drops", 4).dropped_SLE)
    # and nothing else: without a capacity the groups make no difference
    assert max(differences(serial("dropless", 1), serial("dropless", 4))) == 0


def divided_by_dp(module, mesh):
    """The classic mistake: each gradient is divided by the ranks that it was summed over."""
    everyone = mesh.combined_group("dp", "ep")
    shared, experts = shared_and_experts(module)
    train_moe._reduce(shared.values(), everyone, everyone.size, "shared")
    train_moe._reduce(experts.values(), mesh.dp, mesh.dp.size, "experts")


def summed_over_all(module, mesh):
    """Different experts are added up as if they were one."""
    everyone = mesh.combined_group("dp", "ep")
    train_moe._reduce(module.parameters(), everyone, everyone.size, "all")


def over_dp_only(module, mesh):
    """Shared parameters are taken for sharded ones."""
    train_moe._reduce(module.parameters(), mesh.dp, mesh.combined_group("dp", "ep").size, "all")


def own_balance(routing, chosen_E=None, num_tokens=None):
    """The mean over ranks of their own balance losses; the shares are equal here."""
    part = load_balancing_loss(routing)
    return part * (1 if num_tokens is None else routing.num_tokens / num_tokens)


MISTAKES = {
    "divided by dp": ("reduce_gradients", divided_by_dp),
    "summed over all": ("reduce_gradients", summed_over_all),
    "balance of each rank": ("load_balancing_loss", own_balance),
}


def train_with(world, where, mistake, settings):
    setattr(train_moe, where, mistake)
    try:
        return train(world, CONFIG, MOE, settings, dp=2, ep=2)
    finally:
        original = {
            "reduce_gradients": reduce_gradients,
            "load_balancing_loss": load_balancing_loss,
        }
        setattr(train_moe, where, original[where])


@pytest.mark.parametrize("name", MISTAKES)
def test_the_classic_mistakes_differ_from_the_oracle(name):
    for wrong in run(train_with, 4, (*MISTAKES[name], SGD)).values:
        assert max(differences(wrong, serial("dropless", 4))) > 1e6 * LIMIT


def test_copies_of_shared_parameters_that_differ_after_a_step_are_named():
    mistake = ("reduce_gradients", over_dp_only, SGD)
    with pytest.raises(RankError, match="copies of .*norm.weight.* differ between ranks"):
        run(train_with, 4, mistake)


def divisor_of_experts(world):
    """Gradients of one step, before and after they are reduced."""
    mesh = Mesh(world, dp=2, ep=2)
    model = ExpertParallelGPT(CONFIG, MOE, mesh.ep, dtype=torch.float64)
    batch = SGD.batches(None, CONFIG.context).at(0).share(world.rank, world.size)
    model(batch.inputs_BT).logits_BTV.square().mean().backward()
    name = next(name for name in shared_and_experts(model)[1])
    parameter = dict(model.named_parameters())[name]
    before = parameter.grad.clone()
    reduce_gradients(model, mesh)
    return name, before, parameter.grad


def test_an_experts_gradient_is_its_sum_over_dp_divided_by_all_ranks():
    values = run(divisor_of_experts, 4).values
    for rank, (name, _, reduced) in enumerate(values):
        copies = [values[rank % 2], values[rank % 2 + 2]]
        assert {each[0] for each in copies} == {name}
        torch.testing.assert_close(reduced, (copies[0][1] + copies[1][1]) / 4)


def without_backward(world):
    mesh = Mesh(world, dp=1, ep=2)
    reduce_gradients(ExpertParallelGPT(CONFIG, MOE, mesh.ep), mesh)


def test_missing_gradients_are_named():
    with pytest.raises(Exception, match=r"has no gradient for .*call backward first"):
        run(without_backward, 2)


def names_and_values(world):
    return ExpertParallelGPT(CONFIG, MOE, world, seed=5).state_dict()


def test_a_ranks_experts_are_initialized_as_in_the_whole_model():
    expected = MoEGPT(CONFIG, MOE, seed=5).state_dict()
    found = {}
    for of_rank in run(names_and_values, 3).values:
        for name, tensor in of_rank.items():
            assert torch.equal(tensor, expected[name])
        found |= of_rank
    assert found.keys() == expected.keys()


def test_weights_into_the_residual_stream_are_initialized_smaller_as_in_a_gpt():
    state = MoEGPT(replace(CONFIG, hidden=64), MOE).state_dict()
    for number in range(MOE.num_experts):
        up, down = (state[f"blocks.1.mlp.experts.{number}.{m}.weight"] for m in ("up", "down"))
        assert up.std().item() == pytest.approx(0.02, rel=0.05)
        assert down.std().item() == pytest.approx(0.02 / 4**0.5, rel=0.05)  # 2 layers


def test_a_mesh_that_does_not_fit_is_refused():
    with pytest.raises(Exception, match="dp=3 . ep=1 makes 3 ranks, but there are 4"):
        run(train, 4, (CONFIG, MOE, SGD, None, 3))


def reduced_over_other_ranks(world, sizes):
    """The layer's experts are sharded over all ranks, and the mesh says otherwise."""
    model = ExpertParallelGPT(CONFIG, MOE, world, dtype=torch.float64)
    model(BATCH.share(world.rank, world.size).inputs_BT).logits_BTV.sum().backward()
    reduce_gradients(model, Mesh(world, **sizes))


def reduced_without_ranks(world, sizes):
    model = MoEGPT(CONFIG, MOE, dtype=torch.float64)
    model(BATCH.share(world.rank, world.size).inputs_BT).logits_BTV.sum().backward()
    reduce_gradients(model, Mesh(world, **sizes))


BATCH = SGD.batches(None, CONFIG.context).at(0)


@pytest.mark.parametrize(
    ("program", "sizes"),
    [
        (reduced_over_other_ranks, {"dp": 2, "ep": 1}),
        (reduced_without_ranks, {"dp": 1, "ep": 2}),
    ],
)
def test_experts_that_are_not_sharded_over_the_mesh_are_refused(program, sizes):
    words = r"blocks.0.mlp: its experts are sharded over ranks .*, and mesh.ep has .*pass mesh.ep"
    with pytest.raises(RankError, match=words):
        run(program, 2, (sizes,))


def test_all_experts_on_every_rank_are_reduced_over_dp():
    run(reduced_without_ranks, 2, ({"dp": 2, "ep": 1},))


def with_other_settings(world, moe, settings):
    mine = (MOE, SGD) if world.rank == 0 else (moe, settings)
    return train(world, CONFIG, *mine)


@pytest.mark.parametrize(
    "other",
    [
        (MOE, replace(SGD, seed=1)),
        (replace(MOE, top_k=1, weights="of_all"), SGD),
        (replace(MOE, router="bias_balanced"), SGD),
    ],
    ids=["seed", "top_k", "router"],
)
def test_ranks_that_train_other_things_are_refused(other):
    words = r"ranks 1, 2 have other sizes, routing or settings than rank 0"
    with pytest.raises(RankError, match=words):
        run(with_other_settings, 3, other)


def drifted(world, name):
    """A copy that one rank has changed."""
    mesh = Mesh(world, dp=2, ep=2)
    model = ExpertParallelGPT(CONFIG, MOE, mesh.ep, dtype=torch.float64)
    own = dict(model.named_parameters())
    if name in own and world.rank == world.size - 1:
        with torch.no_grad():
            own[name].view(-1)[0].mul_(1 + 1e-15)
    gather_parameters(model, world)


@pytest.mark.parametrize("name", ["norm.weight", "blocks.1.mlp.experts.3.up.weight"])
def test_copies_that_have_drifted_apart_are_named(name):
    with pytest.raises(RankError, match=f"copies of {name} differ between ranks"):
        run(drifted, 4, (name,))


@functools.cache
def clipped_serially(max_norm):
    return train_serial(CONFIG, MOE, ADAMW, num_groups=4, max_norm=max_norm)


def train_clipped(world, max_norm):
    return train(world, CONFIG, MOE, ADAMW, dp=2, max_norm=max_norm)


def test_clipped_steps_are_the_serial_ones_and_no_others():
    max_norm = 0.05
    expected = clipped_serially(max_norm)
    for trained in run(train_clipped, 4, (max_norm,)).values:
        assert max(differences(trained, expected)) < LIMIT
    assert max(differences(expected, clipped_serially(None))) > 1e-4


def what_outlives_backward(world):
    """Return whether the logits are alive when gradients are reduced, and when the step is over."""
    seen, made = [], []

    class Watched(ExpertParallelGPT):
        def forward(self, *arguments):
            output = super().forward(*arguments)
            made.append(weakref.ref(output.logits_BTV))
            return output

    def reduced(model, mesh):
        seen.append(made[-1]() is None)
        reduce_gradients(model, mesh)

    mesh = Mesh(world, dp=1, ep=world.size)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train_moe, "reduce_gradients", reduced)
        model = Watched(CONFIG, MOE, mesh.ep, dtype=torch.float64)
        optimizer = SGD.make_optimizer(model.parameters())
        terms, _ = train_moe.train_step(model, optimizer, BATCH, mesh)
    return seen, [each.requires_grad for each in terms.values()]


def test_logits_are_freed_before_gradients_are_reduced():
    for value in run(what_outlives_backward, 2).values:
        assert value == ([True], [False] * 3)
