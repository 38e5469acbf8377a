"""Check that an expression gives the number that a text names.

proved = prove("4.93 ms", "calc.collective('all_reduce', 'ring', 8, 1e9).seconds(5e-6, 1/360e9)")
proved.holds, proved.value        True, 0.0049305...

A number holds if the value, in its unit, rounds to it: "4.93 ms" is 4.925 to 4.935. Zeros at the
end count as digits: "400 GB" is 399.5 to 400.5.

More rounding needs a word. After "about" the value may be 5% less or more. After "nearly",
"almost", "under" or "less than" it is at most 5% less, after "over" or "more than" at most 5% more.

Words can be numbers: "three", "twice", "half" (within 4%). A text with several numbers, "4, 3, 2
and 1", needs a proof that gives as many. If the text has no number, such as "ring", the proof gives
this text; True is not enough.

A proof is Python of one line, which value() evaluates. Its names are calc, math, runs, ratio
(0.3043... as 7 and 23) and a few built-in functions.

numbers("about 4.93 ms on 8 ranks")    4.93 (scale 1e-3, seconds, 2 decimals), and 8 (scale 1)

A number inside a name (H100, fp32, GPT-3, 1F1B) does not count.
"""

import ast
import importlib.util
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from numbers import Real
from typing import Any

from labkit import calc
from labkit.calc.result import Result
from labkit.calc.units import UNITS
from labkit.interview import runs

_DENOMINATOR = 1000  # tolerance of a fraction in words


def ratio(share: Any) -> tuple[int, int]:
    """Return a share as a fraction in lowest terms: (7, 23) for 0.30434..."""
    return Fraction(float(share)).limit_denominator(_DENOMINATOR).as_integer_ratio()


_FUNCTIONS = (abs, float, int, len, max, min, range, ratio, round, sorted, sum)
_NAMES: dict[str, Any] = {"calc": calc, "math": math, "runs": runs}
_NAMES |= {each.__name__: each for each in _FUNCTIONS}


class BadProof(ValueError):
    """A proof that cannot be read, or that fails."""


def value(proof: str) -> Any:
    """Evaluate the expression. Raises BadProof if it fails."""
    try:
        return eval(proof.strip(), {**_NAMES, "__builtins__": {}})
    except Exception as error:  # any error of calc or of a run
        raise BadProof(f"{proof} fails: {type(error).__name__}: {error}") from error


def uses(proof: str, room: str) -> bool:
    """Return whether a proof uses the name `room`: "calc" or "runs"."""
    tree = ast.parse(proof.strip(), mode="eval")
    return any(isinstance(node, ast.Name) and node.id == room for node in ast.walk(tree))


def can_run() -> bool:
    """Return whether real runs can be made here: torch is installed."""
    return importlib.util.find_spec("torch") is not None


def multiplies(proof: str) -> bool:
    """Return whether a proof multiplies, divides or raises to a power."""
    products = (ast.Mult, ast.Div, ast.FloorDiv, ast.Pow)
    return any(isinstance(node, products) for node in ast.walk(ast.parse(proof.strip())))


