"""Bytes of a 3D step by axis, from the journals of real ranks, equal to calc's, exactly."""

import importlib.util
import math
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from labkit import calc, run
from labkit.combined import CombinedTraining, axis_of, sent_by_axis, within
from labkit.mesh import Mesh, coordinates_at
from labkit.model import GPTConfig
from labkit.pipeline import interleaved, one_f_one_b, zero_bubble_h1
from labkit.train import TrainConfig

# Shares of different sizes: 131 tokens of vocabulary, 77 features, 7 rows.
CONFIG = GPTConfig(
    vocab=131, context=9, num_layers=4, hidden=24, num_heads=4, num_kv_heads=2, ffn=77
)
SGD = TrainConfig(num_sequences=11, optimizer="sgd")
# The example below has three axes.
CASES = {
    "zero bubble": ({"tp": 1, "dp": 2, "pp": 2}, zero_bubble_h1, 3, 1.0),
    "interleaved": ({"pp": 2, "dp": 1, "tp": 2}, partial(interleaved, virtual=2), 4, None),
    "copies of key-value heads": ({"dp": 1, "tp": 4, "pp": 1}, one_f_one_b, 3, 1.0),
    "dp alone": ({"dp": 3, "pp": 1, "tp": 1}, one_f_one_b, 2, 1.0),
}


def two_steps(world, sizes, row, num_microbatches, max_norm):
    """The second is counted: the first sends shapes ahead. Layers, and the parameters of a rank."""
    mesh = Mesh(world, **sizes)
    training = CombinedTraining(mesh, CONFIG, SGD, row, num_microbatches, max_norm=max_norm)
    tokens_BT = torch.arange(11 * 10).view(11, 10) % CONFIG.vocab
    batch = SGD.batches(None, CONFIG.context).at(0)
    batch = replace(batch, inputs_BT=tokens_BT[:, :-1], targets_BT=tokens_BT[:, 1:])
    training.step(batch)
    with world.region("counted"):
        training.step(batch)
    numel = sum(parameter.numel() for parameter in training.model.parameters())
    return training.model.layers, numel


def as_calc_has_it():
    c = CONFIG
    return calc.ModelConfig(
        layers=c.num_layers,
        hidden=c.hidden,
        heads=c.num_heads,
        kv_heads=c.kv_heads,
        ffn=c.ffn_hidden,
        vocab=c.vocab,
        context=c.context,
        biases=False,
    )


@pytest.mark.parametrize("name", CASES)
def test_each_rank_sends_along_each_axis_what_calc_says(name):
    sizes, _, num_microbatches, max_norm = case = CASES[name]
    result = run(two_steps, math.prod(sizes.values()), case, timeout=600)
    for rank, timeline in enumerate(result.timeline):
        layers, numel = result.values[rank]
        at = coordinates_at(rank, sizes)
        said = calc.combined_traffic_bytes(
            as_calc_has_it(),
            SGD.num_sequences,
            layers,
            at,
            **sizes,
            microbatches=num_microbatches,
            itemsize=4,
            clipped=max_norm is not None,
        )
        operations = within(timeline, "counted")
        measured = sent_by_axis(operations, rank, sizes)
        assert measured.pop("other") == 0
        assert measured == {axis: float(said[axis]) for axis in measured}
        assert sum(op.sent_bytes for op in operations) == float(said)
        # Nothing is equal because nothing was sent.
        assert all((measured[axis] > 0) == (size > 1) for axis, size in sizes.items())
        assert (measured["norm"] > 0) == (max_norm is not None)
        share = -(-numel // sizes["dp"])
        assert said["dp"] == 2 * (sizes["dp"] - 1) * share * 4


def operations_of_each(world):
    mesh = Mesh(world, dp=2, pp=2, tp=2)
    x = torch.ones(1)
    for axis in ("tp", "dp", "pp"):
        with world.region(axis):
            getattr(mesh, axis).all_reduce(x)
    with world.region("other"):
        mesh.combined_group("dp", "tp").all_reduce(x)
        world.all_reduce(x)


def test_an_operation_belongs_to_the_axis_in_which_its_members_differ():
    result = run(operations_of_each, 8)
    sizes = {"dp": 2, "pp": 2, "tp": 2}
    for rank, timeline in enumerate(result.timeline):
        for axis in (*sizes, "other"):
            sums = [op for op in within(timeline, axis) if op.kind == "all_reduce"]
            assert sums and {axis_of(op, rank, sizes) for op in sums} == {axis}
        with pytest.raises(ValueError, match="no region 'step' that has ended"):
            within(timeline, "step")


def test_what_an_axis_divides():
    """Twice the tp: as much over pp, half the parameters over dp. Twice the dp: half the rows."""
    config = replace(as_calc_has_it(), ffn=96, vocab=256, kv_heads=4)
    layers = [range(3), range(3, 6)]
    asked = partial(calc.combined_traffic_bytes, config, 16, layers, {}, pp=2, itemsize=4)
    one, more_tp, more_dp = asked(dp=2, tp=2), asked(dp=2, tp=4), asked(dp=4, tp=2)
    assert more_tp["pp"]["outputs"] == one["pp"]["outputs"]
    assert 0.5 < float(more_tp["dp"]) / float(one["dp"]) < 0.6  # norms and positions are whole
    assert float(more_tp["tp"]) == 1.5 * float(one["tp"])  # (n-1)/n: 1/2, 3/4
    assert float(more_dp["tp"]) == 0.5 * float(one["tp"])
    assert float(more_dp["pp"]["outputs"]) == 0.5 * float(one["pp"]["outputs"])


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"layers": [range(3)]}, "layers=.*all of 0 .embedding. to 5"),
        ({"layers": [range(2), range(2, 4), range(4, 6)]}, "a multiple of pp=2 stages"),
        ({"at": {"ep": 0}}, "'ep'; give coordinates by dp, tp and pp"),
        ({"at": {"tp": 2}}, "tp=2"),
        ({"num_sequences": 3}, "num_sequences=3 over dp=2 leave 2 for 3 microbatches; give 6"),
        ({"config": "llama2-7b"}, "give the lab's form of GPT"),
        ({"config": replace(as_calc_has_it(), tied=False)}, "an untied head"),
        ({"tp": 3}, "tp=3 cannot share 4 heads"),
        ({"microbatches": 0}, "microbatches=0"),
    ],
)
def test_what_no_step_has_is_refused_with_a_reason(wrong, words):
    given = {
        "config": as_calc_has_it(),
        "num_sequences": 11,
        "layers": [range(3), range(3, 6)],
        "at": {},
        "dp": 2,
        "tp": 2,
        "pp": 2,
        "microbatches": 3,
    }
    with pytest.raises((TypeError, ValueError), match=words):
        calc.combined_traffic_bytes(**given | wrong)


def load_example():
    path = Path(__file__).parents[2] / "examples" / "three_d.py"
    spec = importlib.util.spec_from_file_location("three_d_example", path)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    return example


def test_the_example_finds_no_difference_but_rounding():
    example, sizes = load_example(), {"dp": 2, "pp": 2, "tp": 2}
    example.SETTINGS = replace(example.SETTINGS, num_steps=2)
    result = run(example.trained, 8, (sizes,), timeout=600)
    assert max(example.largest_differences(result)) < 1e-13
    rows = example.rows_of(result, sizes)
    assert len(rows) == 8 * 4
    assert all(said == measured > 0 for _, _, said, measured in rows)
