"""Quantities, typed and printed: bytes, seconds, counts. GB is 1e9, GiB is 2**30, always.

parse_quantity("1.5 MB")      Quantity(value=1500000.0, dimension="bytes")
parse_quantity("2/3")         Quantity(value=0.666..., dimension="")
read("6.74B", "billion")      6.74e9: in answer to a question in billions; B is bytes elsewhere
in_unit("4900 us", "ms")      the same as in_unit(4.9, "ms")
plain("≈ 1.5 × 10^9 bytes.")  "1.5e9 bytes": typed text, before it is parsed
plain("1,5 GB")               "1.5 GB"; "1,500 GB" stays: there the comma groups digits

bytes_text(1.5e6)             "1.5 MB"
size_text(2**20)              "1 MiB"
seconds_text(0.00493)         "4.93 ms"
text(31_406_250_000, "bytes") "31.4 GB": three digits; `exact_text` has every digit of a count
usual_mistake(8.0)            "A factor of eight: bits or bytes?"
"""

import math
import re
from typing import NamedTuple

_LONGEST = 100  # characters: longer text is not a number, and matching it may take minutes
_HIGH = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺", "0123456789-+")
_RAISED = re.compile(r"10([⁻⁺]?[⁰¹²³⁴⁵⁶⁷⁸⁹]+)")
_POWER = re.compile(r"(?<![\d.,_])10 ?(?:\^|\*\*) ?([+-]?\d+)")
_TIMES_POWER = re.compile(r"(?<=\d) ?[x×*·] ?1e(?=[+-]?\d)", re.I)
# A comma is decimal if other than three digits follow it, or a single 0 precedes it.
_DECIMAL_COMMA = re.compile(r"(?<![\d.,_])(0(?=,\d)|\d+(?=,(?!\d{3}(?!\d)))),(\d+)(?![\d.,])")


def plain(text: str) -> str:
    """Rewrite typed text for the parser. TypeError for no text, ValueError for a long one."""
    if not isinstance(text, str):
        raise TypeError(f"{text!r:.60} is no text; write the number with its unit, '1.5 MB'")
    text = " ".join(text.split())
    if len(text) > _LONGEST:
        raise ValueError(
            f"{text[:20]!r}... has {len(text)} characters, and a number has at most {_LONGEST}; "
            "try 1e9 or 1.5 MB"
        )
    text = text.replace("µ", "u").replace("μ", "u").lstrip("≈~= ").removesuffix(".")
    text = re.sub(r" ?per ?cent$", "%", text, flags=re.I)
    text = re.sub(r" ?×$", " x", text)
    text = _RAISED.sub(lambda match: f"10^{match[1].translate(_HIGH)}", text)
    text = _TIMES_POWER.sub("e", _POWER.sub(r"1e\1", text))
    return _DECIMAL_COMMA.sub(r"\1.\2", text)


KB, MB, GB, TB = 10**3, 10**6, 10**9, 10**12
KiB, MiB, GiB, TiB = 2**10, 2**20, 2**30, 2**40

