"""A larger batch for the same data: how far a small GPT gets, by the rule for its learning rate."""

from dataclasses import replace

import torch

from labkit.comm import Group
from labkit.interview.runs.real_run import real_run, run
from labkit.large_batch import scaled_learning_rate
from labkit.model import GPT, GPTConfig
from labkit.optimizer import SGD
from labkit.train import TrainConfig, loss

_TINY = GPTConfig(context=8, num_layers=1, hidden=16, num_heads=2)
_NUM_SAMPLES, _BASE_BATCH, _BASE_RATE = 8192, 8, 0.01


@real_run
def loss_of_batch(batch: int, rule: str) -> float:
    """Test loss after 8,192 sequences in steps of `batch`, SGD with momentum, in one process.

    rule: "as it was", the rate of a batch of 8; "square root" or "scaled", times the root of the
    factor, or the factor. A model that knows nothing has ln 256 = 5.5.
    """
    return run(_tested, 1, (batch, rule)).values[0]


def _tested(world: Group, batch: int, rule: str) -> float:
    scaled = scaled_learning_rate(_BASE_RATE, batch, _BASE_BATCH)
    root = _BASE_RATE * (batch / _BASE_BATCH) ** 0.5
    rate = {"as it was": _BASE_RATE, "square root": root, "scaled": scaled}[rule]
    module = GPT(_TINY)
    optimizer = SGD(module.parameters(), rate, momentum=0.9)
    batches = TrainConfig(num_sequences=batch).batches(None, _TINY.context)
    for step in range(_NUM_SAMPLES // batch):
        optimizer.zero_grad()
        loss(module, batches.at(step)).backward()
        optimizer.step()
    with torch.no_grad():
        return loss(module, replace(batches, num_sequences=256, seed=99).at(0)).item()
