"""One picture of a run, or of several: a lane per rank, computing and communicating side by side.

    rank 0   |  forward  |= all_reduce =|  backward  ...     42 % waiting
             ------------====-----------                     (thin: what was in flight)

The thin lane is where overlap shows: an operation that is in flight under a computing bar costs
nothing until the rank has to wait for it. lanes.py draws one lane.

Arrows and bars in flight begin when the operation is posted. They end when the rank **takes** the
result, which is when its wait returns; the data may have arrived any time before that. Only of a
collective that was posted with wait=False does gloo tell when it is complete: its bar ends there.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from labkit.calc.units import seconds_text
from labkit.comm.operation import WAITS, Timeline
from labkit.profile.activity import Span, clipped, doing, end_of, in_flight, topmost
from labkit.viz import style
from labkit.viz.journals import Message, matched_messages, timelines_of
from labkit.viz.lanes import (
    FLIGHT_BOTTOM,
    FLIGHT_TOP,
    MAIN_BOTTOM,
    MAIN_MIDDLE,
    MAIN_TOP,
    LanePainter,
    Scale,
    endings_of,
)
from labkit.viz.picture import Picture

LegendRow = tuple[str, list[Artist]]


MAX_RANKS = 16


MAX_ARROWS = 60  # more arrows cannot be followed
_MAX_REGIONS = 6
_WIDTH, _LEFT, _RIGHT = 9.0, 0.75, 1.0  # inches
_TITLE, _LEGEND_ROW, _FOOTER, _MARGIN = 0.34, 0.24, 0.52, 0.08
# A lane with more spans too narrow to see than this is drawn as shares of time.
_MAX_NARROW = 60
_BINS = 260


class Lane(NamedTuple):
    """One rank's spans: its work, one thing at a time, and the operations in flight meanwhile."""

    main: list[Span]
    flight: list[Span]
    ending: str
    """Word at the lane's end: `returned`; "" if the lane ends with the picture."""


def timeline(
    run: Any,
    *,
    ranks: Sequence[int] | None = None,
    between: tuple[float, float] | None = None,
    title: str | None = None,
) -> Picture:
    """Draw every rank's activity over time: computing, or waiting for communication.

    run: a Run, or a list of Timelines by rank (such as those an error carries).
    ranks: which to show, in this order; all of them, up to 16, by default.
    between: (start, end) in seconds on the run's clock; everything by default. The axis of such a
        window begins at 0.

    The wide bars are regions (`with world.region("forward")`), other work in pale grey, and in
    colour the time in which the rank was blocked; the thin lane below is every operation in flight.
    An arrow begins when the message is sent and ends when the receiver takes it; the data may have
    arrived before. Arrows are drawn where there are at most 60. A bar in flight ends when the
    backend has completed the operation, or, where the backend does not tell, when the rank takes
    the result.
    A torn, hatched end means that the operation never came to an end, a cross that it failed. In a
    failed run, a lane that ends before the picture says how: the rank returned, raised or died.

    Returns a Picture: the last line of a cell shows it, `savefig` saves it.
    Raises ValueError for ranks that the run doesn't have and for an empty window, TypeError for an
    object without timelines.
    """
    of_ranks = timelines_of(run)
    title = title or f"{len(of_ranks)} rank{'s' if len(of_ranks) != 1 else ''}"
    start_s, end_s = _window(of_ranks, between)
    scale = _scale(start_s, end_s, zero_s=0.0 if between is None else start_s)
    return _drawn([_panel(run, of_ranks, ranks, end_s, scale, title)], f"timeline of {title}")


