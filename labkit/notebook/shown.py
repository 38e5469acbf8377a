"""Results that a cell shows: as HTML in a notebook, as plain text everywhere else.

Both forms are compared when notebooks are tested, so both depend only on what is shown. `table` has
predicted, measured and residual: a formula meets a run. `expect_error` is a cell that should fail,
and itself fails when it does not.
"""

import math
import re
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from html import escape
from types import TracebackType
from typing import Any

from labkit.calc.units import exact_bytes_text, number_text, parse_quantity, seconds_text

# Notebook themes define these; the fallbacks are for pages that don't (GitHub, nbconvert).
BORDER = "var(--jp-border-color2, #d0d0d0)"
FAINT = "var(--jp-ui-font-color2, #666)"
INK = "var(--jp-content-font-color1, inherit)"
FRAME = "#0072b2"  # the bar of a box without a verdict


class Shown:
    """A result whose `repr` is its text, and whose HTML is used where there is a browser."""

    def __init__(self, text: str, html: str | None = None) -> None:
        """html: the text itself, in a box, where none is given."""
        self.text = text
        self.html = html if html is not None else box(f"<div>{escape(text)}</div>")

    def __repr__(self) -> str:
        return self.text

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        return {"text/plain": self.text, "text/html": self.html}


class WithWidget:
    """A widget where there is a kernel; on a page without one its static form, as HTML or text.

    A subclass has the widget as `_widget`, and `repr` for text. Static forms are the same for every
    reader: notebooks that were run are compared.
    """

    _widget: Any

    def _static_html(self) -> str:
        raise NotImplementedError

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        bundle: dict[str, Any] = self._widget._repr_mimebundle_()
        return {**bundle, "text/plain": repr(self), "text/html": self._static_html()}


def run_it(to_html: str) -> str:
    """Return the hint at the end of a static form: `Run this cell to turn the knobs.`"""
    return f'<span style="color: {FAINT}">Run this cell to {to_html}</span>'


def scrolled(content_html: str, label: str) -> str:
    """Let a wide part scroll by itself, by keys too, and not the page around it.

    label: its name for a screen reader.
    """
    return (
        f'<div role="region" tabindex="0" aria-label="{escape(label)}" '
        f'style="overflow-x: auto; contain: inline-size;">{content_html}</div>'
    )


def box(content_html: str, colour: str = FRAME) -> str:
    """Set off a paragraph by a coloured bar on its left."""
    return (
        f'<div style="border-left: 4px solid {colour}; padding: 4px 12px; margin: 4px 0; '
        f'max-width: 46em;">{content_html}</div>'
    )


_NONE = "–"
# Wider than any value, so that a longer time does not move the other columns.
_COLUMN_WIDTH = 15


@dataclass(frozen=True)
class Row:
    """One quantity, by a formula and by a run.

    unit: of both numbers: "" for counts, or B, KB, MB, GB, KiB, MiB, GiB, s, ms, us, ns, %.
    varies: the measured number differs from run to run; it is marked with ~ and is not compared
    when the notebook is tested. Times always vary.
    """

    name: str
    predicted: float | None
    measured: float | None
    unit: str = ""
    varies: bool = False


def table(rows: Iterable[Row | tuple]) -> Shown:
    """Show rows of predicted, measured and residual (measured against predicted).

        table([
            ("steps", calc.collective("all_reduce", "ring", 4).steps, len(sends)),
            ("sent by rank 0", 12_000, result.traffic[0].sent_bytes, "B"),
            ("time", 4.9e-3, seconds, "s"),
        ])

    Each row is a Row, or its fields in order. None for a missing number. Counts and bytes
    are shown exactly. Raises ValueError for an unknown unit, TypeError for a row of the wrong form.
    """
    parsed = [row if isinstance(row, Row) else Row(*row) for row in rows]
    cells = [_cells(row) for row in parsed]
    heading = ("", "predicted", "measured", "residual")
    return Shown(_text(heading, cells), _html(heading, cells))


def _cells(row: Row) -> tuple[str, str, str, str]:
    scale, dimension = parse_quantity(f"1 {row.unit}")
    if row.unit == "%":
        scale, dimension = 1.0, "%"  # stays as it is written
    predicted, measured = (
        None if number is None else number * scale for number in (row.predicted, row.measured)
    )
    mark = "~" if row.varies or dimension == "seconds" else ""
    if predicted is None or measured is None:
        residual = _NONE
    else:
        residual = mark + _residual(predicted, measured, dimension)
    return (
        row.name,
        _NONE if predicted is None else _quantity(predicted, dimension),
        _NONE if measured is None else mark + _quantity(measured, dimension),
        residual,
    )


def _quantity(value: float, dimension: str) -> str:
    if dimension == "%":
        return f"{value:.4g} %"
    writers = {"bytes": exact_bytes_text, "seconds": seconds_text}
    return writers.get(dimension, number_text)(value)


def _residual(predicted: float, measured: float, dimension: str) -> str:
    difference = measured - predicted
    if difference == 0:
        return "0"
    if dimension == "%":
        return f"{difference:+.1f} points"
    share = abs(difference / predicted) if predicted else math.inf
    are_counts = float(predicted).is_integer() and float(measured).is_integer()
    is_small_count = dimension == "" and are_counts and abs(predicted) < 1000
    # A share that would be printed as 0.0 % is not zero: show the difference itself.
    if is_small_count or share == math.inf or share < 0.0005:
        return ("+" if difference > 0 else "") + _quantity(difference, dimension)
    if share >= 9:
        return f"{number_text(float(f'{measured / predicted:.3g}'))} x"
    return f"{100 * difference / abs(predicted):+.1f} %"


def _text(heading: tuple[str, ...], cells: list[tuple[str, str, str, str]]) -> str:
    name_width = max((len(row[0]) for row in cells), default=0)
    lines = [
        row[0].ljust(name_width) + "".join(cell.rjust(_COLUMN_WIDTH) for cell in row[1:])
        for row in [heading, *cells]
    ]
    return "\n".join(line.rstrip() for line in lines)


def _html(heading: tuple[str, ...], cells: list[tuple[str, str, str, str]]) -> str:
    number = "text-align: right; padding: 3px 14px; font-variant-numeric: tabular-nums;"
    name = "text-align: left; padding: 3px 14px 3px 4px;"
    head = "".join(
        f'<th style="{name if i == 0 else number} color: {FAINT}; font-weight: 600;">{title}</th>'
        for i, title in enumerate(heading)
    )
    lines = [f'<tr style="border-bottom: 1px solid {BORDER};">{head}</tr>']
    for row in cells:
        weight = "font-weight: 600;" if row[3] == "0" else ""
        styles = (name, number, number, number + weight)
        columns = "".join(
            f'<td style="{style}">{escape(cell)}</td>' for style, cell in zip(styles, row)
        )
        lines.append(f"<tr>{columns}</tr>")
    return f'<table style="border-collapse: collapse; margin: 4px 0;">{"".join(lines)}</table>'


_WIDTH = 96
# In a table the next column is further away.
_SAID_OF_RANKS = re.compile(r"  ranks? \d+(?:(?:, | and )\d+)*+ \S")
_CELL = re.compile(r"cell \d+")
_STAND_IN = "\0" * len("cell 10")


class expect_error:
    """Run a block that should fail, and print the verdict instead of a traceback.

        with expect_error(RankError, match="rank 2"):
            run(broken, world_size=4)

    The error stays at hand as `.error` of the `as` name. Raises AssertionError if nothing was
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
                return False  # Stop, or the kernel's end: leave it alone
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
    """Break a sentence into lines of a page's width, also one about some of the ranks.

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
