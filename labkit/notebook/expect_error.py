"""A cell that is meant to fail, and itself fails when it does not."""

import re
import textwrap
from types import TracebackType

_WIDTH = 96
# In a table the next column is further away.
_SAID_OF_RANKS = re.compile(r"  ranks? \d+(?:(?:, | and )\d+)*+ \S")
_CELL = re.compile(r"cell \d+")
_STAND_IN = "\0" * len("cell 10")


class expect_error:
    """Run what should break, and print its verdict instead of a traceback.

        with expect_error(RankError, match="rank 2"):
            run(broken, world_size=4)

    The error stays at hand as `.error` of the `as` name. Raises AssertionError where nothing was
    raised, where the error is of another type, and where its message does not contain `match` (a
    regular expression): a demonstration that no longer breaks is a mistake in the notebook. Stop
    (KeyboardInterrupt) passes through.
    """

    def __init__(
        self,
        *expected: type[BaseException],
        match: str | None = None,
        max_lines: int | None = None,
    ) -> None:
        """max_lines: print only so much of the message, for verdicts whose end varies."""
        if not expected:
            raise TypeError("name at least one error type: expect_error(RankError)")
        self._expected = expected
        self._match = match
        self._max_lines = max_lines
        self.error: BaseException | None = None

    def __enter__(self) -> "expect_error":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        names = " or ".join(expected.__name__ for expected in self._expected)
        if error is None:
            raise AssertionError(f"this cell should end in {names}, but nothing was raised")
        if not isinstance(error, self._expected):
            if not isinstance(error, Exception):
                return False  # Stop, or the kernel's end: not ours to judge
            raise AssertionError(
                f"this cell should end in {names}, but {type(error).__name__} came: {error}"
            ) from error
        if self._match is not None and re.search(self._match, str(error)) is None:
            raise AssertionError(
                f"{type(error).__name__} came, but its message does not contain "
                f"{self._match!r}: {error}"
            ) from error
        self.error = error
        print(self._verdict(error))
        return True

    def _verdict(self, error: BaseException) -> str:
        lines = str(error).strip().splitlines() or ["(no message)"]
        if self._max_lines is not None and len(lines) > self._max_lines:
            lines = [*lines[: self._max_lines], "..."]
        shown = [part for line in lines for part in _wrapped(line)]
        return "\n".join(
            [f"{type(error).__name__}, as expected:", *(f"│ {line}".rstrip() for line in shown)]
        )


def _wrapped(line: str) -> list[str]:
    """A sentence in lines of a page's width, also one that is said of some of the ranks.

    Tables and code, which are indented too, stay as they are. A cell's number does not decide where
    a line ends: it differs from one execution to the next.
    """
    numbers = iter(_CELL.findall(line))
    level = _CELL.sub(_STAND_IN, line)
    is_said = not line.startswith(" ") or _SAID_OF_RANKS.match(line)
    if len(level) <= _WIDTH or not is_said:
        return [line]
    lines = textwrap.wrap(
        level,
        _WIDTH,
        subsequent_indent="    " if line.startswith(" ") else "",
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [re.sub(_STAND_IN, lambda _: next(numbers), each) for each in lines]
