"""Extents of a matrix by rank, in several layouts side by side.

    saved by 2 ranks       loaded by 3 ranks      loaded as columns
    +-----------+          +-----------+          +-----+-----+
    | file 0    |          | rank 0    |          |     |     |
    |        +--+          |  +--------+          |  0  |  1  |
    +--------+  |          +--+ rank 1 |          |=====|=====|   where files meet
    |   file 1  |          |   rank 2  |          |     |     |
    +-----------+          +-----------+          +-----+-----+

Black lines separate the files of the first layout. A rank reads from each file in which its colour
has a part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb

from labkit.shards import Extent
from labkit.viz import style
from labkit.viz.picture import Picture

MAX_PANELS, MAX_RANKS = 4, 8
_WIDTH, _MARGIN, _BETWEEN = 9.0, 0.12, 0.25  # inches, as all that follow
_HEADER, _BELOW, _PANEL = 0.72, 0.34, 2.1


def extents(layouts: Mapping[str, Sequence[Extent]], *, title: str = "who holds what") -> Picture:
    """Draw one matrix in each layout, an element in the colour of the rank that holds it.

    layouts: by name the extents of ranks 0, 1, 2, ...; the first one is how it was saved. Returns a
    Picture. ValueError for no layout or more than 4, for more than 8 ranks, and unless it is a
    matrix.
    """
    if not 1 <= len(layouts) <= MAX_PANELS:
        raise ValueError(
            f"{len(layouts)} layouts: a picture that can be read has 1 to {MAX_PANELS}"
        )
    most = max(len(held) for held in layouts.values())
    if not 1 <= most <= MAX_RANKS:
        raise ValueError(f"{most} ranks: there are colours for 1 to {MAX_RANKS}")
    holders = {name: _holders(held) for name, held in layouts.items()}
    saved = next(iter(holders.values()))
    height = _HEADER + _PANEL + _BELOW
    picture = Picture(_WIDTH, height, f"{title}: {', '.join(layouts)}")
    picture.text(_MARGIN / _WIDTH, 1 - 0.2 / height, title, **style.TITLE)
    width = (_WIDTH - 2 * _MARGIN - (len(layouts) - 1) * _BETWEEN) / len(layouts)
    colours = np.array([to_rgb(style.rank_colour(rank)) for rank in range(most)])
    for number, (name, holder) in enumerate(holders.items()):
        left = _MARGIN + number * (width + _BETWEEN)
        axes = picture.add_axes(
            (left / _WIDTH, _BELOW / height, width / _WIDTH, _PANEL / height), aspect="auto"
        )
        axes.imshow(colours[holder], aspect="auto", interpolation="nearest")
        axes.set_xticks([])
        axes.set_yticks([])
        what = "file" if number == 0 else "rank"
        for rank in range(len(layouts[name])):
            rows, columns = np.nonzero(holder == rank)
            if len(rows):
                x, y = float(np.mean(columns)), float(np.mean(rows))
                text = axes.text(x, y, f"{what} {rank}", **style.SMALL | {"ha": "center"})
                text.set_bbox({"facecolor": style.rank_colour(rank), "linewidth": 0, "pad": 2})
        _draw_borders(axes, saved)
        picture.text(left / _WIDTH, 1 - 0.56 / height, name, **style.SMALL)
    rows, columns = saved.shape
    words = f"{rows} x {columns} elements; black lines: where the files meet"
    picture.text(_MARGIN / _WIDTH, 0.16 / height, words, **style.FAINT)
    return picture


def _holders(held: Sequence[Extent]) -> np.ndarray:
    """Return the rank that holds each element: (rows, columns)."""
    shape = held[0].shape
    if len(shape) != 2:
        raise ValueError(f"a tensor of shape {shape}: give extents of a matrix")
    found = np.full(shape[0] * shape[1], -1)
    for rank, extent in enumerate(held):
        for begin, _, length in zip(*(each.tolist() for each in extent.runs()), strict=True):
            found[begin : begin + length] = rank
    if (found < 0).any():
        raise ValueError(f"{(found < 0).sum()} elements are on no rank: give those of all ranks")
    return found.reshape(shape)


def _draw_borders(axes: Axes, holder: np.ndarray) -> None:
    look: dict[str, Any] = {"colors": style.INK, "linewidth": 1.4}
    below = np.argwhere(holder[1:] != holder[:-1])
    beside = np.argwhere(holder[:, 1:] != holder[:, :-1])
    for row, column in below:
        axes.hlines(row + 0.5, column - 0.5, column + 0.5, **look)
    for row, column in beside:
        axes.vlines(column + 0.5, row - 0.5, row + 0.5, **look)
