"""Numbers as people write them: which there are in a text, and how exact each one claims to be.

numbers("about 4.93 ms on 8 ranks")    4.93 (scale 1e-3, seconds, 2 decimals), and 8 (scale 1)

A number inside a name (H100, fp32, GPT-3, 1F1B) is no number here.
"""

import re
from dataclasses import dataclass

from labkit.calc.units import UNITS

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
_HIGH = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺", "0123456789-+")
# Not inside a word, a number or a name such as GPT-3. After it no letter: "3D" is a name.
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
    """As it stands there, unit included."""
    start: int
    end: int
    value: float
    """Without its unit: 4.93 for "4.93 ms"."""
    scale: float
    """The unit in base units: 1e-3."""
    dimension: str
    """bytes, bytes/s, seconds, FLOP, bits, share, or "" for none that is known."""
    step: float
    """One of the last digit that it shows, without the unit: 0.01."""


def numbers(text: str) -> list[Number]:
    """Every number of `text` in digits, in order."""
    return [_number(match) for match in _NUMBER.finditer(text)]


def said_numbers(says: str) -> list[Number]:
    """The numbers of a claim: those in digits, or else the one that is written as a word."""
    if found := numbers(says):
        return found
    match = _WORD.search(says)
    if match is None:
        return []
    word = match[1].lower()
    if word in _SHARES:
        # Half is 0.48 to 0.52: whoever wants to be more exact writes 50%.
        value = _SHARES[word]
        return [Number(match[0], *match.span(), value, 1.0, "", 0.08 * value)]
    return [Number(match[0], *match.span(), _WORDS[word], 1.0, "", 1.0)]


def _number(match: re.Match[str]) -> Number:
    digits = match["digits"].replace(",", "")
    if raised := re.fullmatch(r"(\d+?)([⁻⁺⁰¹²³⁴⁵⁶⁷⁸⁹]+)", digits):
        digits = f"{float(raised[1]) ** int(raised[2].translate(_HIGH)):.17g}"
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
