"""The source text of a call, from the instruction that makes it: `world.all_reduce(a)`."""

import linecache
from itertools import islice
from types import CodeType

_LONGEST = 60


def call_text(code: CodeType, instruction: int) -> str:
    """What the code says at `instruction` (a frame's f_lasti), on one line, without indentation.

    Empty where it is not known: sources that are gone, Python started with -X no_debug_ranges.
    """
    span = next(islice(code.co_positions(), instruction // 2, None), None)
    if span is None or None in span:
        return ""
    first, last, start, end = span
    assert first is not None and last is not None and start is not None and end is not None
    # Columns count bytes of UTF-8.
    lines = [linecache.getline(code.co_filename, n).encode() for n in range(first, last + 1)]
    lines[-1] = lines[-1][:end]
    lines[0] = lines[0][start:]
    return " ".join(b" ".join(lines).decode(errors="replace").split())


def shortened(text: str) -> str:
    """A text for a line of a report; the end of a long one is left out."""
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 4]} ..."