def compared_timelines(
    runs: Mapping[str, Any], *, ranks: Sequence[int] | None = None, region: str | None = None
) -> Picture:
    """Draw several runs below one another, on one time axis that begins at 0.

    A millisecond is equally long in all of them, so their lengths can be compared by eye.

    runs: by title; each as for `timeline`.
    region: the name of a region, `with world.region("step")`: of each run it is drawn where it was
        shortest, from the first rank's start to the last one's end. Other work on a machine only
        ever adds to a time. Everything by default.

    Raises what `timeline` raises, and ValueError for no runs, and for a region that a run lacks.
    """
    if not runs:
        raise ValueError("runs={} has nothing to draw: give runs by title")
    windows = {}
    for title, run in runs.items():
        of_ranks = timelines_of(run)
        shortest = None if region is None else _shortest(of_ranks, region, title)
        windows[title] = _without(of_ranks, region), _window(of_ranks, shortest)
    axis_s = max(end_s - start_s for _, (start_s, end_s) in windows.values())
    panels = []
    for title, (of_ranks, (start_s, end_s)) in windows.items():
        scale = _scale(start_s, start_s + axis_s, zero_s=start_s)
        panels.append(_panel(runs[title], of_ranks, ranks, end_s, scale, title))
    return _drawn(panels, "timelines of " + "; ".join(runs))


def _shortest(of_ranks: Sequence[Timeline], region: str, title: str) -> tuple[float, float]:
    """Return the shortest window over all ranks of a region's n-th occurrence."""
    found = [[one for one in each.regions if one.name == region] for each in of_ranks]
    if not (num_common := min(map(len, found), default=0)):
        known = sorted({one.name for each in of_ranks for one in each.regions})
        raise ValueError(
            f"region={region!r} is not on every rank of {title!r}; its regions are "
            f"{', '.join(known) or 'none'}"
        )
    windows = []
    for n in range(num_common):
        ends_s = [one[n].end_s or end_of(each) for each, one in zip(of_ranks, found)]
        windows.append((min(one[n].start_s for one in found), max(ends_s)))
    return min(windows, key=lambda window: window[1] - window[0])


def _without(of_ranks: Sequence[Timeline], region: str | None) -> list[Timeline]:
    """Return timelines without the region that only marks the window."""
    return [
        dataclasses.replace(each, regions=[one for one in each.regions if one.name != region])
        for each in of_ranks
    ]


class _Panel(NamedTuple):
    """The lanes of one run, on a scale."""

    title: str
    note: str
    ranks: list[int]
    lanes: list[Lane]
    arrows: list[Message]
    scale: Scale


def _panel(
    run: Any,
    of_ranks: Sequence[Timeline],
    ranks: Sequence[int] | None,
    end_s: float,
    scale: Scale,
    title: str,
) -> _Panel:
    """end_s: where the run's own window ends, on the run's clock; the scale may go on."""
    start_s = scale.start_s
    shown, note = _chosen(ranks, len(of_ranks))
    until_s = max((end_of(one) for one in of_ranks), default=0.0)
    endings = endings_of(run)
    lanes = []
    for rank in shown:
        main = clipped(doing(of_ranks[rank], until_s), start_s, end_s)
        flight = clipped(in_flight(of_ranks[rank], until_s), start_s, end_s)
        lanes.append(Lane(main, flight, _ending(endings.get(rank, ""), main, scale, end_s)))
    if not any(lane.flight for lane in lanes):
        note = note or "nothing was communicated"
    if any(_is_dense(scale, lane.main) for lane in lanes):
        note = " · ".join(filter(None, [note, "each column is split by the share of its time"]))
    arrows = messages_to_draw(of_ranks, shown, start_s, end_s)
    return _Panel(title, note, shown, lanes, arrows, scale)


