"""Clipping over dp x ep: the norm is that of the whole gradient in one process."""

import functools

import pytest
import torch

from labkit import RankError, run
from labkit.mesh import Mesh
from labkit.model import GPTConfig
from labkit.moe import (
    ExpertParallelGPT,
    MoEConfig,
    MoEGPT,
    clip_gradients,
    reduce_gradients,
    shared_and_experts,
)
from labkit.train import TrainConfig

CONFIG = GPTConfig(context=6, num_layers=2, hidden=8, num_heads=2, vocab=256)
MOE = MoEConfig(num_experts=5)
BATCHES = TrainConfig(num_sequences=6).batches(None, CONFIG.context)


def loss_of(model, inputs_BT):
    return model(inputs_BT).logits_BTV.square().sum() / BATCHES.num_sequences


def clipped(world, dp, ep, max_norm):
    mesh = Mesh(world, dp=dp, ep=ep)
    model = ExpertParallelGPT(CONFIG, MOE, mesh.ep, dtype=torch.float64)
    share = BATCHES.at(0).share(world.rank, world.size)
    (loss_of(model, share.inputs_BT) * world.size).backward()
    reduce_gradients(model, mesh)
    norm = clip_gradients(model, mesh, max_norm)
    return norm.item(), {name: p.grad for name, p in model.named_parameters()}


@functools.cache
def serial():
    """Its gradients, and their norm by torch."""
    model = MoEGPT(CONFIG, MOE, dtype=torch.float64)
    loss_of(model, BATCHES.at(0).inputs_BT).backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9).item()
    return {name: p.grad for name, p in model.named_parameters()}, norm


@pytest.mark.parametrize(
    ("dp", "ep", "share"),
    [
        (1, 1, 0.25),
        (1, 2, 0.25),
        (2, 1, 0.25),
        (2, 2, 0.25),
        (2, 2, 4.0),
        (1, 6, 0.25),
    ],
)
def test_gradients_are_scaled_by_the_norm_of_all_of_them(dp, ep, share):
    expected, norm = serial()
    scale = min(1.0, share * norm / (norm + 1e-6))
    for found, gradients in run(clipped, dp * ep, (dp, ep, share * norm)).values:
        assert found == pytest.approx(norm, rel=1e-12)
        for name, gradient in gradients.items():
            torch.testing.assert_close(gradient, expected[name] * scale, rtol=1e-10, atol=1e-14)


def test_shared_parameters_and_experts_both_count_in_the_norm():
    model = MoEGPT(CONFIG, MOE, dtype=torch.float64)
    gradients, norm = serial()
    for kind in shared_and_experts(model):
        part = sum(gradients[name].square().sum() for name in kind).sqrt().item()
        assert 0.001 * norm < part < 0.9999999 * norm


def test_a_norm_of_zero_is_refused():
    with pytest.raises(Exception, match="max_norm=0: a norm above 0"):
        run(clipped, 1, (1, 1, 0))


def clipped_over_tp(world):
    mesh = Mesh(world, dp=1, ep=1, tp=2)
    clip_gradients(ExpertParallelGPT(CONFIG, MOE, mesh.ep), mesh, 1.0)


def test_clipping_over_an_axis_that_the_norm_does_not_sum_is_refused():
    with pytest.raises(RankError, match="tp=2: the norm is added up over ep alone"):
        run(clipped_over_tp, 2)
