"""A roofline: the roof of a machine, and a point for each operation under it.

FLOP/s |          __________  peak
       |        /      o MLP
       |      / o layer norm
       +-------------------- FLOP per byte
"""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.axes import Axes

from labkit.calc.units import number_text, quantity_text
from labkit.viz import style
from labkit.viz.memory_header import clean
from labkit.viz.picture import Picture

_WIDTH, _HEIGHT = 9.0, 4.2  # inches
_MEMORY, _COMPUTING = "#e69f00", "#0072b2"


def roofline(
    operations: Mapping[str, tuple[float, float]],
    flops_per_s: float,
    bytes_per_s: float,
    *,
    title: str = "roofline",
) -> Picture:
    """Draw operations under the roof, numbered: memory bounds squares, computing circles.

    operations: by name, FLOP per byte and FLOP/s. Both axes are logarithmic. Returns a Picture.
    ValueError where there is no operation.
    """
    if not operations:
        raise ValueError("there is no operation to draw: give {'MLP': (100.0, 2e11), ...}")
    ridge = flops_per_s / bytes_per_s
    words = f"{quantity_text(flops_per_s, 'FLOP/s')}, {quantity_text(bytes_per_s, 'bytes/s')}"
    below = [name for name, (intensity, _) in operations.items() if intensity < ridge]
    caption = f"{title}: {words}; bound by memory: {', '.join(below) or 'nothing'}"
    picture = Picture(_WIDTH, _HEIGHT, caption)
    picture.text(0.013, 1 - 0.2 / _HEIGHT, title, **style.TITLE)
    picture.text(0.013, 1 - 0.44 / _HEIGHT, f"roof: {words}", **style.SMALL)
    axes = picture.add_axes((0.08, 0.13, 0.73, 0.68))
    intensities = [intensity for intensity, _ in operations.values()]
    low, high = min(*intensities, ridge) / 3, max(*intensities, ridge) * 6
    corners = [low, ridge, high]
    roof = [min(flops_per_s, bytes_per_s * each) for each in corners]
    axes.plot(corners, roof, color=style.INK, linewidth=1.8, zorder=3)
    axes.axvline(ridge, color=style.FAINT_INK, linestyle=":", linewidth=1.2)
    for share, where, colour in ((0.02, "memory", _MEMORY), (0.98, "computing", _COMPUTING)):
        side = "left" if share < 0.5 else "right"
        look = style.SMALL | {"color": colour, "ha": side, "transform": axes.transAxes}
        axes.text(share, 1.04, f"bound by {where}", **look)
    _draw_operations(picture, axes, operations, ridge)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_ylabel("GFLOP/s", fontsize=style.SMALL_POINTS)
    axes.yaxis.set_major_formatter(lambda value, _: number_text(value / 1e9))
    axes.set_ylim(min(speed for _, speed in operations.values()) / 3, 2 * flops_per_s)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.minorticks_off()
    clean(axes)
    axes.set_xlabel(f"FLOP per byte; ridge at {ridge:.3g}", fontsize=style.SMALL_POINTS)
    return picture


def _draw_operations(
    picture: Picture, axes: Axes, operations: Mapping[str, tuple[float, float]], ridge: float
) -> None:
    """Numbers, which do not hide each other as names would, and names at the right."""
    for number, (name, (intensity, speed)) in enumerate(operations.items(), 1):
        is_memory = intensity < ridge
        colour, marker = (_MEMORY, "s") if is_memory else (_COMPUTING, "o")
        axes.plot(intensity, speed, marker, color=colour, markersize=12, zorder=4)
        look = style.SMALL | {"ha": "center", "va": "center", "color": style.text_on(colour)}
        axes.text(intensity, speed, str(number), zorder=5, **look)
        picture.text(0.83, 0.78 - 0.065 * number, f"{number}  {name}", **style.SMALL)