def _drawn(panels: Sequence[_Panel], caption: str) -> Picture:
    lanes = [lane for panel in panels for lane in panel.lanes]
    names = [span.label for lane in lanes for span in lane.main if span.operation is None]
    colours = style.region_colours(names)
    operations = [span for lane in lanes for span in lane.flight]
    has_arrows = any(panel.arrows for panel in panels)
    rows = legend_rows(colours, operations, has_arrows=has_arrows)
    heights = [_lane_inches(len(panel.lanes)) * max(len(panel.lanes), 1) for panel in panels]
    header = _MARGIN + _LEGEND_ROW * len(rows)
    picture = Picture(
        _WIDTH, header + sum(heights) + len(panels) * _TITLE + _FOOTER + _MARGIN, caption
    )
    # One run's title is above the legend, several runs' titles are above their lanes.
    top = _MARGIN
    if len(panels) == 1:
        top = draw_title(picture, panels[0].title, panels[0].note, top)
    top = draw_legend(picture, rows, top)
    for panel, height in zip(panels, heights):
        if len(panels) > 1:
            top = draw_title(picture, panel.title, panel.note, top)
        label = f"time ({panel.scale.unit.name})" if panel is panels[-1] else ""
        if len(panels) == 1 and panel.scale.zero_s:
            label += f" from {seconds_text(panel.scale.zero_s)} of the run"
        _draw_lanes(_axes(picture, top, height), panel, colours, label)
        top += height
    return picture


def _draw_lanes(axes: Axes, panel: _Panel, colours: dict[str, str], label: str) -> None:
    painter = LanePainter(axes, panel.scale, colours)
    is_dense = any(_is_dense(panel.scale, lane.main) for lane in panel.lanes)
    for number, lane in enumerate(panel.lanes):
        _draw_lane(painter, number, lane, is_dense=is_dense, has_arrows=bool(panel.arrows))
    draw_arrows(axes, panel.scale, panel.arrows, panel.ranks)
    style_axes(axes, panel.scale, panel.ranks, label)
    draw_waiting_shares(axes, [[] if lane.ending else lane.main for lane in panel.lanes])


def _scale(start_s: float, end_s: float, *, zero_s: float) -> Scale:
    unit = style.time_unit(end_s - zero_s)
    return Scale(unit, start_s, end_s, 72 * (_WIDTH - _LEFT - _RIGHT), zero_s)


def _ending(word: str, main: list[Span], scale: Scale, end_s: float) -> str:
    """Write the word, if there is room for it between the lane's end and the window's."""
    if not main or not scale.fits(word, Span(main[-1].end_s, end_s, word)):
        return ""
    return word


def _chosen(ranks: Sequence[int] | None, num_ranks: int) -> tuple[list[int], str]:
    chosen = list(range(num_ranks)) if ranks is None else list(ranks)
    unknown = [rank for rank in chosen if not 0 <= rank < num_ranks]
    if unknown:
        raise ValueError(f"ranks={unknown} are not in this run: it has 0 to {num_ranks - 1}")
    if len(chosen) <= MAX_RANKS:
        return chosen, ""
    return chosen[:MAX_RANKS], (
        f"{MAX_RANKS} of {len(chosen)} ranks shown; choose others with ranks=[...]"
    )


def _window(
    timelines: Sequence[Timeline], between: tuple[float, float] | None
) -> tuple[float, float]:
    if between is not None:
        if not between[0] < between[1]:
            raise ValueError(f"between={between} is empty: pass (start, end) in seconds")
        return between
    start_s = min((one.start_s for one in timelines), default=0.0)
    end_s = max((end_of(one) for one in timelines), default=0.0)
    return start_s, max(end_s, start_s + 1e-6)  # an empty run still has an axis


def _lane_inches(num_lanes: int) -> float:
    return 0.62 if num_lanes <= 4 else 0.52 if num_lanes <= 8 else 0.42


def _axes(picture: Picture, top: float, height: float) -> Axes:
    """Return axes `top` inches below the picture's upper edge."""
    whole = picture.get_size_inches()[1]
    width = (_WIDTH - _LEFT - _RIGHT) / _WIDTH
    return picture.add_axes((_LEFT / _WIDTH, 1 - (top + height) / whole, width, height / whole))


def _is_dense(scale: Scale, spans: Sequence[Span]) -> bool:
    return sum(scale.points(span) < 1.0 for span in spans) > _MAX_NARROW


