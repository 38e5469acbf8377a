"""The rules of a loss scaler, and what follows from them when one is another than it should be."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from labkit.grade.graders.scaler_inputs import Given
from labkit.grade.graders.scaler_training import Step, flat

Tensor = torch.Tensor
Scale = tuple[float, int]
"""The scale, and the count of good steps."""


def _any_not_finite(gradients: Sequence[Tensor]) -> bool:
    return not all(bool(each.isfinite().all()) for each in gradients)


def next_scale(scale: float, count: int, interval: int, has_overflown: bool) -> Scale:
    """Half after an overflow, twice after `interval` steps without one."""
    if has_overflown:
        return scale / 2, 0
    return (scale * 2, 0) if count + 1 == interval else (scale, count + 1)


@dataclass(frozen=True)
class Rules:
    """How a scaler decides. As it stands: right."""

    overflows: Callable[[Sequence[Tensor]], bool] = _any_not_finite
    """Of a rank's own gradients."""
    agree: Callable[[list[bool]], list[bool]] = lambda own: [any(own)] * len(own)
    """From what each rank has seen to whether it skips."""
    agree_on_scale: Callable[[list[bool]], list[bool]] | None = None
    """The same for the scale; None: as for the step."""
    steps_anyway: bool = False
    divided: Callable[[Tensor, float], Tensor] = lambda gradient, scale: gradient.float() / scale
    by_next_scale: bool = False
    after: Callable[[float, int, int, bool], Scale] = next_scale


def follow(rules: Rules, given: Sequence[Given]) -> list[list[Step]]:
    """What the ranks would do by these rules: by rank, then by step."""
    interval = int(given[0].scaler["growth_interval"])
    states: list[Scale] = [(each.scaler["scale"], each.scaler["num_good_steps"]) for each in given]
    trace: list[list[Step]] = [[] for _ in given]
    for number in range(len(given[0].slopes)):
        all_gradients = [
            each.gradients(number, scale) for each, (scale, _) in zip(given, states, strict=True)
        ]
        own = [rules.overflows(gradients) for gradients in all_gradients]
        skips = rules.agree(own)
        falls = (rules.agree_on_scale or rules.agree)(own)
        for rank, gradients in enumerate(all_gradients):
            scale, count = states[rank]
            states[rank] = rules.after(scale, count, interval, falls[rank])
            is_made = not skips[rank]
            divisor = states[rank][0] if rules.by_next_scale else scale
            updates = [rules.divided(each, divisor) for each in gradients]
            is_updated = is_made or rules.steps_anyway
            numbers = flat(updates if is_updated else [])
            step = Step(int(is_updated), float(is_made), *states[rank], True, numbers)
            trace[rank].append(step)
    return trace
