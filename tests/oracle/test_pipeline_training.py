"""A small GPT in a pipeline, against the serial oracle; embedding and head share their weight.

tests/serial_runs.py says how closely it follows.
"""

from dataclasses import replace
from functools import partial

import pytest
import torch

from labkit import Group, run
from labkit.model import GPT, GPTConfig
from labkit.pipeline import (
    Pipeline,
    PipelineGPT,
    gather_full_state,
    gpipe,
    interleaved,
    one_f_one_b,
    plan,
    token_loss,
    train,
    zero_bubble_h1,
    zero_bubble_v,
)
from labkit.train import TrainConfig, Trained, train_serial
from tests.serial_runs import distance, one_thread, tolerances  # noqa: F401

CONFIG = GPTConfig(context=13, num_layers=6, hidden=24, num_heads=6, num_kv_heads=3)
SGD = TrainConfig(num_sequences=13, num_steps=2, optimizer="sgd", learning_rate=0.1)
SETTINGS = {
    "sgd": SGD,
    "sgd in float64": replace(SGD, dtype=torch.float64),
    "adamw in float64": replace(SGD, optimizer="adamw", learning_rate=3e-3, dtype=torch.float64),
}
ROWS = {
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "interleaved": partial(interleaved, virtual=2),
    "zero bubble": zero_bubble_h1,
    "zero bubble, a V": zero_bubble_v,
}
# In float64 a mistake is far above rounding. What else the optimizer or the dtype could spoil is
# the same for every schedule. test_pipeline_steps.py has every schedule on 1 to 4 ranks.
RUNS = {
    1: [("1f1b", "sgd in float64")],
    2: [("1f1b", "sgd"), ("interleaved", "sgd in float64")],
    3: [("zero bubble, a V", "adamw in float64")],
    4: [(row, "sgd in float64") for row in ("gpipe", "interleaved", "zero bubble")],
}


@pytest.fixture(scope="module")
def serial() -> dict[str, Trained]:
    return {name: train_serial(CONFIG, settings) for name, settings in SETTINGS.items()}


@pytest.fixture(scope="module")
def tolerance(serial) -> dict[torch.dtype, float]:
    return tolerances(serial, "sgd")


def train_each(world: Group) -> dict[tuple[str, str], Trained]:
    m = {1: 5, 2: 4, 3: 6, 4: 8}[world.size]  # a multiple of the ranks for the interleaved one
    return {
        (row, name): train(world, CONFIG, SETTINGS[name], ROWS[row], m)
        for row, name in RUNS[world.size]
    }


@pytest.mark.parametrize("num_ranks", RUNS)
def test_losses_and_parameters_follow_the_serial_run(serial, tolerance, num_ranks):
    for of_rank in run(train_each, num_ranks, timeout=600).values:
        for (row, name), trained in of_rank.items():
            limit = tolerance[SETTINGS[name].dtype]
            assert distance(trained, serial[name]) <= limit, row
            assert trained.largest_difference(serial[name]) <= limit * 10, row  # a sum of steps


def test_losses_and_parameters_follow_the_serial_run_with_rotary_positions(tolerance):
    config, settings = replace(CONFIG, rotary=True), SETTINGS["sgd in float64"]
    expected = train_serial(config, settings)
    for trained in run(train, 2, (config, settings, one_f_one_b, 4)).values:
        assert distance(trained, expected) <= tolerance[torch.float64]


def state_of(world: Group) -> tuple[dict[str, torch.Tensor], int, list[int]]:
    schedule = plan(one_f_one_b, world.size, 2)
    model = PipelineGPT(CONFIG, schedule, world.rank, layers=[range(4), range(4, 5), range(5, 8)])
    own = sum(parameter.numel() for parameter in model.parameters())
    blocks = [int(name) for stage in model.stages.values() for name in stage.blocks]
    return gather_full_state(model, world), own, blocks


def test_a_state_is_gathered_from_any_layers_and_no_rank_holds_all_of_it():
    whole = GPT(CONFIG)
    values = run(state_of, 3).values
    for state, own, _ in values:
        assert own < whole.num_parameters / 1.4
        assert state.keys() == dict(whole.named_parameters()).keys()
        for name, parameter in whole.named_parameters():
            assert torch.equal(state[name], parameter)
    assert [blocks for _, _, blocks in values] == [[0, 1, 2], [3], [4, 5]]


def twice(world: Group) -> tuple[torch.Tensor, torch.Tensor]:
    """The tied weight's gradient after one step, and after a second one without zeroing."""
    schedule = plan(one_f_one_b, world.size, 2)
    model = PipelineGPT(CONFIG, schedule, world.rank, dtype=torch.float64)
    pipeline = Pipeline(schedule, model.stages, token_loss, world, tied=model.tied)
    tokens_BT = torch.arange(4 * 5).view(4, 5)
    pipeline.step(tokens_BT, tokens_BT)
    once = model.tied.grad.clone()
    pipeline.step(tokens_BT, tokens_BT)
    return once, model.tied.grad


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_a_tied_gradient_adds_up_over_steps(num_ranks):
    for once, both in run(twice, num_ranks).values:
        assert once.abs().max() > 0
        assert torch.allclose(both, 2 * once, rtol=1e-12)
