"""A heat map of the bandwidth between ranks: the slower a pair, the darker its cell.

       0     1   |   2     3
0      .    20   |  20     5      rank 3 has a slow link: a dark row and column
1     20     .   |  20     5
     ------------+------------
2     20    20   |   .     5      a leaf's uplink that is degraded: nothing to see
3      5     5   |   5     .
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from labkit.viz import style
from labkit.viz.cells import blank_axes
from labkit.viz.picture import Picture

MAX_RANKS = 16
_SLOW = "#0072b2"
_LEFT, _HEADER, _CELL_WIDTH, _CELL_HEIGHT = 0.75, 0.85, 0.5, 0.34  # inches


def bandwidth_map(
    bytes_per_s: Mapping[tuple[int, int], float],
    *,
    groups: Sequence[Sequence[int]] = (),
    title: str | None = None,
) -> Picture:
    """Draw MB/s from rank to rank: white is the fastest pair, shades are shares of its bandwidth.

    bytes_per_s: by pair of ranks, the lower one first; a cell without a pair stays empty. groups:
    ranks that lines keep together, such as those of a leaf, in order. Returns a Picture.
    ValueError for no pair, and for more than 16 ranks.
    """
    if not bytes_per_s:
        raise ValueError("there is no pair to draw: give bytes per second, {(0, 1): 20e6, ...}")
    n = 1 + max(map(max, bytes_per_s))
    if n > MAX_RANKS:
        raise ValueError(f"{n} ranks: a map that can be read has up to {MAX_RANKS}")
    most = max(bytes_per_s.values())
    a, b = min(bytes_per_s, key=lambda pair: bytes_per_s[pair])
    words = f"{megabytes(bytes_per_s[a, b])} (ranks {a} and {b}) to {megabytes(most)} MB/s"
    title = title or f"bandwidth of pairs of {n} ranks"
    width, height = max(4.5, _LEFT + n * _CELL_WIDTH + 0.1), _HEADER + n * _CELL_HEIGHT + 0.1
    picture = Picture(width, height, f"{title}: {words}")
    axes = picture.add_axes((0, 0, 1, 1))
    blank_axes(axes, width, height)
    axes.text(0.12, 0.2, title, **style.TITLE)
    axes.text(0.12, 0.45, f"{words}; the fastest pair is white", **style.SMALL)
    _draw_cells(axes, bytes_per_s, n)
    right, bottom = _LEFT + n * _CELL_WIDTH, _HEADER + n * _CELL_HEIGHT
    for group in groups[1:]:
        x, y = _LEFT + min(group) * _CELL_WIDTH, _HEADER + min(group) * _CELL_HEIGHT
        axes.plot([x, x], [_HEADER, bottom], color=style.INK, linewidth=1.4)
        axes.plot([_LEFT, right], [y, y], color=style.INK, linewidth=1.4)
    return picture


def _draw_cells(axes: Axes, bytes_per_s: Mapping[tuple[int, int], float], n: int) -> None:
    most = max(bytes_per_s.values())
    centred = style.SMALL | {"ha": "center"}
    for a in range(n):
        x, y = _LEFT + (a + 0.5) * _CELL_WIDTH, _HEADER + (a + 0.5) * _CELL_HEIGHT
        axes.text(x, _HEADER - 0.14, str(a), **centred)
        axes.text(_LEFT - 0.1, y, f"rank {a}", **style.SMALL | {"ha": "right"})
        for b in range(n):
            corner = (_LEFT + b * _CELL_WIDTH, _HEADER + a * _CELL_HEIGHT)
            speed = bytes_per_s.get((min(a, b), max(a, b)))
            colour = style.tint(_SLOW, speed / most) if speed else "#f0f0f0"
            cell = Rectangle(corner, _CELL_WIDTH, _CELL_HEIGHT, facecolor=colour, linewidth=0.7)
            cell.set_edgecolor(style.GRID)
            axes.add_patch(cell)
            text = megabytes(speed) if speed else "·"
            place = (corner[0] + _CELL_WIDTH / 2, y)
            axes.text(*place, text, **centred | {"color": style.text_on(colour)})


def megabytes(bytes_per_s: float) -> str:
    """MB/s without its unit: three digits, "19.0", "1140", "0.02"."""
    value = bytes_per_s / 1e6
    if value < 9.995:
        return f"{value:.3g}"
    return f"{value:.1f}" if value < 99.95 else f"{value:.0f}"
