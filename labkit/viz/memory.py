r"""Two pictures of memory: live bytes over time, and each GPU's use of its memory.

    bytes |        ____ peak             GPU of stage 0 |parameters|moments |activations|   |
          |    ___/act.\___                       1 |parameters|moments |act.|          |
          |___/ parameters  \___                                                   capacity
          +----------------- time

A kind has one colour in both: a meter's "optimizer states" have the colour of the calculator's
"moments", because they are the same.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import Patch, Rectangle

from labkit.calc.result import Result, number_of
from labkit.calc.units import bytes_text
from labkit.memory import Usage
from labkit.viz import style
from labkit.viz.picture import Picture

LEGEND_COLUMNS = 6


_WIDTH = 9.0  # inches
# Kinds that stay from step to step are below those that come and go.
KINDS_FROM_BELOW = (
    *("parameters", "optimizer states", "buffers"),
    *("gradients", "activations", "other"),
)
MAX_BARS = 16
_LEFT, _RIGHT, _BAR = 1.25, 1.3, 0.42  # inches of a bar picture
_LETTER = 0.075  # inches of a small letter, about


_AXIS: dict[str, Any] = {"fontsize": style.SMALL_POINTS, "color": style.FAINT_INK}


def memory_timeline(
    usage: Usage,
    *,
    phases: Sequence[tuple[str, float]] = (),
    mark: str | None = None,
    title: str = "live bytes by kind",
) -> Picture:
    """Draw live bytes over time, stacked by kind, the longest-lived lowest, and the peak.

    usage: of a `labkit.memory.Meter`. phases: (name, when it ends on the meter's clock) in order,
    such as ("forward", meter.usage.times_s[-1]) noted after forward. mark: the kind whose
    most bytes at once are marked, instead of the peak of all. A kind that never lived is not in the
    picture; of GPUs it has the peaks that their allocators report. Returns a Picture. ValueError
    for a usage in which nothing was ever alive, or nothing of the kind to mark.
    """
    if not usage.peak_bytes:
        raise ValueError("nothing was ever alive in this usage: enter the Meter before the step")
    if mark is not None and not (mark in usage.bytes_of and usage.peak_of(mark)):
        alive = ", ".join(filter(usage.peak_of, usage.bytes_of))
        raise ValueError(f"mark={mark!r}: no such bytes were ever alive; there were {alive}")
    unit = style.time_unit(max(usage.times_s))
    times = [unit.per_second * each for each in usage.times_s]
    kinds = sorted(filter(usage.peak_of, usage.bytes_of), key=KINDS_FROM_BELOW.index)
    picture = Picture(_WIDTH, 3.6, f"memory over time: {title}")
    axes = picture.add_axes((0.085, 0.125, 0.9, 0.63))
    below = [0.0] * len(times)
    for kind in kinds:
        top = [low + nbytes for low, nbytes in zip(below, usage.bytes_of[kind])]
        colour = style.memory_colour(kind)
        axes.fill_between(times, below, top, step="post", color=colour, linewidth=0)
        below = top
    axes.step(times, below, where="post", color=style.INK, linewidth=0.8)
    axes.set_xlim(times[0], max(times[-1], times[0] + 1e-9))
    axes.set_ylim(0, 1.22 * usage.peak_bytes)
    _draw_phases(axes, [(name, unit.per_second * end) for name, end in phases])
    _mark_peak(axes, usage, times, mark)
    axes.set_xlabel(f"time under the meter, {unit.name}", **_AXIS)
    axes.yaxis.set_major_formatter(lambda value, _: bytes_text(value))
    clean(axes)
    held = usage.at_peak
    allocators = usage.allocator_peak_bytes.items()
    draw_memory_header(
        picture,
        title,
        {kind: f"{kind}, {bytes_text(held[kind])} at the peak" for kind in kinds},
        ", ".join(f"{device}'s allocator: {bytes_text(peak)}" for device, peak in allocators),
    )
    return picture


def memory_bar(
    results: Sequence[Result] | Mapping[str, Result],
    capacity: float | Result,
    *,
    title: str = "what each GPU holds",
) -> Picture:
    """Draw a bar per GPU, stacked by the parts of its Result, against a device's memory.

    results: of `calc.footprints(...)`, or by name, which is then written beside the bar. capacity:
    bytes. Bytes beyond it are hatched, and the number at the end of each bar is what is left or
    missing. Returns a Picture. ValueError for no results, more than 16, and one without parts.
    """
    bars = _named(results)
    room = number_of(capacity, "capacity", "bytes")
    parts = list(dict.fromkeys(part for each in bars.values() for part in each.parts))
    header = 0.55 + 0.2 * -(-len(parts) // LEGEND_COLUMNS)
    height = header + _BAR * len(bars) + 0.42
    picture = Picture(_WIDTH, height, f"{title}, of {bytes_text(room)}")
    width = _WIDTH - _LEFT - _RIGHT
    axes = picture.add_axes(
        (_LEFT / _WIDTH, 0.42 / height, width / _WIDTH, _BAR * len(bars) / height)
    )
    span = 1.04 * max(room, *(float(each) for each in bars.values()))
    axes.set_xlim(0, span)
    axes.set_ylim(len(bars), 0)
    for place, (name, result) in enumerate(bars.items()):
        _draw_bar(axes, place, result, room, bytes_per_inch=span / width)
        axes.text(-0.012 * span, place + 0.5, name, **style.SMALL | {"ha": "right"})
    axes.axvline(room, color=style.INK, linewidth=1.8, zorder=5)
    axes.set_yticks([])
    axes.xaxis.set_major_formatter(lambda value, _: bytes_text(value))
    clean(axes)
    draw_memory_header(
        picture, title, {part: part for part in parts}, f"line: a device of {bytes_text(room)}"
    )
    return picture


def draw_memory_header(
    picture: Picture, title: str, labels: Mapping[str, str], note: str = ""
) -> None:
    """Draw the title, and below it the meaning of each colour."""
    height = picture.get_size_inches()[1]
    heading = picture.text(0.012, 1 - 0.2 / height, title, **style.TITLE)
    if note:
        box = heading.get_window_extent()
        x = picture.transFigure.inverted().transform((box.x1, 0))[0] + 0.015
        picture.text(x, 1 - 0.2 / height, note, **style.FAINT)
    picture.legend(
        handles=[Patch(color=style.memory_colour(kind), label=labels[kind]) for kind in labels],
        loc="upper left",
        bbox_to_anchor=(0.004, 1 - 0.32 / height),
        ncols=min(len(labels), 3 if max(map(len, labels.values())) > 20 else LEGEND_COLUMNS),
        frameon=False,
        fontsize=style.SMALL_POINTS,
        handlelength=1.2,
        columnspacing=1.6,
        borderpad=0.2,
    )


def clean(axes: Axes) -> None:
    """Style the axes: a grid, a line at the bottom, and no frame."""
    axes.tick_params(length=0, labelsize=style.SMALL_POINTS, labelcolor=style.INK)
    axes.grid(axis="both", color=style.GRID, linewidth=0.6, alpha=0.7)
    axes.set_axisbelow(True)
    for side in ("top", "left", "right"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(style.GRID)


def _named(results: Sequence[Result] | Mapping[str, Result]) -> dict[str, Result]:
    if not isinstance(results, Mapping):
        results = {f"stage {number}": each for number, each in enumerate(results)}
    if not 1 <= len(results) <= MAX_BARS:
        raise ValueError(f"{len(results)} GPUs: a picture that can be read has 1 to {MAX_BARS}")
    for name, result in results.items():
        if result.dimension != "bytes" or not result.parts:
            raise ValueError(f"{name}: {result} has no parts in bytes; give calc.footprints(...)")
    return dict(results)


def _draw_bar(
    axes: Axes, place: int, result: Result, room: float, *, bytes_per_inch: float
) -> None:
    left = 0.0
    for name, part in result.parts.items():
        nbytes, colour = float(part), style.memory_colour(name)
        axes.barh(place + 0.5, nbytes, 0.72, left, color=colour, edgecolor="white", linewidth=0.6)
        begin, end = _longer_side(left, left + nbytes, room)
        label = bytes_text(nbytes)
        if end - begin > bytes_per_inch * (_LETTER * len(label) + 0.06):
            look = style.SMALL | {"ha": "center", "color": style.text_on(colour), "zorder": 6}
            under = {"facecolor": colour, "edgecolor": "none", "pad": 0.8}  # hatching
            axes.text((begin + end) / 2, place + 0.52, label, bbox=under, **look)
        left += nbytes
    if left > room:
        beyond = Rectangle((room, place + 0.14), left - room, 0.72, fill=False, hatch="////")
        beyond.set_edgecolor("#ffffff")
        axes.add_patch(beyond)
    words = f"{bytes_text(room - left)} left" if left <= room else f"{bytes_text(left - room)} over"
    look = style.SMALL | {"color": style.INK if left <= room else style.ALARM, "fontweight": "bold"}
    axes.text(axes.get_xlim()[1], place + 0.5, f"  {words}", **look)


def _longer_side(begin: float, end: float, room: float) -> tuple[float, float]:
    """Return the side with more room for a label: this side of the capacity, or beyond."""
    if not begin < room < end:
        return begin, end
    return (begin, room) if room - begin > end - room else (room, end)


def _draw_phases(axes: Axes, phases: Sequence[tuple[str, float]]) -> None:
    begin, last = axes.get_xlim()
    inches_per_unit = 0.9 * _WIDTH / (last - begin)
    for name, end in phases:
        axes.axvline(end, color=style.FAINT_INK, linewidth=0.8, linestyle=":")
        if (end - begin) * inches_per_unit > _LETTER * len(name):
            middle, across = (begin + end) / 2, axes.get_xaxis_transform()
            axes.text(middle, 0.955, name, transform=across, **style.FAINT | {"ha": "center"})
        begin = end


def _mark_peak(axes: Axes, usage: Usage, times: list[float], kind: str | None) -> None:
    most = usage.peak_bytes if kind is None else usage.peak_of(kind)
    of_time = usage.totals if kind is None else usage.bytes_of[kind]
    place = of_time.index(most)
    when, height = times[place], usage.totals[place]
    axes.plot([when], [height], "o", color=style.ALARM, markersize=5, zorder=5)
    begin, end = axes.get_xlim()
    is_left = when - begin < (end - begin) / 2
    look: dict[str, Any] = {"xytext": (7 if is_left else -7, 6), "textcoords": "offset points"}
    if kind is not None:  # the mark is among other bytes: its words are above all of them
        line = {"arrowstyle": "-", "color": style.ALARM, "linewidth": 1.2}
        look = {"xytext": (when, 1.13 * usage.peak_bytes), "arrowprops": line}
    axes.annotate(
        f"peak: {bytes_text(most)}" if kind is None else f"most {kind}: {bytes_text(most)}",
        (when, height),
        fontsize=style.SMALL_POINTS,
        fontweight="bold",
        color=style.ALARM,
        ha="left" if is_left else "right",
        **look,
    )
