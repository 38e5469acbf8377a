"""Finding: one thing that was looked at, and what to do where it is not as it should be."""

from dataclasses import dataclass
from enum import IntEnum


class Level(IntEnum):
    """How much a finding matters."""

    OK = 0
    WARNING = 1
    """Runs work, but something will be slow, missing or in the way."""
    ERROR = 2
    """No run can work."""


@dataclass(frozen=True, slots=True)
class Finding:
    """`why` and `fix` are empty where nothing is wrong."""

    subject: str
    """What was looked at: "memory"."""
    text: str
    """What was found: "25.3 GB, 24.7 GB available"."""
    level: Level = Level.OK
    why: str = ""
    """Why it matters to the runs of this lab."""
    fix: str = ""
    """What to do about it."""


def size_text(nbytes: int) -> str:
    """Bytes as "25.3 GB" (1e9) or "64 MB" (1e6)."""
    return f"{nbytes / 1e9:.1f} GB" if nbytes >= 1e9 else f"{nbytes / 1e6:.0f} MB"