# dimension -> unit -> its size in base units, for typing and reading.
UNITS: dict[str, dict[str, float]] = {
    "": {"": 1, "x": 1, "thousand": 1e3, "million": 1e6, "billion": 1e9, "trillion": 1e12},
    "bytes": {
        "B": 1, "KB": KB, "MB": MB, "GB": GB, "TB": TB,
        "KiB": KiB, "MiB": MiB, "GiB": GiB, "TiB": TiB,
    },
    "seconds": {
        "ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1, "min": 60, "h": 3600, "days": 86400,
        "weeks": 604_800,
    },
    "FLOP": {
        "FLOP": 1, "GFLOP": 1e9, "TFLOP": 1e12, "PFLOP": 1e15, "EFLOP": 1e18, "ZFLOP": 1e21,
    },
}  # fmt: skip
_PER_SECOND = ("bytes", "FLOP")
_FLOP_UNITS = tuple(reversed(UNITS["FLOP"]))  # the largest first
_ALIASES = {
    "byte": "B", "bytes": "B", "sec": "s", "second": "s", "seconds": "s", "day": "days",
    "minute": "min", "minutes": "min", "hour": "h", "hours": "h", "d": "days", "week": "weeks",
    "nsec": "ns", "usec": "us", "msec": "ms", "kbytes": "KB", "mbytes": "MB", "gbytes": "GB",
    "tbytes": "TB",
}  # fmt: skip
_LONG = {
    **{f"{prefix}byte": f"{prefix[0].upper()}B" for prefix in ("kilo", "mega", "giga", "tera")},
    **{f"{prefix}byte": f"{prefix[0].upper()}iB" for prefix in ("kibi", "mebi", "gibi", "tebi")},
    "nanosecond": "ns", "microsecond": "us", "millisecond": "ms",
}  # fmt: skip
_ALIASES |= {f"{name}{plural}": unit for name, unit in _LONG.items() for plural in ("", "s")}
_ALIASES |= {f"{unit.lower()}s": unit for unit in UNITS["FLOP"]}
_TYPED: dict[str, tuple[float, str]] = {
    name.lower(): (size, dimension)
    for dimension, sizes in UNITS.items()
    for name, size in sizes.items()
}
_TYPED |= {alias: _TYPED[name.lower()] for alias, name in _ALIASES.items()} | {"%": (0.01, "")}
# "6 steps" is a plain 6: the question already said what is counted.
_COUNTED = {
    "step", "message", "rank", "element", "operation", "send", "time", "token", "chunk",
    "microbatch", "gpu", "request", "parameter", "sequence", "failure", "bucket",
    "dollar", "choice", "hop", "sample", "gpu-hour",
}  # fmt: skip

# Commas only before groups of three: "1,5 MB" must not be read as 15 MB.
_NUMBER = r"[+-]?(?:\d{1,3}(?:[, ]\d{3})+(?:\.\d*)?|\d[\d_]*\.?\d*|\.\d+)(?:e[+-]?\d+)?"
_QUANTITY = re.compile(
    rf"\s*({_NUMBER})\s*(?:([/*x×])\s*({_NUMBER}))?\s*((?:[a-z]+-)?[a-z%]*)\s*(/\s*s)?\s*", re.I
)


class Quantity(NamedTuple):
    """A number in base units: "", "bytes", "seconds", "FLOP", "bytes/s" or "FLOP/s"."""

    value: float
    dimension: str


class Typed(NamedTuple):
    """A number as it was typed, with its unit of `size` base units."""

    number: float
    size: float
    dimension: str
    unit: str
    """Unit as typed; "" if there was none."""

    @property
    def quantity(self) -> Quantity:
        """The quantity in base units."""
        return Quantity(self.number * self.size, self.dimension)


def parse_quantity(text: str) -> Quantity:
    """Parse a typed quantity: `6`, `1,000`, `2/3`, `1.5 * 4e6`, `1.5 MB`, `75%`, `9 GB/s`.

    Raises ValueError, with examples of what is understood, for anything else, and TypeError unless
    it is text.
    """
    return parse_typed(text).quantity


def parse_typed(text: str) -> Typed:
    """Parse a number with the unit in which it was typed. Errors as in `parse_quantity`."""
    match = _QUANTITY.fullmatch(plain(text))
    if match is None:
        raise ValueError(
            f"{text.strip()!r} is not a number I can read; try 6, 2/3, 1e9, 75%, 1.5 MB or 4.9 ms"
        )
    first, operator, second, unit, per_second = match.groups()
    value = _number(first)
    if operator == "/":
        if _number(second) == 0:
            raise ValueError(f"{text.strip()!r} divides by zero; write the number itself")
        value /= _number(second)
    elif operator is not None:
        value *= _number(second)
    scale, dimension = _unit(unit)
    if per_second:
        if dimension not in _PER_SECOND:
            raise ValueError(f"{text.strip()!r}: only bytes go per second here; try 50 GB/s")
        dimension = f"{dimension}/s"
    if not math.isfinite(value * scale):
        raise ValueError(f"{text.strip()!r} is too large to be an answer; try 1e9 or 1.5 GB")
    return Typed(value, scale, dimension, f"{unit}/s" if per_second else unit)


