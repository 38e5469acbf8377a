"""How a result differs from the right one, in words."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from statistics import median
from typing import Any

import torch

from labkit.grade.grader import close


def form_of(got: Any, right: Any, is_part: bool = False) -> tuple[str, str]:
    """(name, why) of a result that is not the right one, by its form; `wrong values` at last."""
    what = "a part of the result" if is_part else "the result"
    if got is None and right is not None:
        if is_part:
            return "a part of the result is None", "a value is missing: see what was expected"
        return "returns nothing", "the function ends without a return, so its value is None"
    if isinstance(right, torch.Tensor):
        if not isinstance(got, torch.Tensor):
            kind = type(got).__name__
            return "returns another type", f"the function returns a {kind}; it should be a tensor"
        if got.shape != right.shape:
            return (
                "returns another shape",
                f"{what} has shape {tuple(got.shape)}; it should be {tuple(right.shape)}",
            )
        if got.dtype != right.dtype:
            return "returns another dtype", f"{what} is {got.dtype}; it should be {right.dtype}"
    elif isinstance(right, dict) and isinstance(got, dict):
        if got.keys() != right.keys():
            return (
                "returns other keys",
                f"{what} has the keys {sorted(map(str, got))}; they should be "
                f"{sorted(map(str, right))}",
            )
        return next(
            (f for f in (form_of(got[k], right[k], True) for k in right) if f[0] != "wrong values"),
            _WRONG_VALUES,
        )
    elif isinstance(right, list | tuple) and isinstance(got, list | tuple):
        if len(got) != len(right):
            return (
                "returns another number of values",
                f"{what} has {len(got)} entries; there should be {len(right)}",
            )
        parts = (form_of(a, b, True) for a, b in zip(got, right, strict=True))
        return next((f for f in parts if f[0] != "wrong values"), _WRONG_VALUES)
    elif _kind(got) != (wanted := _kind(right)):
        why = f"the function returns {shown(got)}, a {type(got).__name__}; it should be {wanted}"
        return "returns another type", why + (_TO_NUMBER if wanted == "a number" else "")
    return _WRONG_VALUES


_TO_NUMBER = ". float(x) makes a plain number of a tensor of one, or of a Fraction"
_WRONG_VALUES = (
    "wrong values",
    "the result is not the right one, and no usual mistake explains it",
)


def _kind(value: Any) -> str:
    if type(value) in (int, float):
        return "a number"
    return "None" if value is None else f"a {type(value).__name__}"


def common_factor(pairs: Iterable[tuple[Any, Any]]) -> float | None:
    """What every right number must be multiplied by to give the one that was got, within 1%.

    pairs: (got, right). None where there is no such number, where anything else differs, or where
    there are no two different numbers, which tell a factor from chance.
    """
    numbers = {each for got, right in pairs for each in _numbers(got, right) if each != (0, 0)}
    if len({right for _, right in numbers}) < 2 or not all(right for _, right in numbers):
        return None
    factors = [got / right for got, right in numbers]
    factor = median(factors)
    is_one = all(abs(each - factor) <= 0.01 * abs(factor) for each in factors)
    return factor if factor and is_one else None


def _numbers(got: Any, right: Any) -> Iterator[tuple[float, float]]:
    """The numbers of two results, place by place; (nan, 1) where something else differs."""
    if form_of(got, right) != _WRONG_VALUES:
        yield math.nan, 1.0
    elif isinstance(right, torch.Tensor):
        yield from zip(got.flatten().tolist(), right.flatten().tolist(), strict=True)
    elif isinstance(right, dict):
        for key in right:
            yield from _numbers(got[key], right[key])
    elif isinstance(right, list | tuple):
        for one, other in zip(got, right, strict=True):
            yield from _numbers(one, other)
    elif type(right) in (int, float) and type(got) in (int, float):
        yield got, right
    elif not close(got, right):
        yield math.nan, 1.0


def difference(got: Any, right: Any, path: str = "") -> str:
    """`got 3, expected 5`; inside of lists, dicts and tensors the first place that differs."""
    at = f" at {path}" if path else ""
    is_tensor = isinstance(got, torch.Tensor) and isinstance(right, torch.Tensor)
    if is_tensor and got.shape == right.shape and got.dtype == right.dtype and right.numel() > 1:
        flat_got, flat_right = got.flatten().tolist(), right.flatten().tolist()
        pairs = enumerate(zip(flat_got, flat_right, strict=True))
        errors = {i: _error(a, b) for i, (a, b) in pairs if a != b and (a == a or b == b)}
        rounding = max(errors.values(), default=0.0) / 1000
        wrong = [i for i, error in errors.items() if error >= rounding]
        place = wrong[0] if wrong else 0
        # torch.unravel_index imports sympy, which takes a second.
        where = [place // right[(0,) * k].numel() % n for k, n in enumerate(right.shape, start=1)]
        return (
            f"got {shown(flat_got[place])}, expected {shown(flat_right[place])} at {path}{where} "
            f"({len(wrong)} of {right.numel()} elements differ)"
        )
    parts: list[tuple[Any, Any, Any]] = []
    if isinstance(got, list | tuple) and isinstance(right, list | tuple) and len(got) == len(right):
        parts = [(index, *both) for index, both in enumerate(zip(got, right, strict=True))]
    if isinstance(got, dict) and isinstance(right, dict) and got.keys() == right.keys():
        parts = [(key, got[key], right[key]) for key in right]
    for steps in (_MANY_STEPS, 8):  # first what is no rounding, by whatever grader
        for key, one, other in parts:
            if not close(one, other, steps=steps):
                return difference(one, other, f"{path}[{key!r}]")
    return f"got {shown(got)}, expected {shown(right)}{at}"


_MANY_STEPS = 2**16


def _error(a: float, b: float) -> float:
    error = abs(a - b)
    return error if error == error else math.inf


def shown(value: Any) -> str:
    """A value as people read it: 1,048,576; long ones are cut."""
    if isinstance(value, torch.Tensor):
        if value.numel() == 1:
            return shown(value.item())
        return f"{str(value.dtype).removeprefix('torch.')} {_cut(str(value.tolist()))}"
    if isinstance(value, dict):
        return _cut("{" + ", ".join(f"{k!r}: {shown(v)}" for k, v in value.items()) + "}")
    if isinstance(value, list | tuple):
        inside = ", ".join(map(shown, value))
        return _cut(f"[{inside}]" if isinstance(value, list) else f"({inside})")
    if type(value) is float:
        return f"{value:,.0f}" if value.is_integer() else f"{value:,.10g}"
    return f"{value:,}" if type(value) is int else _cut(repr(value))


def _cut(text: str) -> str:
    return text if len(text) <= 100 else f"{text[:97]}..."
