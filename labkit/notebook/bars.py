"""Bars, legends and tables of the calculators."""

from collections.abc import Mapping, Sequence
from html import escape

from labkit.calc import Result
from labkit.notebook.shown import FAINT

_OTHER_COLOUR = "#b0b0b0"


def bar(
    whole: Result,
    colours: Mapping[str, str],
    scale: float,
    *,
    width: str = "10em",
    mark: float | None = None,
) -> str:
    """Draw a result's parts side by side, as long as they are; `scale` is the full length.

    colours: by part; the others are grey. mark: where a line crosses the bar.
    """
    segments = "".join(
        f'<span title="{escape(name)}: {escape(str(part))}" style="display: inline-block; height: '
        f"0.9em; width: {100 * float(part) / scale:.2f}%; "
        f'background: {colours.get(name, _OTHER_COLOUR)};"></span>'
        for name, part in whole.parts.items()
    )
    place = ""
    if mark is not None:
        place = "position: relative; white-space: nowrap; "
        segments += (
            f'<span style="position: absolute; left: {100 * mark / scale:.2f}%; top: -0.25em; '
            'height: 1.4em; border-left: 2px solid currentColor;"></span>'
        )
    return (
        f'<div style="{place}width: {width}; line-height: 0; background: rgba(128, 128, '
        f'128, 0.15);">{segments}</div>'
    )


def legend(name: str, colours: Mapping[str, str], shown: Sequence[Result]) -> str:
    """Return a legend of the parts that occur."""
    present = [part for part in colours if any(float(each.parts.get(part, 0)) for each in shown)]
    others = any(part not in colours for each in shown for part in each.parts)
    swatches = [(part, colours[part]) for part in present]
    swatches += [("other", _OTHER_COLOUR)] if others else []
    body = "".join(
        f'<span style="margin-right: 1em;"><span style="display: inline-block; width: 0.8em; '
        f'height: 0.8em; background: {colour};"></span> {escape(part)}</span>'
        for part, colour in swatches
    )
    return f'<div style="color: {FAINT};">{escape(name)}: {body}</div>'


def rows_html(rows: Sequence[Sequence[str]]) -> str:
    """Return a table: the heading, the parts and their sum. The last column says how."""
    cell = "padding: 1px 12px 1px 0; line-height: 1.5;"
    number = f"{cell} text-align: right; font-variant-numeric: tabular-nums;"
    lines = []
    for place, (name, *cells, how) in enumerate(rows):
        weight = "font-weight: 600;" if place in (0, len(rows) - 1) else ""
        lines.append(
            f'<tr><td style="{cell} text-align: left; {weight}">{escape(name)}</td>'
            + "".join(f'<td style="{number} {weight}">{escape(each)}</td>' for each in cells)
            + f'<td style="{cell} text-align: left; color: {FAINT};">{escape(how)}</td></tr>'
        )
    return f'<table style="border-collapse: collapse; margin: 6px 0;">{"".join(lines)}</table>'


def rows_text(rows: Sequence[Sequence[str]]) -> str:
    """Return the same table as plain text, aligned."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = [
        row[0].ljust(widths[0])
        + "".join(cell.rjust(width + 3) for cell, width in zip(row[1:-1], widths[1:-1]))
        + f"   {row[-1]}"
        for row in rows
    ]
    return "\n".join(line.rstrip() for line in lines)
