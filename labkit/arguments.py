"""Check callers' arguments by name, before anything is computed or sent.

    momentum = arguments.number("momentum", momentum, "0 or more, below 1", least=0, below=1)
    ValueError: momentum=nan: 0 or more, below 1

    instance("model", model, nn.Module, "give the model that parallelize returned")
    TypeError: model=None: give the model that parallelize returned

An error names the argument, its value, and the allowed ones. TypeError is for another type, such as
a boolean instead of a number, which Python would accept. ValueError is for impossible numbers, such
as nan.
"""

from __future__ import annotations

import argparse
import difflib
import math
import re
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any, TypeVar

T = TypeVar("T")


class UserError(Exception):
    """A request that cannot be met, such as an unknown name.

    The message says why, and what to do instead. The command line prints it without a traceback.
    """


def printable(text: str) -> str:
    """Return `text` with control characters, which a terminal would obey, as Python writes them."""
    return "".join(
        each if each.isprintable() or each in "\n\t" else repr(each)[1:-1] for each in text
    )


def named(given: object, kind: type[T], known: Mapping[str, T]) -> T:
    """Return `given` if it is of this kind, or the entry of `known` that has this name.

    ValueError lists the names, and similar ones at the end.
    """
    if isinstance(given, kind):
        return given
    if isinstance(given, str) and given in known:
        return known[given]
    plain = {re.sub("[^a-z0-9.]", "", name.lower()): name for name in known}
    typed = re.sub("[^a-z0-9.]", "", str(given).lower().rpartition("/")[2])  # meta-llama/Llama-3-8B
    near = [plain[each] for each in difflib.get_close_matches(typed, plain)]
    meant = f"; did you mean {' or '.join(near)}?" if near else ""
    raise ValueError(f"{given!r:.60} is no {kind.__name__} and none of {', '.join(known)}{meant}")


def number(
    name: str,
    value: object,
    allowed: str,
    *,
    least: float = -math.inf,
    above: float = -math.inf,
    most: float = math.inf,
    below: float = math.inf,
) -> float:
    """Return `value` if it is finite and within the limits, which `allowed` says in words."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name}={_shown(value)}: give a number; {allowed}")
    amount: Any = value
    # nan is not below, above or equal to anything.
    if not (least <= amount <= most and above < amount < below):
        raise ValueError(f"{name}={_shown(value)}: {allowed}")
    return float(amount)


def whole(
    name: str, value: object, allowed: str, *, least: float = 1, most: float = math.inf
) -> int:
    """Return `value` if it is whole and within the limits, which `allowed` says in words."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name}={_shown(value)}: give a whole number; {allowed}")
    count: Any = value
    if not least <= count <= most:
        raise ValueError(f"{name}={_shown(value)}: {allowed}")
    return int(count)


def counted(
    name: str,
    value: object,
    allowed: str = "1 or more",
    *,
    least: float = 1,
    most: float = math.inf,
) -> int:
    """Check a whole number like `whole`; it may come as a float, such as 8e6."""
    if isinstance(value, Real) and not isinstance(value, Integral):
        amount = float(value)
        if not amount.is_integer():
            raise ValueError(f"{name}={_shown(value)}: give a whole number; {allowed}")
        value = int(amount)
    return whole(name, value, allowed, least=least, most=most)


def rank(name: str, value: object, size: int) -> int:
    """Return `value` if it is one of `size` ranks."""
    return counted(name, value, f"one of {size} ranks, 0 to {size - 1}", least=0, most=size - 1)


def instance(name: str, value: object, kind: type[object], instead: str) -> None:
    """Raise TypeError unless `value` is of that kind; `instead` says what to give."""
    if not isinstance(value, kind):
        raise TypeError(f"{name}={_shown(value)}: {instead}")


def count(text: str) -> int:
    """Return `text` as a whole number, 1 or more, for argparse."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{_shown(text)}: give a whole number, 1 or more")
    return int(text)


def duration(text: str) -> float:
    """Return `text` as finite seconds above 0, for argparse."""
    try:
        return number("", float(text), "", above=0.0, below=math.inf)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{_shown(text)}: give seconds, above 0") from None


def divisors(number: int) -> list[int]:
    """Return the divisors of `number`, from 1 up, which an error suggests."""
    small = [each for each in range(1, math.isqrt(number) + 1) if number % each == 0]
    large = [number // each for each in reversed(small)]
    return small + large[small[-1] == large[0] :]


def divisors_text(number: int) -> str:
    """Return the divisors as text, such as "1, 2 or 4", for the end of an error."""
    *others, last = map(str, divisors(number))
    return f"{', '.join(others)} or {last}" if others else last


def _shown(value: object) -> str:
    """Write a value in one line of limited length, since it may be a tensor."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else f"{text[:77]}..."
