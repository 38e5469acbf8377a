"""Modules and microbatches for accumulate_without_sync, and the gradients of each microbatch.

The loss function that the code under test gets keeps a diary: which microbatch goes forward, which
one backward, and whose activations are still in memory, in order.
"""

import random
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from labkit.grade.evidence import Case
from labkit.grade.graders.gradient_modules import left_in, module_of
from labkit.grade.graders.gradient_values import Gradients
from labkit.grade.watched_group import WatchedGroup

Microbatch = tuple[Tensor, Tensor]
NAMES = ("first.weight", "first.bias", "second.weight", "second.bias")
FORWARD, BACKWARD, STILL_THERE = 0, 1, 2
"""In the diary. The last: activations of a microbatch that are in memory as another begins."""
NO_MICROBATCH = -1
"""In the diary: something else than a microbatch as it was given."""
_MAX_DELAY_S = 0.002


def with_microbatches(
    function: Callable[..., Any], arguments: tuple[Any, ...], group: WatchedGroup
) -> list[Tensor]:
    """Run on a rank: the call, then the diary as (events, 2), what is left, in this order."""
    parameters, microbatches = arguments
    module = module_of(parameters)
    diary: list[tuple[int, int]] = []
    saved: dict[int, list[weakref.ref[_Saved]]] = {}

    def loss_fn(module: nn.Module, microbatch: Any) -> Tensor:
        which = next((i for i, each in enumerate(microbatches) if each is microbatch), -1)
        diary.extend((STILL_THERE, i) for i in saved if any(ref() for ref in saved[i]))
        diary.append((FORWARD, which))
        its = saved[which] = []

        def keep(tensor: Tensor) -> _Saved:
            kept = _Saved(tensor)
            its.append(weakref.ref(kept))
            return kept

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda kept: kept.tensor):
            loss = mean_loss(module, microbatch)
        loss.register_hook(lambda gradient: diary.append((BACKWARD, which)))
        return loss

    # A list of its own: the diary knows microbatches as they were, whatever becomes of the list.
    function(module, loss_fn, list(microbatches), group)
    return [torch.tensor(diary, dtype=torch.int64).view(-1, 2), *left_in(module, NAMES)]


@dataclass(eq=False)
class _Saved:
    """What autograd keeps for backward, and lets go of after it."""

    tensor: Tensor


def mean_loss(module: nn.Module, microbatch: Microbatch) -> Tensor:
    """Squared errors of a net of two layers, float64."""
    x, y = microbatch
    weight_1, bias_1, weight_2, bias_2 = (module.get_parameter(name) for name in NAMES)
    hidden = torch.tanh(linear(x, weight_1, bias_1))
    return ((linear(hidden, weight_2, bias_2) - y) ** 2).mean()


def gradients_of(case: Case) -> list[list[Gradients]]:
    """By rank and microbatch, each by itself: the serial oracle."""
    parameters = case.arguments[0][0]
    return [[_gradients(parameters, each) for each in its] for _, its in case.arguments]


def _gradients(parameters: dict[str, Tensor], microbatch: Microbatch) -> Gradients:
    module = module_of(parameters)
    mean_loss(module, microbatch).backward()
    return {name: p.grad for name, p in module.named_parameters() if p.grad is not None}


def random_cases(world_size: int, rng: random.Random) -> list[Case]:
    """Several microbatches, one, a late rank; in the last, what a rank hands over is changed."""
    n = world_size
    # Not as many as ranks: a division by the one shall not look like a division by the other.
    several = _case(rng.choice([k for k in (3, 4, 5) if k not in (n, n * n)]), n, rng)
    late = rng.randrange(n)
    delays_s = tuple(_MAX_DELAY_S * (rank == late) for rank in range(n))
    cases = [several, _case(1, n, rng), replace(_case(2, n, rng), delays_s=delays_s)]
    altered = replace(several, altered=(rng.randrange(n), 1))
    return cases if n == 1 else [*cases, altered]


def _case(num_microbatches: int, world_size: int, rng: random.Random) -> Case:
    features, width, examples = rng.randrange(2, 4), rng.randrange(3, 6), rng.randrange(2, 5)
    generator = torch.Generator().manual_seed(rng.getrandbits(63))

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    shapes = ((width, features), (width,), (1, width), (1,))
    parameters = {name: normal(*shape) for name, shape in zip(NAMES, shapes, strict=True)}
    arguments = tuple(
        (
            parameters,
            [(normal(examples, features), normal(examples, 1)) for _ in range(num_microbatches)],
        )
        for _ in range(world_size)
    )
    return Case(_label(num_microbatches), arguments, (0.0,) * world_size)


def _label(num_microbatches: int) -> str:
    return "1 microbatch" if num_microbatches == 1 else f"{num_microbatches} microbatches"
