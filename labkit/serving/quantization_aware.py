"""Quantization-aware training: weights that are rounded in every forward learn to be rounded.

    weight (full) --round--> rounded --> forward --> loss
         ^                                            |
         +------------- gradient, unchanged <---------+      straight-through

Rounding has the gradient 0 almost everywhere, so training would stop. The straight-through
estimator uses the gradient by the rounded weight as if it were by the full one. An optimizer's step
is often smaller than a step of the codes; the full weights add such steps up until a code changes.

Post-training quantization (PTQ) rounds once, after training. Quantization-aware training (QAT)
costs training steps, and is worth them where PTQ loses much: large models at 4 bits or fewer. A GPT
as small as this lab's loses almost nothing at 4 and 3 bits, and 0.1 to 0.2 nats per token at 2.

Papers: Bengio et al., arXiv:1308.3432 (straight-through); Jacob et al., arXiv:1712.05877 (QAT).
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from labkit.data import Corpus
from labkit.model import GPT, GPTConfig
from labkit.serving.quantized import rounded
from labkit.train import TrainConfig, loss, train_step


class FakeQuantize(nn.Module):
    """weight -> rounded(weight, bits, group), with the gradient of the identity."""

    def __init__(self, bits: int, group: int | None = None) -> None:
        super().__init__()
        self.bits, self.group = bits, group

    def forward(self, weight_OI: Tensor) -> Tensor:
        """The rounded weights."""
        change_OI = rounded(weight_OI.detach(), self.bits, self.group) - weight_OI.detach()
        return weight_OI + change_OI


def fake_quantize(model: GPT, bits: int, group: int | None = None) -> None:
    """Round the weights of the model's blocks in each forward; parameters stay full numbers."""
    for module in list(model.blocks.modules()):
        if isinstance(module, nn.Linear):
            parametrize.register_parametrization(module, "weight", FakeQuantize(bits, group))


class Losses(NamedTuple):
    """Mean loss on text that was not trained on, in nats per token."""

    exact: float  # trained in full numbers, not rounded
    post_training: float  # the same model, rounded afterwards
    aware: float  # the second half of the steps trained with rounded weights


def compare_quantized_training(
    config: GPTConfig,
    settings: TrainConfig,
    bits: int,
    group: int | None = None,
    corpus: Corpus | None = None,
) -> Losses:
    """Train a GPT twice on the same batches: in full numbers, and rounded in the second half.

    bits: 2 to 8.
    """
    corpus = corpus or Corpus.standard_library()
    first_N, last_N = corpus.bytes_N.tensor_split([len(corpus) * 9 // 10])
    batches = settings.batches(replace(corpus, bytes_N=first_N), config.context)
    unseen = settings.batches(replace(corpus, bytes_N=last_N), config.context)

    @torch.no_grad()
    def loss_of(model: GPT) -> float:
        return sum(loss(model, unseen.at(step)).item() for step in range(8)) / 8

    def train(model: GPT, steps: range) -> GPT:
        optimizer = settings.make_optimizer(model.parameters())
        for step in steps:
            train_step(model, optimizer, batches.at(step))
        return model

    half = settings.num_steps // 2
    model = train(GPT(config, settings.seed, settings.dtype), range(half))
    aware = copy.deepcopy(model)
    fake_quantize(aware, bits, group)
    train(model, range(half, settings.num_steps))
    train(aware, range(half, settings.num_steps))
    exact = loss_of(model)
    fake_quantize(model, bits, group)
    return Losses(exact, loss_of(model), loss_of(aware))
