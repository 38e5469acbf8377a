"""Measure memory and 16-bit numbers in one process; each function returns one number.

16-bit training with Adam, by what is kept for each parameter (bytes_per_parameter):

    bf16       all in bfloat16, as AdamW does it by default                 2 + 2 + 2 + 2         8
    moments    Adam's two moments in float32                                2 + 2 + 4 + 4        12
    masters    a float32 master copy as well, which is what Adam updates    2 + 2 + 4 + 4 + 4    16

Wire: nothing. Metered where a backward pass has ended, after a step that made the states.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from labkit import Group
from labkit.interview.real_run import real_run, run
from labkit.memory import Meter
from labkit.model import GPT, GPTConfig
from labkit.optimizer import AdamState, AdamW, Optimizer, state_tensors
from labkit.precision import MasterWeights
from labkit.recompute import recompute
from labkit.train import TrainConfig, loss, train_step

_SMALL = GPTConfig()
_BATCHES = TrainConfig(num_sequences=8).batches(None, _SMALL.context)
_WIDE = GPTConfig(num_layers=4, hidden=128, num_heads=8, context=256)
_DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}
_DTYPES |= {"float8_e4m3fn": torch.float8_e4m3fn, "float8_e4m3fnuz": torch.float8_e4m3fnuz}
_DTYPES |= {"float8_e5m2": torch.float8_e5m2, "float8_e5m2fnuz": torch.float8_e5m2fnuz}
RECIPES = ("bf16", "moments", "masters")
WIDTH = 256
KINDS = ("parameters", "gradients", "optimizer states")


@real_run
def state_bytes_per_parameter(dtype: str) -> float:
    """Parameters, gradients and what AdamW keeps, at their peak; 16 bits have float32 masters."""
    return run(_states, 1, args=(_DTYPES[dtype],)).values[0]


def _states(world: Group, dtype: torch.dtype) -> float:
    module = GPT(_SMALL, dtype=dtype)
    masters: list[torch.Tensor] = []
    training: AdamW | MasterWeights
    optimizer: Optimizer
    if dtype is torch.float32:
        training = optimizer = AdamW(module.parameters(), 1e-3)
    else:
        training = MasterWeights(module.parameters(), lambda masters: AdamW(masters, 1e-3))
        optimizer, masters = training.optimizer, training.masters
    with Meter(module, optimizer) as meter:
        meter.mark(masters, "optimizer states")
        for step in range(2):
            training.zero_grad()
            loss(module, _BATCHES.at(step)).backward()
            training.step()
    kinds = ("parameters", "gradients", "optimizer states")
    return sum(meter.usage.peak_of(kind) for kind in kinds) / module.num_parameters


class _Again(nn.Module):
    """A block that keeps its input only."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return recompute(self.block, x)


def recomputed(what: str) -> float:
    """Return a number of a GPT with all blocks recomputed, over that of the same GPT without.

    what: "operations", counted; "activations", kept when forward has finished.
    """
    plain, again = _both()
    return again[what] / plain[what]


@real_run
def _both() -> list[dict[str, float]]:
    return run(_with_and_without, 1).values[0]


def _with_and_without(world: Group) -> list[dict[str, float]]:
    batch = TrainConfig(num_sequences=1).batches(None, _WIDE.context).at(0)
    plain, again = GPT(_WIDE), GPT(_WIDE)
    again.blocks = nn.ModuleList(_Again(block) for block in again.blocks)
    found = []
    for module in (plain, again):
        with FlopCounterMode(display=False) as counter:
            loss(module, batch).backward()
        module.zero_grad()
        with Meter(module) as meter:
            value = loss(module, batch)
            kept = meter.usage.at_end["activations"]
            value.backward()
        found.append({"operations": counter.get_total_flops(), "activations": kept})
    return found


@real_run
def smallest_above_zero(dtype: str) -> float:
    """Return the smallest number above 0 that a type of 16 bits holds, found by halving."""
    x = torch.ones((), dtype=_DTYPES[dtype])
    while x / 2 > 0:
        x = x / 2
    return x.item()


def largest(dtype: str) -> float:
    """Return the largest finite number of a type."""
    return torch.finfo(_DTYPES[dtype]).max


def number_of_byte(dtype: str, byte: int) -> float:
    """Return the number that a byte is in a type of 8 bits."""
    return torch.tensor([byte], dtype=torch.uint8).view(_DTYPES[dtype]).item()


