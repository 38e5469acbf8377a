"""What a result may measure, in which units it is read, and how it is written.

to("GiB")     one of the units of its dimension, by UNITS
31.4 GB       `text`: three digits, for people
31,406,250,000 B      `exact_text`: every one of a count
"""

import math

from labkit.calc import units
from labkit.calc.units import count_text, quantity_text

# In base units: bytes are bytes, and time is seconds.
UNITS: dict[str, dict[str, float]] = {
    "bytes": units.UNITS["bytes"],
    "seconds": units.UNITS["seconds"],
    "bytes/s": {f"{name}/s": size for name, size in units.UNITS["bytes"].items()},
    "FLOP": units.UNITS["FLOP"],
    "FLOP/s": {f"{name}/s": size for name, size in units.UNITS["FLOP"].items()},
    "parameters": {"parameters": 1, "M": 1e6, "B": 1e9, "T": 1e12},
    "share": {"": 1, "%": 0.01},
    "": units.UNITS[""],
}
_LONG_SPANS = ("days", "h", "min")


def text(value: float, dimension: str) -> str:
    """As a person reads it: 31.4 GB, 6.74B parameters, 30.4%, 19.3 min."""
    if dimension == "share":
        return f"{100 * value:.3g}%"
    if dimension == "seconds" and math.isfinite(value):
        for name in _LONG_SPANS:
            if value >= UNITS["seconds"][name]:
                return f"{value / UNITS['seconds'][name]:.3g} {name}"
    if dimension in ("bytes", "bytes/s", "seconds", ""):
        return quantity_text(value, dimension)
    if dimension == "parameters":
        return f"{count_text(value)} parameters"
    return f"{value:.4g} {dimension}"


def exact_text(value: float, dimension: str) -> str:
    """Every one of a count of parameters or bytes: rounding would hide that some are missing."""
    if dimension in ("parameters", "bytes") and float(value).is_integer():
        return f"{int(value):,} {'B' if dimension == 'bytes' else dimension}"
    return text(value, dimension)
