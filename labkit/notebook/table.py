"""Predicted, measured, residual: the table in which a formula meets a run."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from html import escape

from labkit.calc.units import exact_bytes_text, number_text, parse_quantity, seconds_text
from labkit.notebook.shown import BORDER, FAINT, Shown

_NONE = "–"
# Wider than any value, so that a longer time does not move the other columns.
_COLUMN_WIDTH = 15


@dataclass(frozen=True)
class Row:
    """One quantity: what a formula says and what a run showed.

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
    """Rows of predicted, measured and residual (measured against predicted).

        table([
            ("steps", calc.collective("all_reduce", "ring", 4).steps, len(sends)),
            ("sent by rank 0", 12_000, result.traffic[0].sent_bytes, "B"),
            ("time", 4.9e-3, seconds, "s"),
        ])

    Each row is a Row, or its fields in order. None for a number that there isn't. Counts and bytes
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
    # A share that would be printed as 0.0 % is no zero: then the difference itself.
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