_WORDED: dict[str, dict[str, float]] = {
    "bytes": {"byte": 1, "bytes": 1},
    "seconds": {
        "µs": 1e-6, "μs": 1e-6, "microsecond": 1e-6, "microseconds": 1e-6, "millisecond": 1e-3,
        "milliseconds": 1e-3, "second": 1, "seconds": 1, "minute": 60, "minutes": 60, "hour": 3600,
        "hours": 3600, "day": 86400, "weeks": 7 * 86400, "week": 7 * 86400, "years": 365 * 86400,
    },
    "FLOP": {
        f"{prefix}FLOP{plural}": size
        for prefix, size in {"": 1, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}.items()
        for plural in ("", "s")
    },
    "bits": {"bit": 1, "bits": 1, "Mbit": 1e6, "Gbit": 1e9, "Tbit": 1e12},
    "share": {"%": 0.01, "percent": 0.01},
    "": {"million": 1e6, "billion": 1e9, "trillion": 1e12, "thousand": 1e3},
}  # fmt: skip
# Only without a space: "7B" are seven billion, "7 B" seven bytes.
_ATTACHED = {"K": 1e3, "k": 1e3, "M": 1e6, "B": 1e9, "T": 1e12, "x": 1, "×": 1}
_ATTACHED |= dict.fromkeys(("st", "nd", "rd", "th"), 1)
_SPACED: dict[str, tuple[float, str]] = {
    unit: (size, dimension)
    for dimension, units in (*UNITS.items(), *_WORDED.items())
    for unit, size in units.items()
    if unit not in ("", "x")
}
_UNIT = "|".join(sorted(map(re.escape, _SPACED), key=len, reverse=True))
_DIGITS = (
    r"(?:\d+[⁻⁺]?[⁰¹²³⁴⁵⁶⁷⁸⁹]+"
    r"|(?:(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+)(?:e[+-]?\d+)?)"
)
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺", "0123456789-+")
# Not inside a word, a number or a name such as GPT-3, nor before a letter: "3D" is a name.
_NUMBER = re.compile(
    rf"(?<![\w.])(?<![A-Za-z]-)(?:\$|[x×](?=\d))?(?P<digits>{_DIGITS})"
    rf"(?:(?P<attached>st|nd|rd|th|[KkMBTx×])(?!\w)"
    rf"|[ \u00a0-]?(?P<unit>{_UNIT})(?P<rate>/s)?(?![\w/])|(?!\w))"
)
_WORDS = {
    name: value
    for value, name in enumerate(
        "zero one two three four five six seven eight nine ten eleven twelve".split()
    )
}
_SHARES = {"half": 0.5, "twice": 2, "a third": 1 / 3, "two thirds": 2 / 3, "a quarter": 0.25}
_SHARES |= {"three quarters": 0.75, "a fifth": 0.2, "a tenth": 0.1}
_WORD = re.compile(rf"\b({'|'.join([*_SHARES, *_WORDS])})\b", re.I)


@dataclass(frozen=True, slots=True)
class Number:
    """One number of a text."""

    text: str
    """The number as the text writes it, with its unit."""
    start: int
    end: int
    value: float
    """Value without its unit: 4.93 for "4.93 ms"."""
    scale: float
    """The unit in base units: 1e-3."""
    dimension: str
    """bytes, bytes/s, seconds, FLOP, bits, share; "" if the unit is unknown or missing."""
    step: float
    """Unit of its last digit: 0.01."""


def numbers(text: str) -> list[Number]:
    """Return every number of `text` in digits, in order."""
    return [_number(match) for match in _NUMBER.finditer(text)]


def numbers_in_claim(says: str) -> list[Number]:
    """Return the numbers of a claim: those in digits, or else the one written as a word."""
    if found := numbers(says):
        return found
    match = _WORD.search(says)
    if match is None:
        return []
    word = match[1].lower()
    if word in _SHARES:
        # Half is 0.48 to 0.52; 50% is more exact.
        value = _SHARES[word]
        return [Number(match[0], *match.span(), value, 1.0, "", 0.08 * value)]
    return [Number(match[0], *match.span(), _WORDS[word], 1.0, "", 1.0)]


def _number(match: re.Match[str]) -> Number:
    digits = match["digits"].replace(",", "")
    if raised := re.fullmatch(r"(\d+?)([⁻⁺⁰¹²³⁴⁵⁶⁷⁸⁹]+)", digits):
        digits = f"{float(raised[1]) ** int(raised[2].translate(_SUPERSCRIPTS)):.17g}"
    mantissa, _, exponent = digits.lower().partition("e")
    decimals = len(mantissa.partition(".")[2])
    scale, dimension = 1.0, ""
    if match["attached"]:
        scale = _ATTACHED[match["attached"]]
    elif match["unit"]:
        scale, dimension = _SPACED[match["unit"]]
        dimension += match["rate"] or ""
    return Number(
        match[0],
        *match.span(),
        value=float(digits),
        scale=scale,
        dimension=dimension,
        step=10.0 ** (int(exponent or 0) - decimals),
    )