def _draw_lane(
    painter: LanePainter, number: int, lane: Lane, *, is_dense: bool, has_arrows: bool
) -> None:
    top, bottom = number + MAIN_TOP, number + MAIN_BOTTOM
    flight_top, flight_bottom = number + FLIGHT_TOP, number + FLIGHT_BOTTOM
    done = [span for span in lane.flight if not span.unfinished]
    if is_dense:
        painter.stacked(lane.main, top, bottom, _BINS)
        painter.stacked(topmost(done), flight_top, flight_bottom, _BINS)
    else:
        painter.bars([span for span in lane.main if not span.unfinished], top, bottom)
        painter.flight_rows(done, number)
        painter.labels(lane.main, number, has_arrows=has_arrows)
    for span in lane.flight:
        if span.unfinished:
            painter.unfinished(span, flight_top, flight_bottom, named=False)
        elif span.operation is not None and span.operation.failed:
            painter.failure(span, number)
    for span in lane.main:
        if span.unfinished:
            painter.unfinished(span, top, bottom, named=True)
    if lane.ending:
        painter.ending(lane.ending, lane.main[-1], number)


def legend_rows(
    region_colours: dict[str, str], spans: Sequence[Span], *, has_arrows: bool
) -> list[LegendRow]:
    """Return the rows of the legend, computing and communicating, of what the picture contains."""
    known = {
        style.region_label(name): colour
        for name, colour in region_colours.items()
        if name not in (style.OTHER_WORK, WAITS)
    }
    computing: list[Artist] = [Patch(facecolor=known[label], label=label) for label in known]
    if len(computing) > _MAX_REGIONS:
        num_more = len(computing) - _MAX_REGIONS
        more = Patch(facecolor="none", label=f"and {num_more} more")
        computing = [*computing[:_MAX_REGIONS], more]
    computing.append(
        Patch(facecolor=region_colours[style.OTHER_WORK], ec=style.GRID, label=style.OTHER_WORK)
    )
    operations = [span.operation for span in spans if span.operation is not None]
    present = {style.kind_family(operation.kind) for operation in operations}
    ordered = [family for family in style.KIND_FAMILIES if family in present]
    ordered += sorted(present - set(ordered))
    kinds = {operation.kind for operation in operations}
    communicating: list[Artist] = [
        Patch(facecolor=family.colour, label=family.label_of(kinds)) for family in ordered
    ]
    if WAITS in region_colours:
        communicating.append(Patch(facecolor=region_colours[WAITS], label="the background"))
    if has_arrows:
        communicating.append(
            Line2D(
                [], [], color=style.INK, marker=">", ms=4, lw=0.9, label="message, sent to taken"
            )
        )
    if any(operation.done_s is None for operation in operations):
        hatched = Patch(facecolor="white", edgecolor="#777777", hatch="////", label="never done")
        communicating.append(hatched)
    if any(operation.failed for operation in operations):
        cross = Line2D([], [], color=style.ALARM, marker="X", ls="", mec="white", ms=9)
        cross.set_label("failed")
        communicating.append(cross)
    rows = [("computing", computing), ("waiting in", communicating)]
    return [row for row in rows if row[1]]


def draw_title(picture: Picture, title: str, note: str, top: float) -> float:
    """Draw a title, and an optional note after it, `top` inches below the upper edge.

    Return where the next thing begins.
    """
    left, y = _LEFT / _WIDTH, 1 - (top + _TITLE / 2) / picture.get_size_inches()[1]
    heading = picture.text(left, y, title, **style.TITLE)
    if note:
        box = heading.get_window_extent()
        x = picture.transFigure.inverted().transform((box.x1, 0))[0] + 0.015
        picture.text(x, y, note, **style.FAINT)
    return top + _TITLE


