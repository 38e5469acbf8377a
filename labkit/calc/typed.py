"""A number that a person typed, in the unit that was asked for, and how far it is off.

in_unit("4900 us", "ms") == in_unit(4.9, "ms")       seconds
read("6.74B", "billion").quantity.value              6.74e9: B is bytes elsewhere
usual_mistake(8.0)                                   "A factor of eight: bits or bytes?"
"""

import math
import re

from labkit.calc.units import Quantity, Typed, counted, exact_bytes_text, parse_typed, quantity_text
from labkit.calc.written import plain

# How people write large counts. Only where a count is asked for: 7B is seven bytes elsewhere.
_COUNT_LETTERS = {"K": "thousand", "M": "million", "B": "billion", "bn": "billion", "T": "trillion"}
_LARGE_COUNTS = tuple(dict.fromkeys(_COUNT_LETTERS.values()))
_ENDS_IN_A_LETTER = re.compile(r"(.*\d\.?\s*)(K|M|B|bn|T)\s*", re.I | re.S)


def read(text: str, unit: str) -> Typed:
    """What was typed in answer to a question in `unit` ("" for counts): a bare number is in it.

    A quotient is a share where percent are asked for: 7/23 are 30.4, as 30.4% is.
    Raises ValueError for a text that is no number, for one whose unit measures something else or
    counts where nothing is counted, and for bytes and seconds below 0.
    """
    asked = parse_typed(f"1 {unit}")
    text = plain(text)
    if unit in _LARGE_COUNTS and (match := _ENDS_IN_A_LETTER.fullmatch(text)):
        letter = next(each for each in _COUNT_LETTERS if each.lower() == match[2].lower())
        text = f"{match[1]} {_COUNT_LETTERS[letter]}"
    typed = parse_typed(text)
    if typed.number < 0 and asked.dimension in ("bytes", "seconds"):
        raise ValueError(f"{text.strip()!r}: {asked.dimension} cannot be negative")
    if "%" in text and asked.dimension:
        raise ValueError(f"{text.strip()!r} of what? The question is in {asked.dimension}")
    if not typed.unit:
        if unit == "%" and "/" in text:
            return typed
        return Typed(typed.number, asked.size, asked.dimension, "")
    if counted(typed.unit) and (asked.dimension or unit == "%"):
        raise ValueError(
            f"{text!r} counts {typed.unit}; the question is in {asked.dimension or unit}"
        )
    if typed.dimension == asked.dimension:
        return typed
    if typed.dimension == "":  # "2 x", "3 million": what is counted was said before
        return Typed(typed.number * typed.size, asked.size, asked.dimension, "")
    wanted = (
        f"the question is in {asked.dimension or unit}"
        if asked.dimension or counted(unit)
        else "the question asks for a bare number"
    )
    raise ValueError(f"{text.strip()!r} is in {typed.dimension}; {wanted}")


def in_unit(number: float | str, unit: str) -> Quantity:
    """A number as a Quantity: a bare one is in `unit` ("" for counts), a text may bring its own.

    in_unit(4.9, "ms") == in_unit("4900 us", "ms"). Raises ValueError as `read` does, and for a
    number that is infinite, not a number, or below 0 where bytes or seconds are asked for.
    """
    if isinstance(number, str):
        return read(number, unit).quantity
    asked = parse_typed(f"1 {unit}")
    if not math.isfinite(number):
        raise ValueError(
            f"{number} is no measurement: pass a finite number, such as "
            "result.traffic[0].sent_bytes"
        )
    if number < 0 and asked.dimension in ("bytes", "seconds"):
        raise ValueError(f"{number}: {asked.dimension} cannot be negative; pass 0 or more")
    return Quantity(number * asked.size, asked.dimension)


def text_of(quantity: Quantity) -> str:
    """A quantity as a reader sees it; bytes exactly, as far as that is readable."""
    if quantity.dimension == "bytes":
        return exact_bytes_text(quantity.value)
    return quantity_text(quantity.value, quantity.dimension)


def usual_mistake(ratio: float) -> str:
    """The usual reason for a number that is off by a well-known factor, as a question; or ""."""
    factor = ratio if ratio > 1 else 1 / ratio
    usual = {
        2.0: "A factor of two: one phase or both, one direction or both?",
        8.0: "A factor of eight: bits or bytes?",
        100.0: "A factor of a hundred: a share, or percent?",
        1000.0: "A factor of a thousand: which prefix?",
        1.024: "KB or KiB?",
        1.024**2: "MB or MiB?",
        1.024**3: "GB or GiB?",
    }
    for known, question in usual.items():
        if abs(factor / known - 1) < 1e-3:
            return question
    return ""
