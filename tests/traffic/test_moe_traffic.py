"""A layer of experts over ranks: operations and bytes by the journal, against calc's formula."""

import functools

import pytest
import torch

from labkit import calc, run
from labkit.calc.experts import expert_rows
from labkit.mesh import Mesh
from labkit.model import GPTConfig
from labkit.moe import (
    ExpertParallelGPT,
    ExpertParallelMoE,
    MoEConfig,
    expert_load,
    shared_and_experts,
    train,
    train_step,
)
from labkit.train import TrainConfig

CONFIG = GPTConfig(context=8, num_layers=2, hidden=16, num_heads=2)
CASES = {
    "dropless": MoEConfig(num_experts=4),
    "drops": MoEConfig(num_experts=4, capacity_factor=0.5),
    "5 experts": MoEConfig(num_experts=5, top_k=3),
    "expert choice": MoEConfig(num_experts=4, router="expert_choice"),
}
TOKENS = [9, 0, 14, 6]


def pass_of_each(world, dtype):
    found = {}
    for name, moe in CASES.items():
        torch.manual_seed(0)
        layer = ExpertParallelMoE(CONFIG, moe, world).to(dtype)
        with torch.no_grad():  # the same router everywhere
            world.broadcast(layer.router.gate.weight, out=layer.router.gate.weight)
        torch.manual_seed(world.rank)
        x = torch.randn(1, TOKENS[world.rank], CONFIG.hidden, dtype=dtype, requires_grad=True)
        with world.region(f"{name}, forward"):
            y, routing = layer(x)
        with world.region(f"{name}, backward"):
            y.sum().backward()
        found[name] = expert_load(routing, world).kept
    return found


@functools.cache
def passes(world_size, dtype):
    return run(pass_of_each, world_size, (dtype,))


def within(timeline, name):
    region = next(region for region in timeline.regions if region.name == name)
    return [op for op in timeline.operations if region.start_s <= op.posted_s <= region.end_s]


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", CASES)
def test_each_pass_sends_what_calc_says(world_size, dtype, name):
    result = passes(world_size, dtype)
    for rank, timeline in enumerate(result.timeline):
        predicted = calc.expert_parallel_traffic_bytes(
            result.values[rank][name], rank, hidden=CONFIG.hidden, itemsize=dtype.itemsize
        )
        forward = within(timeline, f"{name}, forward")
        backward = within(timeline, f"{name}, backward")
        assert [op.kind for op in forward + backward] == 5 * ["all_to_all"]
        found = {
            "forward, counts": forward[0],
            "forward, dispatch": forward[1],
            "forward, combine": forward[2],
            "backward, combine": backward[0],
            "backward, dispatch": backward[1],
        }
        assert {part: op.sent_bytes for part, op in found.items()} == {
            part: each.value for part, each in predicted.parts.items()
        }


@pytest.mark.parametrize("world_size", [2, 4])
def test_the_operations_of_a_layer_say_what_they_are(world_size):
    for timeline in passes(world_size, torch.float32).timeline:
        labels = [op.label for op in within(timeline, "dropless, forward")]
        assert labels == ["counts", "dispatch", "combine"]


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_what_a_rank_sends_to_each_other_is_in_the_splits(world_size):
    result = passes(world_size, torch.float32)
    for rank, timeline in enumerate(result.timeline):
        rows = expert_rows(result.values[rank]["drops"])
        _, dispatched, combined = within(timeline, "drops, forward")
        row_bytes = 4 * CONFIG.hidden
        sent, received = rows[rank], [row[rank] for row in rows]
        assert dispatched.sent_bytes == row_bytes * (sum(sent) - sent[rank])
        assert dispatched.received_bytes == row_bytes * (sum(received) - received[rank])
        assert combined.received_bytes == dispatched.sent_bytes


def step_of(world, dp, ep):
    """A step, and how many numbers of each kind its gradients have."""
    mesh = Mesh(world, dp=dp, ep=ep)
    moe = CASES["dropless"]
    settings = TrainConfig(num_sequences=6, optimizer="sgd", dtype=torch.float64)
    model = ExpertParallelGPT(CONFIG, moe, mesh.ep, dtype=torch.float64)
    optimizer = settings.make_optimizer(model.parameters())
    batch = settings.batches(None, CONFIG.context).at(0)
    with world.region("step"):
        train_step(model, optimizer, batch, mesh)
    return [sum(p.numel() for p in each.values()) for each in shared_and_experts(model)]


@pytest.mark.parametrize(("dp", "ep"), [(1, 1), (2, 1), (1, 2), (2, 2), (1, 3)])
def test_a_step_sums_shared_gradients_over_all_and_experts_over_dp(dp, ep):
    result = run(step_of, dp * ep, (dp, ep))
    layers, moe = CONFIG.num_layers, CASES["dropless"]
    for timeline, (shared, experts) in zip(result.timeline, result.values):
        operations = within(timeline, "step")
        kinds = [op.kind for op in operations if op.kind != "split"]
        assert kinds.count("all_to_all") == 5 * layers
        sums = [op for op in operations if op.kind == "all_reduce"]
        assert [(op.label, op.payload_bytes, len(op.group)) for op in sums] == [
            ("expert load", 8 * 2 * layers * moe.num_experts, dp * ep),
            ("shared gradients", 8 * shared, dp * ep),
            ("gradients of experts", 8 * experts, dp),
        ]
        assert len(kinds) == 5 * layers + 3


def test_phases_of_a_step_are_named():
    settings = TrainConfig(num_sequences=4, num_steps=2)
    result = run(train, 2, (CONFIG, CASES["dropless"], settings))
    for timeline in result.timeline:
        names = [region.name for region in timeline.regions]
        assert names == 2 * ["forward", "backward", "reduce", "optimizer"]
