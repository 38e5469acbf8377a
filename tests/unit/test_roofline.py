"""Roofline: the roof, what is below it, and counts of operations that agree with calc."""

import pytest
import torch

from labkit import calc, measure, viz
from labkit.gpt_config import GPTConfig
from labkit.measure.gpt_roofline import Operation, Roofline, _operations

# 100 GFLOP/s, 10 GB/s: the ridge is at 10 FLOP per byte.
MLP = Operation("MLP", 8e9, 1e8, 0.1)
NORM = Operation("layer norm", 1e8, 1e8, 0.02)
MADE_UP = Roofline("cpu, 2 threads, float32", 100e9, 10e9, (MLP, NORM))


def test_left_of_the_ridge_the_roof_is_the_bandwidth_and_right_of_it_the_peak():
    assert MADE_UP.ridge == 10
    assert [MADE_UP.attainable(each) for each in (1, 10, 80)] == [10e9, 100e9, 100e9]
    assert (MLP.intensity, NORM.intensity) == (80, 1)
    assert (MADE_UP.share(MLP), MADE_UP.share(NORM)) == (0.8, 0.5)
    rows = [line.split() for line in MADE_UP.table().splitlines()[-2:]]
    assert (rows[0][-2:], rows[1][-2:]) == (["80%", "computing"], ["50%", "memory"])


def test_the_picture_has_a_roof_and_tells_memory_from_computing_by_shape_too():
    picture = MADE_UP.draw()
    (axes,) = picture.axes
    roof, _, mlp, norm = axes.lines
    assert list(roof.get_ydata()[1:]) == [100e9, 100e9]
    assert (mlp.get_marker(), norm.get_marker()) == ("o", "s")
    assert (mlp.get_xdata()[0], mlp.get_ydata()[0]) == (80, 80e9)
    assert picture.caption.endswith("memory: layer norm")


def test_operations_of_a_step_are_those_of_calc():
    config, batch = GPTConfig(vocab=128, context=32, num_layers=1, hidden=64, num_kv_heads=2), 2
    found = {
        name: (flops, nbytes)
        for name, flops, nbytes, _ in _operations(config, batch, "cpu", torch.float32)
    }
    sizes = calc.ModelConfig(
        layers=1, hidden=64, heads=4, kv_heads=2, ffn=256, vocab=128, context=32, biases=False
    )
    by_token = calc.flops_per_token(sizes, causal=True, parameters="non_embedding", training=False)
    projection_of_the_output = 2 * 64 * 64
    names = ("QKV projection", "attention", "MLP")
    counted = sum(found[name][0] for name in names) / (batch * 32) + projection_of_the_output
    assert counted == pytest.approx(float(by_token), rel=0.01)  # norms multiply nothing here
    x = 4 * batch * 32 * 64
    assert found["layer norm"][1] == 2 * x
    assert found["attention"][1] == 2 * x + 2 * x // 2
    assert found["MLP"][1] == 2 * x + 2 * 4 * 64 * 256


def test_a_small_model_is_measured(monkeypatch):
    monkeypatch.setattr("labkit.measure.gpt_roofline._SIDE", {"cpu": 64})
    monkeypatch.setattr("labkit.measure.gpt_roofline._COPIED", {"cpu": 2**16})
    found = measure.roofline("cpu", config=GPTConfig(), batch=1)
    assert [each.name for each in found.operations] == [
        *("embedding", "layer norm", "QKV projection", "attention", "MLP", "softmax"),
        "optimizer step",
    ]
    assert all(each.seconds > 0 for each in found.operations)
    assert max(each.flops / each.seconds for each in found.operations) <= found.flops_per_s
    assert found.device.endswith("threads, float32")


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: measure.roofline("tpu"), ValueError, "device='tpu'"),
        (lambda: viz.roofline({}, 1.0, 1.0), ValueError, "no operation to draw"),
    ],
)
def test_what_cannot_be_measured_is_refused(call, error, words):
    with pytest.raises(error, match=words):
        call()
