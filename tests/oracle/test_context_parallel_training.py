"""A small GPT on sequences that are cut, against the serial oracle.

tests/serial_runs.py says how closely it follows.
"""

from dataclasses import replace

import pytest
import torch

from labkit import Group, run
from labkit.context_parallel import (
    ContextParallelGPT,
    contiguous,
    gathered_attention,
    ring_attention,
    train,
    ulysses_attention,
    zigzag,
)
from labkit.model import GPT, GPTConfig
from labkit.train import TrainConfig, Trained, train_serial
from tests.serial_runs import distance, one_thread, tolerances  # noqa: F401

CONFIG = GPTConfig(context=13, num_layers=2, hidden=48, num_heads=12)  # 13: nothing divides it
SGD = TrainConfig(num_sequences=3, num_steps=2, optimizer="sgd", learning_rate=0.1)
SETTINGS = {
    "sgd": SGD,
    "sgd in float64": replace(SGD, dtype=torch.float64),
    "adamw in float64": replace(SGD, optimizer="adamw", learning_rate=3e-3, dtype=torch.float64),
}
WAYS = {
    "ring, contiguous": (ring_attention, contiguous),
    "ring, zigzag": (ring_attention, zigzag),
    "ulysses, contiguous": (ulysses_attention, contiguous),
    "gathered, zigzag": (gathered_attention, zigzag),
}
# In float64 a mistake is far above rounding; what else the optimizer or the dtype could spoil is
# the same for every way.
RUNS = [("ring, zigzag", "sgd in float64"), ("gathered, zigzag", "sgd in float64")]
RUNS += [("ring, contiguous", "sgd"), ("ulysses, contiguous", "adamw in float64")]


@pytest.fixture(scope="module")
def serial() -> dict[str, Trained]:
    return {name: train_serial(CONFIG, settings) for name, settings in SETTINGS.items()}


@pytest.fixture(scope="module")
def tolerance(serial) -> dict[torch.dtype, float]:
    return tolerances(serial, "sgd")


def train_each(world: Group) -> dict[tuple[str, str], Trained]:
    return {
        (way, name): train(world, CONFIG, SETTINGS[name], None, *WAYS[way]) for way, name in RUNS
    }


@pytest.fixture(scope="module", params=[1, 2, 3, 4])
def ranks(request) -> list[dict[tuple[str, str], Trained]]:
    return run(train_each, request.param, timeout=600).values


def test_the_tolerances_are_rounding_and_nothing_else(tolerance):
    assert 1e-7 < tolerance[torch.float32] < 5e-5
    assert 1e-16 < tolerance[torch.float64] < 1e-13


@pytest.mark.parametrize(("way", "name"), RUNS)
def test_losses_and_parameters_follow_the_serial_ones(ranks, serial, tolerance, way, name):
    for trained in ranks:
        limit = tolerance[SETTINGS[name].dtype]
        assert distance(trained[way, name], serial[name]) < limit
        assert trained[way, name].largest_difference(serial[name]) < limit
        assert trained[way, name].largest_difference(ranks[0][way, name]) == 0


@pytest.mark.parametrize("placement", [contiguous, zigzag])
def test_ranks_without_a_token_take_part(tolerance, placement):
    config = replace(CONFIG, context=3)
    expected = train_serial(config, SGD)
    for trained in run(train, 4, (config, SGD, None, ring_attention, placement)).values:
        assert distance(trained, expected) < tolerance[torch.float32]


def test_rotary_positions_are_those_of_the_whole_sequence(tolerance):
    config, settings = replace(CONFIG, rotary=True), SETTINGS["sgd in float64"]
    expected = train_serial(config, settings)
    for trained in run(train, 2, (config, settings, None, ring_attention, zigzag)).values:
        assert distance(trained, expected) < tolerance[torch.float64]


def own_keys_only(q, k, v, group, causal, placement, **cut):
    """Every rank looks at what it has itself."""
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def with_another_placement(q, k, v, group, causal, placement, **cut):
    """Tokens were dealt out in zigzag, and are looked at as if they were contiguous."""
    return ring_attention(q, k, v, group, causal, contiguous, **cut)


def without_a_mask(q, k, v, group, causal, placement, **cut):
    """Tokens look ahead."""
    return ring_attention(q, k, v, group, False, placement, **cut)


@pytest.mark.parametrize("mistake", [own_keys_only, with_another_placement, without_a_mask])
def test_a_wrong_attention_differs_from_the_oracle_at_the_first_steps(serial, tolerance, mistake):
    wrong = run(train, 3, (CONFIG, SGD, None, mistake, zigzag)).values[0]
    assert distance(wrong, serial["sgd"]) > 100 * tolerance[torch.float32]


def test_a_step_sums_every_gradient_once_and_attends_once_per_layer():
    world_size, num_steps = 3, SGD.num_steps
    result = run(train, world_size, (CONFIG, SGD))
    gradient_bytes = 4 * GPT(CONFIG).num_parameters
    for timeline, traffic in zip(result.timeline, result.traffic, strict=True):
        reduced = traffic.by_operation["all_reduce"]
        assert reduced.payload_bytes == num_steps * (gradient_bytes + 8)  # and the losses
        sends = traffic.by_operation["send"].count
        assert sends == num_steps * CONFIG.num_layers * 3 * (world_size - 1)
        phases = [each.name for each in timeline.regions if " " not in each.name]
        assert phases == num_steps * ["forward", "backward", "reduce", "optimizer"]


def names_and_values(world: Group):
    return ContextParallelGPT(CONFIG, world, seed=5).state_dict()


def test_a_state_dict_is_that_of_the_whole_model():
    expected = GPT(CONFIG, seed=5).state_dict()
    for found in run(names_and_values, 2).values:
        assert list(found) == list(expected)
        assert all(torch.equal(found[name], expected[name]) for name in expected)