def _number(digits: str) -> float:
    return float(digits.replace(",", "").replace("_", "").replace(" ", ""))


def _unit(unit: str) -> tuple[float, str]:
    lowered = unit.lower()
    if re.fullmatch("[KMGTPEZ]?FLOPS", unit):  # by custom the S is "per second"
        return _TYPED[lowered][0], "FLOP/s"
    if bits := re.fullmatch("([kKMGT])b(ps|it/s)", unit):
        return _TYPED[f"{bits[1].lower()}b"][0] / 8, "bytes/s"
    if re.fullmatch("[KMGT]b", unit):
        raise ValueError(f"{unit} may mean bits; write {unit[0]}B for bytes")
    if lowered in _TYPED:
        return _TYPED[lowered]
    if counted(unit):
        return 1, ""
    raise ValueError(
        f"I don't know the unit {unit!r}; use B, KB, MB, GB, TB (powers of 1000), "
        "KiB, MiB, GiB, TiB (powers of 1024), ns, us, ms, s, min, h, days, %, million, billion, "
        "FLOP or TFLOP"
    )


def read_count(text: str, *, k: int = 1000) -> float:
    """Return a count that is typed as people write it: 15T, 1.5e12, 2048.

    k: what the letter K stands for: of the tokens of a sequence 1024, "8k" is 8,192.
    ValueError for what is none.
    """
    if match := re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*k\s*", text, re.I):
        return float(match[1]) * k
    typed = read(text, "million")
    return typed.number * (typed.size if typed.unit else 1)


def counted(unit: str) -> str:
    """Return the noun that a unit counts: "step" for "Steps"; "" for a unit that measures."""
    singular = unit.lower().removesuffix("es" if unit.lower() == "microbatches" else "s")
    return singular if singular in _COUNTED else ""


def quantity_text(value: float, dimension: str = "") -> str:
    """Write a value as a person reads it: "1.5 MB" for "bytes", "4.93 ms" for "seconds"."""
    writers = {"bytes": bytes_text, "seconds": seconds_text, "": number_text}
    if dimension.endswith("/s") and dimension[:-2] in _PER_SECOND:
        return f"{quantity_text(value, dimension[:-2])}/s"
    if dimension == "FLOP":
        return _scaled(value, tuple((name, UNITS["FLOP"][name]) for name in _FLOP_UNITS))
    if dimension not in writers:
        raise ValueError(
            f"dimension {dimension!r} is none of '', 'bytes', 'seconds', 'FLOP', 'bytes/s', "
            "'FLOP/s'"
        )
    return writers[dimension](value)


def bytes_text(nbytes: float) -> str:
    """Write bytes with a decimal prefix and at most three digits: "8 B", "1.75 GB"."""
    return _scaled(nbytes, (("TB", TB), ("GB", GB), ("MB", MB), ("KB", KB), ("B", 1)))


def size_text(nbytes: float) -> str:
    """Write bytes with a binary prefix if that is a whole number: "64 KiB"."""
    for name, size in (("TiB", TiB), ("GiB", GiB), ("MiB", MiB), ("KiB", KiB)):
        if nbytes >= size and nbytes % size == 0:
            return f"{int(nbytes // size):,} {name}"
    return bytes_text(nbytes)


def exact_bytes_text(nbytes: float) -> str:
    """Write every byte below 10 MB ("12,288 B"), since rounding would hide missing ones."""
    if abs(nbytes) < 10 * MB and float(nbytes).is_integer():
        return f"{int(nbytes):,} B"
    return bytes_text(nbytes)


