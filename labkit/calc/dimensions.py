"""What a result may measure, in which units it is read, and how it is written.

to("GiB")     one of the units of its dimension, by UNITS
31.4 GB       `text`: three digits, for people
31,406,250,000 B      `exact_text`: every one of a count
"""

import math

from labkit.calc.units import (
    GB,
    KB,
    MB,
    TB,
    GiB,
    KiB,
    MiB,
    TiB,
    count_text,
    quantity_text,
)

_MINUTE, _HOUR, _DAY = 60, 3600, 86400

# In base units: bytes are bytes, and time is seconds.
UNITS: dict[str, dict[str, float]] = {
    "bytes": {
        "B": 1, "KB": KB, "MB": MB, "GB": GB, "TB": TB,
        "KiB": KiB, "MiB": MiB, "GiB": GiB, "TiB": TiB,
    },
    "seconds": {"us": 1e-6, "ms": 1e-3, "s": 1, "min": _MINUTE, "h": _HOUR, "days": _DAY},
    "bytes/s": {"B/s": 1, "MB/s": MB, "GB/s": GB, "MiB/s": MiB, "GiB/s": GiB},
    "FLOP": {"FLOP": 1, "GFLOP": 1e9, "TFLOP": 1e12, "PFLOP": 1e15},
    "parameters": {"parameters": 1, "M": 1e6, "B": 1e9, "T": 1e12},
    "share": {"": 1, "%": 0.01},
    "": {"": 1, "x": 1},
}  # fmt: skip


def text(value: float, dimension: str) -> str:
    """As a person reads it: 31.4 GB, 6.74B parameters, 30.4%, 19.3 min."""
    if dimension == "share":
        return f"{100 * value:.3g}%"
    if dimension == "seconds" and value >= _MINUTE and math.isfinite(value):
        size, name = next(
            u for u in ((_DAY, "days"), (_HOUR, "h"), (_MINUTE, "min")) if value >= u[0]
        )
        return f"{value / size:.3g} {name}"
    if dimension in ("bytes", "seconds", ""):
        return quantity_text(value, dimension)
    if dimension == "bytes/s":
        return f"{quantity_text(value, 'bytes')}/s"
    if dimension == "parameters":
        return f"{count_text(value)} parameters"
    return f"{value:.4g} {dimension}"


def exact_text(value: float, dimension: str) -> str:
    """Every one of a count of parameters or bytes: rounding would hide that some are missing."""
    if dimension in ("parameters", "bytes") and float(value).is_integer():
        return f"{int(value):,} {'B' if dimension == 'bytes' else dimension}"
    return text(value, dimension)