@real_run
def gradients_lost(dtype: str, scale_power: int) -> float:
    """The share of gradients that are 0 in 16 bits and not in float64, by the loss's scale.

    It is a GPT that has trained for 50 steps; its loss counts a 1,024th, as one of so many
    microbatches. The scale is 2 ** scale_power.
    """
    return run(_lost, 1, args=(_trained(3e-3)[0], _DTYPES[dtype], scale_power)).values[0]


@real_run
def _trained(learning_rate: float) -> tuple[GPT, AdamW]:
    return run(_fifty_steps, 1, args=(learning_rate,)).values[0]


def _fifty_steps(world: Group, learning_rate: float) -> tuple[GPT, AdamW]:
    module = GPT(_SMALL)
    optimizer = AdamW(module.parameters(), learning_rate)
    for step in range(50):
        train_step(module, optimizer, _BATCHES.at(step))
    return module, optimizer


def gradients_lost_under(dtype: str, scale_power: int) -> float:
    """Return the power of ten above `gradients_lost`. A share this small depends on the processor.

    Products in bfloat16 and float16 are added up in another order by each kind of matrix unit.
    """
    return 10.0 ** math.ceil(math.log10(gradients_lost(dtype, scale_power)))


def _lost(world: Group, module: GPT, dtype: torch.dtype, scale_power: int) -> float:
    def gradients(dtype: torch.dtype, factor: float) -> torch.Tensor:
        other = GPT(_SMALL, dtype=dtype)
        other.load_state_dict(module.state_dict())
        batch = _BATCHES.at(50)
        logits = other(batch.inputs_BT).flatten(0, 1).float()
        value = nn.functional.cross_entropy(logits, batch.targets_BT.flatten())
        (value * factor).backward()
        of_each = (p.grad for p in other.parameters())
        return torch.cat([grad.flatten().double() for grad in of_each if grad is not None])

    true = gradients(torch.float64, 1 / 1024)
    found = gradients(dtype, 2.0**scale_power / 1024)
    return ((found == 0) & (true != 0)).double().mean().item()


@real_run
def left_alone(learning_rate: float) -> float:
    """The share of bfloat16 parameters that one AdamW step, after 50, leaves as they were."""
    return run(_left_alone, 1, args=(*_trained(1e-3), learning_rate)).values[0]


def _left_alone(world: Group, module: GPT, optimizer: AdamW, learning_rate: float) -> float:
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(parameter.bfloat16())
    before = copy.deepcopy(list(module.parameters()))
    optimizer.learning_rate = learning_rate
    train_step(module, optimizer, _BATCHES.at(50))
    old, new = (torch.cat([p.flatten() for p in each]) for each in (before, module.parameters()))
    return (old == new.bfloat16()).double().mean().item()


def spacing(dtype: str, near: float) -> float:
    """From `near` to the next larger number of that type."""
    one = torch.tensor(near, dtype=_DTYPES[dtype])
    return torch.nextafter(one, torch.tensor(math.inf, dtype=one.dtype)).item() - one.item()


@real_run
def bytes_per_parameter(recipe: str) -> float:
    """Metered bytes of parameters, gradients and optimizer states, over the number of parameters.

    recipe: "bf16", "moments" or "masters", see above.
    """
    if recipe not in RECIPES:
        raise ValueError(f"recipe={recipe!r}: give one of {', '.join(RECIPES)}")
    return run(_held, 1, args=(recipe,)).values[0] / WIDTH**2


class _Moments32(AdamW):
    """Moments in float32 beside parameters in 16 bits, which round each update."""

    def _update(self, parameter: Tensor, grad: Tensor, state: AdamState) -> None:
        state.mean, state.mean_square = state.mean.float(), state.mean_square.float()
        super()._update(parameter, grad.float(), state)


def _made(recipe: str, model: nn.Module) -> tuple[Any, Any]:
    """Return the object that steps, and the optimizer that has the states."""
    if recipe == "masters":
        masters = MasterWeights(model.parameters(), lambda each: AdamW(each, 1e-3))
        return masters, masters.optimizer
    optimizer = (AdamW if recipe == "bf16" else _Moments32)(model.parameters(), 1e-3)
    return optimizer, optimizer


def _held(world: Group, recipe: str) -> int:
    model = nn.Linear(WIDTH, WIDTH, bias=False, dtype=torch.bfloat16)
    stepping, keeping = _made(recipe, model)
    x = torch.ones(1, WIDTH, dtype=torch.bfloat16)
    model(x).sum().backward()
    stepping.step()
    stepping.zero_grad()
    meter = Meter(model, keeping)
    if recipe == "masters":
        meter.mark(stepping.masters, "optimizer states")
    with meter:
        model(x).sum().backward()
    assert state_tensors(keeping)
    return sum(meter.usage.at_end[kind] for kind in KINDS)
