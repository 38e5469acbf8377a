"""Which request has tokens in which pass of an engine, one panel for each scheduler.

static batches, 6 passes            number: tokens of a prompt, or of a chunk of it
request 0  | 7|  |  |  |            pale:   one new token
        1  | 3|  |--|--|--|  |      --      between its passes: it was preempted, or left out
        2              | 5|  |
tokens      ## .  .  .  ## .        all new tokens of a pass; they make it longer
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle

from labkit.serving.caches import Piece
from labkit.viz import style
from labkit.viz.picture import Picture

_WIDTH, _LEFT, _RIGHT = 9.0, 0.85, 0.15  # inches
_ROW, _BARS, _HEADER, _TITLE, _GAP = 0.2, 0.42, 0.66, 0.26, 0.18
_DIGIT = 0.075  # inches of a digit, about
_WIDEST = 0.4  # inches of a column, at most
_COLOURS = {"prompt": "#d55e00", "again": "#e69f00", "token": "#a9c6e3"}
_BETWEEN: dict[str, Any] = {"color": style.FAINT_INK, "linewidth": 1}
_LABELS = {
    "prompt": "tokens of a prompt (number)",
    "again": "computed before, and again now",
    "token": "one new token",
}


class Cell(NamedTuple):
    """What a request computes in a pass. kind: "prompt", "again" or "token"."""

    sequence: int
    column: int
    num_tokens: int
    kind: str


def passes(
    schedules: Mapping[str, Sequence[Sequence[Piece]]],
    *,
    title: str = "which request computes what in which pass",
) -> Picture:
    """Draw a grid for each schedule: a row per request, a column per pass, and bars of tokens.

    schedules: by name, the pieces of each pass, as `measure.RecordedDecoder` notes them. Columns
    are equally wide in all panels. The last token of a prompt that is alone in a chunk looks like a
    new token. Returns a Picture. ValueError where there is no pass.
    """
    if not schedules or not all(schedules.values()):
        raise ValueError("there is no pass to draw: give {'continuous': recorded.passes, ...}")
    cells = {name: list(_cells(each)) for name, each in schedules.items()}
    rows = {name: sorted({cell.sequence for cell in each}) for name, each in cells.items()}
    heights = {name: _TITLE + _ROW * len(each) + _BARS + _GAP for name, each in rows.items()}
    height = _HEADER + sum(heights.values())
    counts = {name: len(each) for name, each in schedules.items()}
    words = ", ".join(f"{name} {count} passes" for name, count in counts.items())
    picture = Picture(_WIDTH, height, f"{title}: {words}")
    picture.text(0.013, 1 - 0.2 / height, title, **style.TITLE)
    _draw_legend(picture, list(cells.values()), height)
    width = _WIDTH - _LEFT - _RIGHT
    column = min(_WIDEST, width / max(counts.values()))  # inches
    top = height - _HEADER
    for name in schedules:
        heading = f"{name}: {counts[name]} passes"
        picture.text(0.013, (top - 0.12) / height, heading, **style.SMALL | {"weight": "bold"})
        bottom = top - _TITLE - _ROW * len(rows[name])
        share = _LEFT / _WIDTH, bottom / height, width / _WIDTH, _ROW * len(rows[name]) / height
        grid = picture.add_axes(share)
        below = bottom - _BARS
        bars = picture.add_axes(
            (_LEFT / _WIDTH, below / height, width / _WIDTH, 0.85 * _BARS / height)
        )
        for axes in (grid, bars):
            axes.set_xlim(0, width / column)
            axes.axis("off")
        _draw_grid(grid, cells[name], rows[name], column)
        _draw_bars(bars, cells[name], counts[name], column)
        top -= heights[name]
    return picture


def _cells(schedule: Sequence[Sequence[Piece]]) -> Iterator[Cell]:
    ends: dict[int, int] = {}
    for column, pieces in enumerate(schedule):
        for piece in pieces:
            end = ends.get(piece.sequence)
            if end is not None and piece.start < end:
                kind = "again"
            else:
                kind = "prompt" if end is None or len(piece.tokens) > 1 else "token"
            yield Cell(piece.sequence, column, len(piece.tokens), kind)
            ends[piece.sequence] = max(end or 0, piece.end)


def _draw_grid(axes: Axes, cells: Sequence[Cell], rows: Sequence[int], column: float) -> None:
    """column: its width in inches, which decides where a number fits."""
    axes.set_ylim(len(rows), 0)
    for row, sequence in enumerate(rows):
        own = [cell for cell in cells if cell.sequence == sequence]
        first, last = own[0].column, own[-1].column
        axes.plot([first, last], [row + 0.5] * 2, **_BETWEEN, zorder=1)
        look = style.SMALL | {"ha": "right"}
        axes.text(-0.08 / column, row + 0.5, f"{'request ' * (row == 0)}{sequence}", **look)
        for cell in own:
            colour = _COLOURS[cell.kind]
            box = Rectangle((cell.column, row + 0.06), 1, 0.88, facecolor=colour, zorder=2)
            box.set(edgecolor="white", linewidth=0.8)
            axes.add_patch(box)
            if cell.kind != "token" and column > _DIGIT * len(str(cell.num_tokens)):
                look = style.SMALL | {"ha": "center", "color": style.text_on(colour)}
                axes.text(cell.column + 0.5, row + 0.54, str(cell.num_tokens), **look)


def _draw_bars(axes: Axes, cells: Sequence[Cell], num_passes: int, column: float) -> None:
    """The tokens of each pass, one kind on another."""
    below = [0] * num_passes
    for kind, colour in _COLOURS.items():
        tokens = [0] * num_passes
        for cell in cells:
            if cell.kind == kind:
                tokens[cell.column] += cell.num_tokens
        centres = [each + 0.5 for each in range(num_passes)]
        axes.bar(centres, tokens, 0.9, below, color=colour)
        below = [low + more for low, more in zip(below, tokens, strict=True)]
    axes.set_ylim(0, max(below))
    axes.axhline(0, color=style.GRID, linewidth=0.8)
    for words, level in ((f"{max(below)}", 0.85), ("tokens", 0.25)):
        axes.text(-0.08 / column, level * max(below), words, **style.FAINT | {"ha": "right"})


def _draw_legend(picture: Picture, schedules: Sequence[Sequence[Cell]], height: float) -> None:
    """What is in the picture, and nothing else."""
    kinds = {cell.kind for cells in schedules for cell in cells}
    handles: list[Artist] = [
        Patch(color=_COLOURS[kind], label=_LABELS[kind]) for kind in _COLOURS if kind in kinds
    ]
    if any(map(_has_gap, schedules)):
        handles.append(Line2D([], [], **_BETWEEN, label="left out or preempted"))
    picture.legend(
        handles=handles,
        loc="upper left",
        bbox_to_anchor=(0.004, 1 - 0.32 / height),
        ncols=len(handles),
        frameon=False,
        fontsize=style.SMALL_POINTS,
    )


def _has_gap(cells: Sequence[Cell]) -> bool:
    """Whether a request has no tokens in a pass between its first and its last."""
    columns: dict[int, list[int]] = {}
    for cell in cells:
        columns.setdefault(cell.sequence, []).append(cell.column)
    return any(len(each) <= each[-1] - each[0] for each in columns.values())