_ABOUT = re.compile(
    r"\b(?:about|around|roughly|some|nearly|almost|under|over|(?:more|less) than)\b"
)
_BELOW, _ABOVE = ("nearly", "almost", "under", "less than"), ("over", "more than")
_ABOUT_SHARE = 0.05
_ROUNDING = 1e-9  # relative: floating point, and a 5 that should round up


@dataclass(frozen=True, slots=True)
class Proved:
    """Result of checking one piece of evidence."""

    says: str
    proof: str
    value: Any
    """Value of the expression, in base units; None if it gives nothing."""
    holds: bool
    reason: str = ""
    """Reason why it does not hold, and the value that would."""


def prove(says: str, proof: str) -> Proved:
    """Evaluate `proof` and compare it with `says`. A failure is returned with its reason."""
    try:
        found = value(proof)
    except BadProof as error:
        return Proved(says, proof, None, False, str(error))
    reason = _difference(says, found, is_product=multiplies(proof))
    return Proved(says, proof, found, not reason, reason)


def _difference(says: str, value: Any, is_product: bool) -> str:
    """Return the reason why `value` differs from the text `says`; "" if it does not.

    is_product: skip the check of the dimension. A result of calc keeps its dimension when it is
    multiplied by a plain number, so 2 bytes times N parameters would still be "parameters".
    """
    said = numbers_in_claim(says)
    if isinstance(value, str):
        same = value.casefold() == says.casefold()
        return "" if same else f"the text says {says!r}, the proof gives {value!r}"
    if isinstance(value, bool):
        return f"{value} proves no {says!r}; let the proof give the number or the words themselves"
    values = value if isinstance(value, Sequence) else [value]
    if not said:
        return f"{says!r} has no number, the proof gives {_shown(value)}"
    if len(values) != len(said):
        return (
            f"{says!r} has {len(said)} numbers, the proof gives {len(values)}; "
            "say only the number that is proved"
        )
    for number, each in zip(said, values, strict=True):
        if isinstance(each, bool) or not isinstance(each, Real | Result):
            return f"the proof gives {each!r:.80}, which is no number"
        dimension = each.dimension if isinstance(each, Result) and not is_product else ""
        if dimension and number.dimension and dimension != number.dimension:
            return f"{number.text!r} is {number.dimension}, the proof gives {dimension}"
        if reason := _mismatch(says, number, each):
            return reason
    return ""


def _mismatch(says: str, number: Number, value: Any) -> str:
    found = float(value) / number.scale
    if not math.isfinite(found):
        return f"the proof gives {found}"
    low, high = _range(says[: number.start], number)
    if low <= found <= high:
        return ""
    unit = number.text.lstrip("$0123456789.,e+-")
    return f"the text says {number.text}, the proof gives {found:.6g}{unit} ({_shown(value)})"


def _range(before: str, number: Number) -> tuple[float, float]:
    """Return the range of values that round to the number. before: the text in front of it."""
    half = number.step / 2 + _ROUNDING * abs(number.value)
    low, high = number.value - half, number.value + half
    words = _ABOUT.findall(before.lower())
    if not words:
        return low, high
    slack = max(_ABOUT_SHARE * abs(number.value), half)
    if words[-1] in _BELOW:
        return number.value - slack, number.value
    if words[-1] in _ABOVE:
        return number.value, number.value + slack
    return number.value - slack, number.value + slack


def _shown(value: Any) -> str:
    return f"{value} = {float(value):.6g}" if isinstance(value, Result) else f"{value!r:.80}"
