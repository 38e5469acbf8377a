"""The norm of a gradient that dp, tp and pp have cut: equal to the serial one to 1e-12.

Every classic mistake is computed here as well, from the same fragments on the same ranks, and must
be far from it: a check that one of them passes would check nothing.
"""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from labkit import run
from labkit.combined import CombinedTraining, clip_gradients
from labkit.combined.gpt_3d import TIED
from labkit.global_norm import global_norm
from labkit.mesh import Mesh
from labkit.model import GPT, GPTConfig
from labkit.train import TrainConfig, loss

CONFIG = GPTConfig(
    vocab=251, context=9, num_layers=2, hidden=24, num_heads=4, num_kv_heads=2, ffn=77
)
SGD = TrainConfig(num_sequences=7, optimizer="sgd", learning_rate=0.1, dtype=torch.float64)
EVENLY = [range(2), range(2, 4)]
LAYOUTS = {
    "three axes": {"dp": 2, "pp": 2, "tp": 2},
    "two ranks for each key-value head": {"tp": 4, "pp": 1, "dp": 1},
    "one rank has both ends": {"dp": 2, "tp": 2, "pp": 1},
}
MAX_NORM = 0.25


def training_after_backward(world, sizes):
    """A rank whose gradients are there, and averaged over dp."""
    mesh = Mesh(world, **sizes)
    layers = EVENLY if mesh.pp.size == 2 else None
    training = CombinedTraining(mesh, CONFIG, SGD, num_microbatches=2, layers=layers)
    training.backward(SGD.batches(None, CONFIG.context).at(0))
    return training


def norms(world, sizes):
    """The norm, with its bits, the serial one, and what each mistake makes of it."""
    training = training_after_backward(world, sizes)
    model, gradients = training.model, training.optimizer.named_gradients()
    copies = model.num_copies()
    once = dict.fromkeys(copies, 1)

    def norm_of(num_holders, group):
        return global_norm([(each, num_holders[name]) for name, each in gradients], group).item()

    squares = sum(gradient.square().sum().item() for _, gradient in gradients)
    mistakes = {
        "each rank's own": math.sqrt(squares),
        "over dp only": norm_of(copies, model.mesh.dp),
        "copies count as often as they are held": norm_of(once, world),
    }
    if model.mesh.pp.size == 2:
        twice = copies | ({TIED: copies[TIED] // 2} if TIED in copies else {})
        mistakes["tied twice"] = norm_of(twice, world)
    if training.mesh.tp.size == 4:
        sharded = {n: 1 if "key" in n or "value" in n else c for n, c in copies.items()}
        mistakes["shared heads twice"] = norm_of(sharded, world)
    norm = clip_gradients(model, training.optimizer, MAX_NORM)
    after = norm_of(copies, world)
    return norm.item().hex(), norm.item(), after, mistakes


def serial_norm():
    model = GPT(CONFIG, SGD.seed, SGD.dtype)
    loss(model, SGD.batches(None, CONFIG.context).at(0)).backward()
    return nn.utils.clip_grad_norm_(model.parameters(), 1.0).item()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_norm_is_the_serial_one_on_every_rank_and_no_mistake_is(layout):
    sizes, expected = LAYOUTS[layout], serial_norm()
    found = run(norms, math.prod(sizes.values()), (sizes,)).values
    assert len({bits for bits, *_ in found}) == 1
    for _, norm, after, mistakes in found:
        assert norm == pytest.approx(expected, rel=1e-12)
        assert after == pytest.approx(MAX_NORM, rel=1e-5) and expected > 2 * MAX_NORM
        for name, mistake in mistakes.items():
            assert abs(mistake - expected) > 1e-4 * expected, name


def clipped_by_too_much(world):
    """A norm that nothing exceeds leaves every bit."""
    training = training_after_backward(world, LAYOUTS["one rank has both ends"])
    gradients = training.optimizer.named_gradients()
    before = [gradient.clone() for _, gradient in gradients]
    clip_gradients(training.model, training.optimizer, 1e6)
    return all(torch.equal(a, b) for a, (_, b) in zip(before, gradients, strict=True))


def test_a_short_gradient_stays_as_it_is():
    assert all(run(clipped_by_too_much, 4).values)


def in_float32(world):
    mesh = Mesh(world, dp=2, tp=2, pp=1)
    settings = replace(SGD, dtype=torch.float32)
    training = CombinedTraining(mesh, CONFIG, settings, num_microbatches=1, max_norm=MAX_NORM)
    _, norm = training.step(settings.batches(None, CONFIG.context).at(0))
    return norm


def test_a_step_says_the_norm_that_it_found():
    for norm in run(in_float32, 4).values:
        assert norm == pytest.approx(serial_norm(), rel=1e-5)