def draw_legend(picture: Picture, rows: Sequence[LegendRow], top: float) -> float:
    """Draw the legend's rows from `top` inches downwards; return where the next thing begins."""
    left, height = _LEFT / _WIDTH, picture.get_size_inches()[1]
    for number, (name, handles) in enumerate(rows):
        y = 1 - (top + (number + 0.5) * _LEGEND_ROW) / height
        picture.text(left, y, name, **style.FAINT)
        picture.legend(
            handles=handles,
            loc="center left",
            bbox_to_anchor=(left + 0.085, y),
            ncols=len(handles),
            frameon=False,
            fontsize=style.SMALL_POINTS,
            handlelength=1.3,
            handleheight=0.9,
            handletextpad=0.5,
            columnspacing=1.4,
            borderpad=0,
        )
    return top + _LEGEND_ROW * len(rows)


def style_axes(axes: Axes, scale: Scale, ranks: Sequence[int], label: str) -> None:
    """Style the axes: rank names on the left, times and their label below, faint verticals, no box.

    Without a label there are no times: a picture of several runs has them once.
    """
    axes.set_xlim(scale.x(scale.start_s), scale.x(scale.end_s))
    axes.set_ylim(max(len(ranks), 1), 0)
    axes.set_yticks(
        [lane + MAIN_MIDDLE for lane in range(len(ranks))], [f"rank {rank}" for rank in ranks]
    )
    axes.set_xlabel(label, fontsize=style.BASE_POINTS, color=style.INK)
    axes.tick_params(axis="both", length=0, labelsize=style.BASE_POINTS, labelcolor=style.INK)
    axes.tick_params(axis="x", labelsize=style.SMALL_POINTS, labelbottom=bool(label))
    axes.grid(axis="x", color=style.GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    for side in ("top", "left", "right"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(style.GRID)
    for lane in range(len(ranks)):
        axes.text(
            -0.006,
            lane + (FLIGHT_TOP + FLIGHT_BOTTOM) / 2,
            "in flight",
            transform=axes.get_yaxis_transform(),
            ha="right",
            **style.FAINT | {"fontsize": style.SMALLEST_POINTS},
        )


def draw_waiting_shares(axes: Axes, lanes: Sequence[Sequence[Span]]) -> None:
    """Write at the right of each lane the share of time in which the rank could only wait."""
    for lane, spans in enumerate(lanes):
        total_s = sum(span.end_s - span.start_s for span in spans)
        waits = [span for span in spans if span.operation is not None or span.label == WAITS]
        waiting_s = sum(span.end_s - span.start_s for span in waits)
        if total_s > 0:
            axes.text(
                1.01,
                lane + MAIN_MIDDLE,
                f"{waiting_s / total_s:.0%} waiting",
                transform=axes.get_yaxis_transform(),
                **style.FAINT,
            )


def messages_to_draw(
    timelines: Sequence[Timeline], shown: Sequence[int], start_s: float, end_s: float
) -> list[Message]:
    """Return all messages that lie in the window, or none if they are too many."""
    messages = [
        message
        for message in matched_messages(timelines)
        if message.source in shown
        and message.destination in shown
        and message.recv.done_s is not None
        and start_s <= message.send.posted_s <= message.recv.done_s <= end_s
    ]
    return messages if len(messages) <= MAX_ARROWS else []


def draw_arrows(
    axes: Axes, scale: Scale, messages: Sequence[Message], shown: Sequence[int]
) -> None:
    """Draw an arrow from each sender's lane, at its post, to where the receiver takes it."""
    lane_of = {rank: lane for lane, rank in enumerate(shown)}
    for message in messages:
        assert message.recv.done_s is not None, "only completed messages become arrows"
        source, destination = lane_of[message.source], lane_of[message.destination]
        axes.annotate(
            "",
            xy=(scale.x(message.recv.done_s), destination + MAIN_MIDDLE),
            xytext=(scale.x(message.send.posted_s), source + MAIN_MIDDLE),
            arrowprops={
                "arrowstyle": "-|>,head_width=0.18,head_length=0.4",
                "color": style.INK,
                "linewidth": 0.9,
                "alpha": 0.8,
                "shrinkA": 0,
                "shrinkB": 0,
            },
        )
