"""Bytes, messages, memory and the bubble of real pipeline steps, against formula and simulation."""

import importlib.util
from functools import partial
from pathlib import Path

import pytest
import torch

from labkit import calc, run
from labkit.model import GPTConfig
from labkit.pipeline import (
    Costs,
    Pipeline,
    PipelineGPT,
    gpipe,
    in_flight,
    interleaved,
    one_f_one_b,
    plan,
    simulate,
    token_loss,
    zero_bubble_h1,
    zero_bubble_h2,
    zero_bubble_v,
)
from tests.replayed import replayed_step

CONFIG = GPTConfig(context=10, num_layers=6, hidden=24, num_heads=3, vocab=50)
NUM_ROWS = 9
SCHEDULES = {
    "gpipe": (gpipe, 5, 1, "round"),
    "1f1b": (one_f_one_b, 5, 1, "round"),
    "interleaved": (partial(interleaved, virtual=2), 6, 2, "round"),
    "zb_h1": (zero_bubble_h1, 5, 1, "round"),
    "zb_h2": (zero_bubble_h2, 5, 1, "round"),
    "zb_v": (zero_bubble_v, 5, 2, "v"),
}


def load_example():
    path = Path(__file__).parents[2] / "examples" / "pipeline.py"
    spec = importlib.util.spec_from_file_location("pipeline_example", path)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    return example


def two_steps(world, row, m):
    """The second step's messages: the first sends headers as well."""
    schedule = plan(row, world.size, m)
    model = PipelineGPT(CONFIG, schedule, world.rank)
    pipeline = Pipeline(schedule, model.stages, token_loss, world, tied=model.tied)
    tokens_BT = torch.zeros(NUM_ROWS, CONFIG.context, dtype=torch.int64)
    pipeline.step(tokens_BT, tokens_BT)
    with world.region("second"):
        pipeline.step(tokens_BT, tokens_BT)


@pytest.mark.parametrize("num_ranks", [1, 3])
@pytest.mark.parametrize("name", SCHEDULES)
def test_a_rank_sends_what_the_formula_says(name, num_ranks):
    row, m, virtual, placement = SCHEDULES[name]
    result = run(two_steps, num_ranks, (row, m))
    for rank, timeline in enumerate(result.timeline):
        (second,) = [each for each in timeline.regions if each.name == "second"]
        messages = [op for op in timeline.operations if op.posted_s >= second.start_s]
        assert all(op.done_s is not None for op in timeline.operations)  # nothing is left behind
        predicted = calc.pipeline_traffic_bytes(
            NUM_ROWS * CONFIG.context,
            CONFIG.hidden,
            num_ranks,
            rank,
            itemsize=4,
            virtual=virtual,
            placement=placement,
            tied_vocab=CONFIG.vocab,
        )
        assert sum(op.sent_bytes for op in messages) == predicted.value
        is_end, is_v = rank in (0, num_ranks - 1), placement == "v"
        boundaries = 0 if num_ranks == 1 else 2 * virtual - is_end * (2 if is_v else 1)
        num_tied = int(num_ranks > 1 and is_end and not is_v)
        assert sum(op.kind == "send" for op in messages) == boundaries * m + num_tied


@pytest.mark.parametrize("wrong", [{"tokens": 0}, {"hidden": 1.5}, {"stages": 0}, {"rank": 4}])
def test_counts_that_are_none_are_named(wrong):
    right = {"tokens": 8, "hidden": 4, "stages": 4, "rank": 0}
    with pytest.raises(ValueError, match=next(iter(wrong))):
        calc.pipeline_traffic_bytes(**{**right, **wrong})


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
def test_peak_activations_are_those_of_the_microbatches_in_flight(name):
    example = load_example()
    planned = in_flight(plan(example.SCHEDULES[name], 4, example.NUM_MICROBATCHES))
    found = run(example.activations, 4, (example.SCHEDULES[name],)).values
    # A loss of each microbatch remains on the last rank, and it has numbers that wait elsewhere.
    assert found == pytest.approx(planned, rel=0.1)


def test_the_examples_simulated_bubbles_are_those_of_the_closed_form():
    """tests/unit/test_pipeline_schedules.py has those of every schedule."""
    count, difference = load_example().largest_difference("interleaved")
    assert count == 85 and difference < 1e-12


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_step_of_real_ranks_takes_as_long_as_the_simulated_one_by_its_order(name):
    """Replayed from the journals. examples/pipeline.py prints what it takes on this machine."""
    schedule = plan(SCHEDULES[name][0], 4, 4)
    costs = Costs(forward=0.04, input_gradient=0.06, weight_gradient=0.05)
    replayed, simulated = replayed_step(schedule, costs), simulate(schedule, costs)
    assert replayed.makespan == pytest.approx(simulated.makespan, rel=1e-9)
    assert replayed.bubble() == pytest.approx(simulated.bubble(), rel=1e-9)
