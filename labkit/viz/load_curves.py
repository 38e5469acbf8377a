"""Latency against throughput: a point for each rate of arrivals, measured and predicted.

latency |              : o     past the capacity requests wait in the queue: latency grows,
        |            o         throughput does not
        |  o--o--o-'
        +------------------ tokens per second
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from labkit.calc.units import number_text, seconds_text
from labkit.viz import style
from labkit.viz.memory_header import clean
from labkit.viz.picture import Picture

_WIDTH, _HEIGHT = 9.0, 3.8  # inches
Points = Sequence[tuple[float, float]]
"""(tokens per second, seconds of latency), in the order of load."""


def latency_throughput(
    measured: Mapping[str, Points],
    predicted: Mapping[str, Points] | None = None,
    *,
    target_s: float | None = None,
    title: str = "latency against throughput",
) -> Picture:
    """Draw a curve for each name, with points where it was measured; predictions are dashed.

    predicted: curves of the same names, in the same colours. target_s: a latency that requests
    should have, drawn as a level line. The latency's axis is logarithmic. Returns a Picture.
    ValueError where nothing was measured.
    """
    if not measured or not all(measured.values()):
        raise ValueError("nothing was measured: give {'TTFT': [(tokens per s, seconds), ...]}")
    most = {name: max(rate for rate, _ in points) for name, points in measured.items()}
    words = ", ".join(f"{name} up to {number_text(rate)} tokens/s" for name, rate in most.items())
    picture = Picture(_WIDTH, _HEIGHT, f"{title}: {words}")
    picture.text(0.013, 1 - 0.2 / _HEIGHT, title, **style.TITLE)
    axes = picture.add_axes((0.08, 0.14, 0.62, 0.74))
    looks = style.series(list(measured))
    for name, points in measured.items():
        look = looks[name]
        line: dict[str, Any] = {
            "color": look.colour,
            "marker": look.marker,
            "markersize": look.size,
        }
        axes.plot(*zip(*points, strict=True), "-", label=name, linewidth=1.6, **line)
        if predicted and name in predicted:
            axes.plot(
                *zip(*predicted[name], strict=True),
                "--",
                color=look.colour,
                linewidth=1.4,
                label=f"{name}, predicted",
            )
    if target_s is not None:
        axes.axhline(target_s, color=style.ALARM, linestyle=":", linewidth=1.4)
        text = style.SMALL | {"color": style.ALARM, "ha": "right", "va": "bottom"}
        axes.text(1, target_s, "target", transform=axes.get_yaxis_transform(), **text)
    axes.set_yscale("log")
    axes.set_xlim(left=0)
    axes.yaxis.set_major_formatter(lambda value, _: seconds_text(value))
    axes.yaxis.set_minor_formatter(lambda value, _: "")
    clean(axes)
    axes.tick_params(which="minor", length=0)
    axes.set_xlabel("tokens of answers per second", fontsize=style.SMALL_POINTS)
    axes.set_ylabel("latency", fontsize=style.SMALL_POINTS)
    axes.legend(
        frameon=False, fontsize=style.SMALL_POINTS, loc="upper left", bbox_to_anchor=(1.0, 1.0)
    )
    return picture
