"""Parts of wrong loss scalers: what they take for an overflow, and which scale they go on with."""

import math
from collections.abc import Sequence

import torch

from labkit.grade.graders.scaler_rules import Scale

Tensor = torch.Tensor


def has_inf(gradients: Sequence[Tensor]) -> bool:
    """An inf, of either sign."""
    return any(bool(each.isinf().any()) for each in gradients)


def has_nan(gradients: Sequence[Tensor]) -> bool:
    """A nan."""
    return any(bool(each.isnan().any()) for each in gradients)


def has_plus_inf(gradients: Sequence[Tensor]) -> bool:
    """An inf or a nan, and no -inf."""
    return any(bool((each == math.inf).any() | each.isnan().any()) for each in gradients)


def sum_overflows(gradients: Sequence[Tensor]) -> bool:
    """A sum of magnitudes, in float16."""
    return not all(math.isfinite(each.abs().sum().item()) for each in gradients)


def largest_overflows(gradients: Sequence[Tensor]) -> bool:
    """A nan, or a number that is not below the largest of float16."""
    largest = torch.finfo(torch.float16).max
    return not all(bool((each.abs() < largest).all()) for each in gradients)


def first_overflows(gradients: Sequence[Tensor]) -> bool:
    """The first tensor."""
    return bool(gradients) and not bool(gradients[0].isfinite().all())


def last_overflows(gradients: Sequence[Tensor]) -> bool:
    """The last tensor."""
    return bool(gradients) and not bool(gradients[-1].isfinite().all())


def keeps_count(scale: float, count: int, interval: int, has_overflown: bool) -> Scale:
    """An overflow leaves the count alone."""
    if has_overflown:
        return scale / 2, count
    return (scale * 2, 0) if count + 1 >= interval else (scale, count + 1)


def counts_skipped(scale: float, count: int, interval: int, has_overflown: bool) -> Scale:
    """An overflow counts as a step."""
    scale = scale / 2 if has_overflown else scale
    return (scale * 2, 0) if count + 1 == interval else (scale, count + 1)


def counts_and_waits(scale: float, count: int, interval: int, has_overflown: bool) -> Scale:
    """An overflow counts, and growth waits for a good step."""
    if has_overflown:
        return scale / 2, count + 1
    return (scale * 2, 0) if count + 1 >= interval else (scale, count + 1)


def grows_on_and_on(scale: float, count: int, interval: int, has_overflown: bool) -> Scale:
    """The count is not begun anew by growth."""
    if has_overflown:
        return scale / 2, 0
    return (scale * 2 if count + 1 >= interval else scale), count + 1


def grows_by_remainder(scale: float, count: int, interval: int, has_overflown: bool) -> Scale:
    """The same, with a remainder."""
    if has_overflown:
        return scale / 2, 0
    return (scale * 2 if (count + 1) % interval == 0 else scale), count + 1


def one_late(scale: float, count: int, interval: int, has_overflown: bool) -> Scale:
    """One good step too many."""
    if has_overflown:
        return scale / 2, 0
    return (scale * 2, 0) if count + 1 > interval else (scale, count + 1)


def one_early(scale: float, count: int, interval: int, has_overflown: bool) -> Scale:
    """One good step too few."""
    if has_overflown:
        return scale / 2, 0
    return (scale * 2, 0) if count + 1 >= interval - 1 else (scale, count + 1)


def never_below_one(scale: float, count: int, interval: int, has_overflown: bool) -> Scale:
    """A floor that nobody asked for."""
    if has_overflown:
        return max(scale / 2, 1.0), 0
    return (scale * 2, 0) if count + 1 == interval else (scale, count + 1)


def never_grows(scale: float, count: int, interval: int, has_overflown: bool) -> Scale:
    """No growth."""
    return (scale / 2, 0) if has_overflown else (scale, count + 1)


def never_falls(scale: float, count: int, interval: int, has_overflown: bool) -> Scale:
    """No fall."""
    if has_overflown:
        return scale, 0
    return (scale * 2, 0) if count + 1 == interval else (scale, count + 1)


def zero_for_inf(gradient: Tensor, scale: float) -> Tensor:
    """0 for inf and nan."""
    return gradient.float().nan_to_num(0.0, 0.0, 0.0) / scale


def largest_for_inf(gradient: Tensor, scale: float) -> Tensor:
    """The largest number of float16 for inf, 0 for nan."""
    return gradient.nan_to_num().float() / scale


def largest_float_for_inf(gradient: Tensor, scale: float) -> Tensor:
    """The largest number of float32 for inf, 0 for nan."""
    return gradient.float().nan_to_num() / scale