def seconds_text(seconds: float) -> str:
    """Write seconds with a prefix: "12.3 us", "4.93 ms", "2 s"."""
    return _scaled(seconds, (("s", 1), ("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9)))


def number_text(value: float) -> str:
    """Write a bare number: integers in full with thousands separators, others to four digits."""
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:.4g}"


def count_text(count: float) -> str:
    """Write a large count as people say it: "350M", "7B", "1.3T"; below a million in full."""
    if abs(count) < 1e6 or not math.isfinite(count):
        return number_text(count)
    return _scaled(count, (("T", 1e12), ("B", 1e9), ("M", 1e6))).replace(" ", "")


def _scaled(value: float, units: tuple[tuple[str, float], ...]) -> str:
    if not math.isfinite(value):
        return f"{value} {next(name for name, size in units if size == 1)}"
    # 999.6 KB rounds to 1000: compare after rounding to the three digits that are printed.
    rounded = float(f"{value:.3g}")
    name, size = next((unit for unit in units if abs(rounded) >= unit[1]), units[-1])
    if rounded == 0:
        return f"0 {units[-1][0] if units[-1][1] == 1 else 's'}"
    return f"{rounded / size:.6g} {name}"


# In base units: bytes are bytes, and time is seconds.
UNITS_OF: dict[str, dict[str, float]] = {
    "bytes": UNITS["bytes"],
    "seconds": UNITS["seconds"],
    "bytes/s": {f"{name}/s": size for name, size in UNITS["bytes"].items()},
    "FLOP": UNITS["FLOP"],
    "FLOP/s": {f"{name}/s": size for name, size in UNITS["FLOP"].items()},
    "parameters": {"parameters": 1, "M": 1e6, "B": 1e9, "T": 1e12},
    "share": {"": 1, "%": 0.01},
    "": UNITS[""],
}
_LONG_SPANS = ("days", "h", "min")


def text(value: float, dimension: str) -> str:
    """Write a value for a reader: 31.4 GB, 6.74B parameters, 30.4%, 19.3 min."""
    if dimension == "share":
        return f"{100 * value:.3g}%"
    if dimension == "seconds" and math.isfinite(value):
        for name in _LONG_SPANS:
            if value >= UNITS_OF["seconds"][name]:
                return f"{value / UNITS_OF['seconds'][name]:.3g} {name}"
    if dimension in ("bytes", "bytes/s", "seconds", ""):
        return quantity_text(value, dimension)
    if dimension == "parameters":
        return f"{count_text(value)} parameters"
    return f"{value:.4g} {dimension}"


def exact_text(value: float, dimension: str) -> str:
    """Write every digit of a count of parameters or bytes: rounding would hide missing ones."""
    if dimension in ("parameters", "bytes") and float(value).is_integer():
        return f"{int(value):,} {'B' if dimension == 'bytes' else dimension}"
    return text(value, dimension)


# Large counts as people write them, only for questions about counts: 7B is seven bytes elsewhere.
_COUNT_LETTERS = {"K": "thousand", "M": "million", "B": "billion", "bn": "billion", "T": "trillion"}
_LARGE_COUNTS = tuple(dict.fromkeys(_COUNT_LETTERS.values()))
_ENDS_IN_A_LETTER = re.compile(r"(.*\d\.?\s*)(K|M|B|bn|T)\s*", re.I | re.S)


def read(text: str, unit: str) -> Typed:
    """Read the answer to a question in `unit` ("" for counts), in which a bare number is.

    If percent are asked for, a quotient is a share: 7/23 is the same as 30.4%.
    Raises ValueError for a text that is not a number, for a unit of another dimension, for a
    counted noun in an answer that is measured, and for bytes and seconds below 0.
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
    if typed.dimension == "":  # "2 x", "3 million": the question says what is counted
        return Typed(typed.number * typed.size, asked.size, asked.dimension, "")
    wanted = (
        f"the question is in {asked.dimension or unit}"
        if asked.dimension or counted(unit)
        else "the question asks for a bare number"
    )
    raise ValueError(f"{text.strip()!r} is in {typed.dimension}; {wanted}")


def in_unit(number: float | str, unit: str) -> Quantity:
    """Return a number as a Quantity. A bare one is in `unit` ("" for counts); text may have its
    own.

    in_unit(4.9, "ms") == in_unit("4900 us", "ms"). Raises ValueError as `read` does, and for a
    number that is infinite or not a number, and for bytes or seconds below 0.
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
    """Write a quantity as a reader sees it; bytes exactly, as far as that is readable."""
    if quantity.dimension == "bytes":
        return exact_bytes_text(quantity.value)
    return quantity_text(quantity.value, quantity.dimension)


def usual_mistake(ratio: float) -> str:
    """Return the usual reason for an error by a well-known factor, as a question."""
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
