"""Describe how a result differs from the right one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from statistics import median
from typing import Any

import torch

from labkit.grade.grader import close
from labkit.grade.observed import pairs


def form_of(got: Any, right: Any) -> tuple[str, str]:
    """Return (name, why) for a wrong result: another form, or `wrong values` in the right form."""
    forms = (_other_form(*place) for place in pairs(got, right))
    return next((form for form in forms if form), _WRONG_VALUES)


def _other_form(path: str, got: Any, right: Any) -> tuple[str, str] | None:
    """Return (name, why) for one place of a result; None if its form is right."""
    what = f"the result at {path}" if path else "the result"
    if got is None and right is not None and not path:
        return "returns nothing", "the function ends without a return, so its value is None"
    if isinstance(right, torch.Tensor):
        if not isinstance(got, torch.Tensor):
            kind = type(got).__name__
            return "returns another type", f"{what} is a {kind}; it should be a tensor"
        if got.shape != right.shape:
            shapes = f"shape {tuple(got.shape)}; it should be {tuple(right.shape)}"
            return "returns another shape", f"{what} has {shapes}"
        if got.dtype != right.dtype:
            return "returns another dtype", f"{what} is {got.dtype}; it should be {right.dtype}"
    elif isinstance(right, dict) and isinstance(got, dict):
        missing, extra = right.keys() - got.keys(), got.keys() - right.keys()
        keys = [f"lacks the key{'s' * (len(missing) > 1)} {_in_order(missing)}"] * bool(missing)
        keys += [f"has {_in_order(extra)}, which it should not have"] * bool(extra)
        return "returns other keys", f"{what} {' and '.join(keys)}"
    elif isinstance(right, list | tuple) and isinstance(got, list | tuple):
        lengths = f"{len(got)} entr{'y' if len(got) == 1 else 'ies'}; there should be {len(right)}"
        return "returns another number of values", f"{what} has {lengths}"
    elif _kind(got) != (kind := _kind(right)):
        why = f"{what} is {shown(got)}, a {type(got).__name__}; it should be {kind}"
        return "returns another type", why + (_TO_NUMBER if kind == "a number" else "")
    return None


def _in_order(keys: Iterable[Any]) -> str:
    """Return keys as Python writes them, sorted if they can be compared."""
    try:
        keys = sorted(keys)
    except TypeError:
        keys = sorted(keys, key=repr)
    return cut(", ".join(map(repr, keys)))


_TO_NUMBER = ". float(x) converts a tensor with one element, or a Fraction, to a plain number"
_WRONG_VALUES = (
    "wrong values",
    "the result is not the right one, and no usual mistake explains it",
)


def _kind(value: Any) -> str:
    if type(value) in (int, float):
        return "a number"
    return "None" if value is None else f"a {type(value).__name__}"


def common_factor(results: Iterable[tuple[Any, Any]]) -> float | None:
    """Return the factor from every right number to the one that was got, within 1%.

    results: (got, right). Return None if there is no such factor, or if anything else differs. Also
    None if fewer than two different numbers are known: the factor could be chance.
    """
    numbers = {each for got, right in results for each in _numbers(got, right) if each != (0, 0)}
    if len({right for _, right in numbers}) < 2 or not all(right for _, right in numbers):
        return None
    factors = [got / right for got, right in numbers]
    factor = median(factors)
    is_one = all(abs(each - factor) <= 0.01 * abs(factor) for each in factors)
    return factor if factor and is_one else None


def _numbers(got: Any, right: Any) -> Iterator[tuple[float, float]]:
    """Yield the numbers of two results, place by place; (nan, 1) where something else differs."""
    for path, one, other in pairs(got, right):
        if _other_form(path, one, other):
            yield math.nan, 1.0
        elif isinstance(other, torch.Tensor):
            yield from zip(one.flatten().tolist(), other.flatten().tolist(), strict=True)
        elif type(other) in (int, float) and type(one) in (int, float):
            yield one, other
        elif not close(one, other):
            yield math.nan, 1.0


def difference(got: Any, right: Any) -> str:
    """Return `got 3, expected 5`, for the first place in lists, dicts and tensors that differs."""
    for steps in (_MANY_STEPS, 8):  # a difference that no grader's tolerance allows comes first
        for place in pairs(got, right):
            if not close(*place[1:], steps=steps):
                return _described(*place)
    return _described("", got, right)


def _described(path: str, got: Any, right: Any) -> str:
    at = f" at {path}" if path else ""
    is_tensor = isinstance(got, torch.Tensor) and isinstance(right, torch.Tensor)
    if not is_tensor or _other_form(path, got, right) or right.numel() < 2:
        return f"got {shown(got)}, expected {shown(right)}{at}"
    differ = (got != right) & ~(got.isnan() & right.isnan())
    distance = (got.double() - right.double()).abs().nan_to_num(math.inf, math.inf)
    rounding = torch.where(differ, distance, 0.0).max() / 1000
    wrong = (differ & (distance >= rounding)).nonzero().tolist()
    where = wrong[0] if wrong else [0] * right.dim()
    return (
        f"got {shown(got[*where])}, expected {shown(right[*where])} at {path}{where} "
        f"({len(wrong)} of {right.numel()} elements differ)"
    )


_MANY_STEPS = 2**16


def shown(value: Any) -> str:
    """Return a value as text for people: 1,048,576; long texts are cut."""
    if isinstance(value, torch.Tensor):
        if value.numel() == 1:
            return shown(value.item())
        return f"{str(value.dtype).removeprefix('torch.')} {cut(str(value.tolist()))}"
    if isinstance(value, dict):
        return cut("{" + ", ".join(f"{k!r}: {shown(v)}" for k, v in value.items()) + "}")
    if isinstance(value, list | tuple):
        inside = ", ".join(map(shown, value))
        return cut(f"[{inside}]" if isinstance(value, list) else f"({inside})")
    if type(value) is float:
        return f"{value:,.0f}" if value.is_integer() else f"{value:,.10g}"
    return f"{value:,}" if type(value) is int else cut(repr(value))


def cut(text: str) -> str:
    """Cut a text to 100 characters, of which the last three are dots."""
    return text if len(text) <= 100 else f"{text[:97]}..."
