"""The options in the first line of a `%%ranks` cell."""

import re
from dataclasses import dataclass

_OPTIONS = "a number of ranks, --on 0,2, --timeout 300, --device cpu"
_MOST_DIGITS = 18  # beyond some thousand, int() refuses in words of its own


@dataclass(frozen=True)
class RanksLine:
    """What the line asks for; None where it leaves something open."""

    world_size: int | None = None
    on: list[int] | None = None
    timeout_s: float = 120
    device: str | None = None


def parse(line: str) -> RanksLine:
    """`4 --on 0,2 --timeout 300 --device cpu`, in any order. Raises ValueError."""
    found: dict[str, object] = {}
    words = re.sub(r"\s*,\s*", ",", line.replace("=", " ")).split()
    while words:
        word = words.pop(0)
        if not word.startswith("--"):
            _enter(found, "world_size", _world_size(word))
        elif not words:
            raise ValueError(f"{word} needs a value; what can stand here: {_OPTIONS}")
        elif word == "--on":
            _enter(found, "on", _ranks(words.pop(0)))
        elif word == "--timeout":
            _enter(found, "timeout_s", _seconds(words.pop(0)))
        elif word == "--device":
            _enter(found, "device", words.pop(0))
        else:
            raise ValueError(f"{word} is unknown; what can stand here: {_OPTIONS}")
    return RanksLine(**found)  # type: ignore[arg-type]


def _enter(found: dict[str, object], name: str, value: object) -> None:
    if name in found:
        raise ValueError(f"{found[name]} and {value}: give one of them")
    found[name] = value


def _world_size(word: str) -> int:
    if not _is_number(word) or int(word) < 1:
        raise ValueError(f"{word!r} is not a number of ranks; write %%ranks 4, for example")
    return int(word)


def _is_number(word: str) -> bool:
    return word.isdecimal() and len(word) <= _MOST_DIGITS


def _ranks(word: str) -> list[int]:
    parts = [part for part in word.split(",") if part]
    if not parts or not all(map(_is_number, parts)):
        raise ValueError(f"--on {word}: name ranks by number, with commas, as in --on 0,2")
    return [int(part) for part in parts]


def _seconds(word: str) -> float:
    try:
        return float(word)
    except ValueError:
        raise ValueError(f"--timeout {word}: give a number of seconds") from None
