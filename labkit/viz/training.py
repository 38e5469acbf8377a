r"""Pictures of training: curves, ages of gradients, exponents of gradients, a loss scale.

curves: panels side by side, which share both axes and the colours of their lines.

    loss |\  synchronous      |\___          a line has its name in the legend; time begins at 0
         | \___ asynchronous  |    ---___
         +---------- seconds  +---------- seconds

staleness: how many gradients of each age a server used, by worker.

    updates |  #            a bar per age, stacked by worker; the dashed line is the mean of all
            | ##:##   .
            +----+---------- staleness

exponents: how many numbers fall into each power of two, and where float16 ends on both sides.

    % |////|    .##.      |  hatched: 0 in float16        loss_scale: the scale of each step, as a
      |////|  .######.    |                               power of two, and the steps it skipped
      +-24----------------16
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.ticker import Locator, LogLocator, MaxNLocator, NullLocator
from torch import Tensor

from labkit.calc.units import count_text
from labkit.data_parallel.parameter_server import Arrival
from labkit.viz import style
from labkit.viz.memory import clean
from labkit.viz.picture import Picture

Points = Mapping[float, float] | Iterable[tuple[float, float]]

_WIDTH, _HEIGHT = 9.0, 3.3  # inches
_KEY, _LETTER = 0.6, 0.08  # inches of a line in a legend, and of a letter, about
_AXIS: dict[str, Any] = {"fontsize": style.SMALL_POINTS, "color": style.FAINT_INK}
_LINES = ("-", "--", "-.", ":")
# Okabe and Ito's, darkest first; no more lines than these in a picture.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#222222")


def curves(
    panels: Mapping[str, Mapping[str, Points]],
    *,
    xlabel: str,
    ylabel: str,
    title: str,
    log: bool = False,
    markers: bool = False,
) -> Picture:
    """Draw lines in panels that share their axes; a name has one look in all of them.

    panels: by title, lines by name, each {x: y} or pairs. log: both axes are logarithmic, and x
    counts in powers of two. markers: a dot at each point, where there are few and measured ones.
    Returns a Picture. ValueError where there is nothing to draw, and for more than 6 names.
    """
    lines = {
        panel: {name: _pairs(each) for name, each in of.items()} for panel, of in panels.items()
    }
    if not lines or not all(of and all(of.values()) for of in lines.values()):
        raise ValueError(
            "a panel or a line has nothing to draw: give {'panel': {'line': {1: 2.0}}}"
        )
    names = list(dict.fromkeys(name for of in lines.values() for name in of))
    if len(names) > len(COLOURS):
        raise ValueError(f"{len(names)} lines: a picture that can be read has up to {len(COLOURS)}")
    colours = dict(zip(names, COLOURS, strict=False))
    picture, axes_of = side_by_side(title, list(lines), f"{title}: {', '.join(names)}")
    for axes, of in zip(axes_of, lines.values(), strict=True):
        for number, (name, points) in enumerate(of.items()):
            line = _LINES[number % len(_LINES)]
            look: dict[str, Any] = {
                "color": colours[name],
                "marker": "o" if markers else "",
                "markersize": 5,
            }
            axes.plot(*zip(*points, strict=True), line, label=name, **look)
        axes.set_xlabel(xlabel, **_AXIS)
        if log:
            _logarithmic(axes)
    if not log:
        axes_of[0].set_xlim(left=0)
    axes_of[0].set_ylabel(ylabel, **_AXIS)
    _draw_legend(axes_of[-1], names, is_beside_a_title=bool(list(lines)[-1]))
    return picture


def _draw_legend(axes: Axes, names: Sequence[str], *, is_beside_a_title: bool) -> None:
    """Draw it above the lines where it has room, and among them otherwise."""
    inches = sum(_KEY + _LETTER * len(name) for name in names)
    look: dict[str, Any] = {"edgecolor": "none", "fontsize": style.SMALL_POINTS}
    if not is_beside_a_title and inches < 0.9 * _WIDTH:
        look |= {"loc": "lower right", "bbox_to_anchor": (1.0, 1.0), "ncols": len(names)}
        axes.legend(columnspacing=1.4, **look)
    else:
        axes.legend(framealpha=0.85, **look)


_HATCHES = "", "//", "\\\\", ".."


def staleness(arrivals: Mapping[str, Sequence[Arrival]], *, title: str) -> Picture:
    """Draw how many gradients of each staleness were used, stacked by worker, one panel for each.

    arrivals: by the panel's title, of a parameter server's run. Returns a Picture. ValueError if
    a panel has no gradient that was used.
    """
    used = {name: [each for each in of if each.is_used] for name, of in arrivals.items()}
    if not used or not all(used.values()):
        raise ValueError("a panel has no gradient that was used: give a server's arrivals by title")
    picture, axes_of = side_by_side(title, list(used), f"{title}: {', '.join(used)}")
    for axes, of in zip(axes_of, used.values(), strict=True):
        longest = max(each.staleness for each in of)
        below = [0] * (longest + 1)
        for worker in sorted({each.worker for each in of}):
            ages = [each.staleness for each in of if each.worker == worker]
            counts = [ages.count(age) for age in range(longest + 1)]
            look: dict[str, Any] = {"edgecolor": "white", "linewidth": 0.5, "bottom": below}
            look |= {"color": style.rank_colour(worker), "hatch": _HATCHES[worker % len(_HATCHES)]}
            axes.bar(range(longest + 1), counts, label=f"worker {worker}", **look)
            below = [low + count for low, count in zip(below, counts, strict=True)]
        mean = sum(each.staleness for each in of) / len(of)
        axes.axvline(mean, color=style.INK, linestyle="--", linewidth=1.2, label="mean of all")
        axes.set_xlabel("staleness, in steps", **_AXIS)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes_of[0].set_ylabel("updates", **_AXIS)
    axes_of[-1].legend(frameon=False, fontsize=style.SMALL_POINTS)
    return picture


# Powers of two of float16: the least that rounds to a number above 0, the least with all bits of
# fraction, and the first that is infinite.
_SMALLEST, _NORMAL, _BEYOND = -25, -14, 16


def exponents(numbers: Tensor, *, title: str) -> Picture:
    """Draw the share of the numbers in each power of two, and float16's limits.

    numbers: any tensor; zeros are not counted. Returns a Picture. ValueError if all are zero.
    """
    powers = numbers[numbers != 0].double().abs().log2().floor().long()
    if not powers.numel():
        raise ValueError("all numbers are 0: there is no power of two to draw")
    low, high = int(powers.min()), int(powers.max())
    shares = (100 * torch.bincount(powers - low).double() / powers.numel()).tolist()
    top = 1.3 * max(shares)
    lost = float((powers < _SMALLEST).double().mean())
    caption = f"{title}: from 2^{low} to 2^{high}, {lost:.0%} are 0 in float16"
    picture, (axes,) = side_by_side(title, [""], caption)
    axes.bar(range(low, high + 1), shares, width=0.9, color=style.memory_colour("gradients"))
    left, right = min(low, _SMALLEST) - 3.5, max(high, _BEYOND) + 4.5
    alarm: dict[str, Any] = {"color": style.ALARM, "alpha": 0.12, "hatch": "//", "linewidth": 0}
    for begin, end, text in (
        (left, _SMALLEST - 0.5, "0 in float16"),
        (_BEYOND - 0.5, right, "inf"),
    ):
        axes.axvspan(begin, end, **alarm)
        look = style.SMALL | {"ha": "center", "color": style.ALARM}
        axes.text((begin + end) / 2, 0.92 * top, text, bbox=_PLAIN, **look)
    axes.axvline(_NORMAL - 0.5, color=style.FAINT_INK, linestyle=":", linewidth=1.2)
    axes.text(_NORMAL, 0.92 * top, "from here on all 10 bits of fraction", **style.FAINT)
    axes.set_xlim(left, right)
    axes.set_ylim(0, top)
    axes.set_xlabel("power of two", **_AXIS)
    axes.set_ylabel("% of all", **_AXIS)
    return picture


_PLAIN: dict[str, Any] = {"facecolor": "white", "edgecolor": "none", "pad": 1.5}


def loss_scale(powers: Sequence[float], made: Sequence[bool], *, title: str) -> Picture:
    """Draw the loss scale of each step as a power of two, with a cross where the step was skipped.

    made: by step, whether it was made. Returns a Picture. ValueError unless there are as many of
    both, and at least one.
    """
    if not powers or len(powers) != len(made):
        raise ValueError(f"{len(powers)} scales and {len(made)} steps: give one of each for a step")
    skipped = [step for step, is_made in enumerate(made) if not is_made]
    words = f"{len(skipped)} of {len(made)} steps skipped"
    picture, (axes,) = side_by_side(title, [words], f"{title}: {words}")
    axes.step(range(len(powers)), powers, where="post", color=style.memory_colour("parameters"))
    places = [powers[step] for step in skipped]
    axes.plot(skipped, places, "x", color=style.ALARM, label="skipped step", markersize=7)
    axes.set_xlabel("step", **_AXIS)
    axes.set_ylabel("scale, as a power of two", **_AXIS)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(frameon=False, fontsize=style.SMALL_POINTS)
    return picture


def side_by_side(
    title: str, names: Sequence[str], caption: str, *, sharex: bool = True
) -> tuple[Picture, list[Axes]]:
    """Return a picture with its title, and axes side by side that share y, and x if `sharex`."""
    picture = Picture(_WIDTH, _HEIGHT, caption)
    picture.text(0.013, 1 - 0.2 / _HEIGHT, title, **style.TITLE)
    left, gap = 0.075, 0.03
    axes_of: list[Axes] = []
    width = (0.985 - left + gap) / len(names) - gap
    for number, name in enumerate(names):
        share: dict[str, Any] = {"sharey": axes_of[0]} if axes_of else {}
        share |= {"sharex": axes_of[0]} if axes_of and sharex else {}
        axes = picture.add_axes((left + number * (width + gap), 0.15, width, 0.65), **share)
        axes.set_title(name, loc="left", fontsize=style.BASE_POINTS, color=style.INK)
        clean(axes)
        if number:
            axes.tick_params(labelleft=False)
        axes_of.append(axes)
    return picture, axes_of


def _logarithmic(axes: Axes) -> None:
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter(lambda value, _: _short(value))
    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(_ticks(high / low))
    axes.yaxis.set_major_formatter(lambda value, _: _short(value))
    axes.yaxis.set_minor_locator(NullLocator())


def _ticks(ratio: float) -> Locator:
    """Return ticks for a logarithmic axis from 1 to `ratio`, so that there are several."""
    if ratio < 3:
        return MaxNLocator(5)
    return LogLocator(subs=range(1, 10) if ratio < 10 else (1, 2, 5) if ratio < 100 else (1,))


def _short(value: float) -> str:
    return f"{value:g}" if value < 10_000 else count_text(value)


def _pairs(points: Points) -> list[tuple[float, float]]:
    pairs = points.items() if isinstance(points, Mapping) else points
    return sorted((float(x), float(y)) for x, y in pairs)
