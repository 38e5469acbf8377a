"""One picture of a run: a lane per rank, computing and communicating side by side.

    rank 0   |  forward  |= all_reduce =|  backward  ...     42 % waiting
             ------------====-----------                     (thin: what was in flight)

The thin lane is where overlap shows: an operation that is in flight under a computing bar costs
nothing until the rank has to wait for it. lanes.py draws one lane.

One convention holds for arrows and for bars in flight: they begin when the operation is posted and
end when the rank **takes** the result, which is when its wait returns. The data may have arrived
any time before that. A journal knows when a rank looks, and not when the network has delivered.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from labkit import arguments
from labkit.calc.units import seconds_text
from labkit.comm.operation import Timeline
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
from labkit.viz.style import Picture

LegendRow = tuple[str, list[Artist]]


MAX_RANKS = 16


MAX_ARROWS = 60  # more arrows cannot be followed
_MAX_REGIONS = 6
_WIDTH, _LEFT, _RIGHT = 9.0, 0.75, 1.0  # inches
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
    axis_s: float | None = None,
    title: str | None = None,
) -> Picture:
    """Draw every rank's activity over time: computing, or waiting for communication.

    run: a Run, or a list of Timelines by rank (such as those an error carries).
    ranks: which to show, in this order; all of them, up to 16, by default.
    between: (start, end) in seconds on the run's clock; everything by default. The axis of such a
        window begins at 0.
    axis_s: how many seconds the axis shows from the start on, at least all of them. Pictures with
        the same axis_s can be compared: a millisecond is equally long in all of them.

    The wide bars are regions (`with world.region("forward")`), other work in pale grey, and in
    colour the time in which the rank was blocked; the thin lane below is every operation in flight.
    An arrow begins when the message is sent and ends when the receiver takes it; a bar in flight
    ends when the rank takes the result. The data may have arrived before. Arrows are drawn where
    there are at most 60.
    A torn, hatched end means that the operation never came to an end, a cross that it failed. In a
    failed run, a lane that ends before the picture says how: the rank returned, raised or died.

    Returns a Picture: the last line of a cell shows it, `savefig` saves it.
    Raises ValueError for ranks that the run doesn't have, for an empty window and for an axis
    shorter than the window, TypeError for an object without timelines.
    """
    timelines = timelines_of(run)
    shown, note = _chosen(ranks, len(timelines))
    start_s, end_s = _window(timelines, between)
    until_s = max((end_of(one) for one in timelines), default=0.0)
    scale = _scale(start_s, end_s, axis_s, is_window=between is not None)
    endings = endings_of(run)
    lanes = []
    for rank in shown:
        main = clipped(doing(timelines[rank], until_s), start_s, end_s)
        flight = clipped(in_flight(timelines[rank], until_s), start_s, end_s)
        lanes.append(Lane(main, flight, _ending(endings.get(rank, ""), main, scale, end_s)))
    if not any(lane.flight for lane in lanes):
        note = note or "nothing was communicated"
    title = title or f"{len(timelines)} rank{'s' if len(timelines) != 1 else ''}"
    arrows = messages_to_draw(timelines, shown, start_s, end_s)
    return _drawn(shown, lanes, arrows, scale, title, note)


def _drawn(
    ranks: list[int],
    lanes: list[Lane],
    arrows: list[Message],
    scale: Scale,
    title: str,
    note: str,
) -> Picture:
    names = [span.label for lane in lanes for span in lane.main if span.operation is None]
    colours = style.region_colours(names)
    operations = [span for lane in lanes for span in lane.flight]
    rows = legend_rows(colours, operations, has_arrows=bool(arrows))
    picture, axes = _canvas(len(lanes), len(rows), f"timeline of {title}")
    painter = LanePainter(axes, scale, colours)
    is_dense = any(_is_dense(scale, lane.main) for lane in lanes)
    for number, lane in enumerate(lanes):
        _draw_lane(painter, number, lane, is_dense=is_dense, has_arrows=bool(arrows))
    draw_arrows(axes, scale, arrows, ranks)
    if is_dense:
        note = " · ".join(filter(None, [note, "each column is split by the share of its time"]))
    style_axes(axes, scale, ranks)
    draw_waiting_shares(axes, [[] if lane.ending else lane.main for lane in lanes])
    draw_header(picture, rows, title, note, left=_LEFT / _WIDTH)
    return picture


def _scale(start_s: float, end_s: float, axis_s: float | None, *, is_window: bool) -> Scale:
    length_s = end_s - start_s if axis_s is None else arguments.number("axis_s", axis_s, "seconds")
    if length_s < end_s - start_s:
        raise ValueError(
            f"axis_s={axis_s} is shorter than what it has to show, {end_s - start_s:g} s: give the "
            "length of the longest window"
        )
    until_s, zero_s = start_s + length_s, start_s if is_window else 0.0
    unit = style.time_unit(until_s - zero_s)
    return Scale(unit, start_s, until_s, 72 * (_WIDTH - _LEFT - _RIGHT), zero_s)


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


def _canvas(num_lanes: int, num_legend_rows: int, caption: str) -> tuple[Picture, Axes]:
    lane_inches = 0.62 if num_lanes <= 4 else 0.52 if num_lanes <= 8 else 0.42
    header, footer = 0.48 + 0.24 * num_legend_rows, 0.52
    height = header + lane_inches * max(num_lanes, 1) + footer
    picture = Picture(_WIDTH, height, caption)
    axes = picture.add_axes(
        (
            _LEFT / _WIDTH,
            footer / height,
            (_WIDTH - _LEFT - _RIGHT) / _WIDTH,
            1 - (header + footer) / height,
        )
    )
    return picture, axes


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
    computing: list[Artist] = [
        Patch(facecolor=colour, label=name)
        for name, colour in region_colours.items()
        if name != style.OTHER_WORK
    ]
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


def draw_header(
    picture: Picture, rows: Sequence[LegendRow], title: str, note: str, *, left: float
) -> None:
    """Draw title, an optional note after it, and the legend's rows, from the top downwards."""
    height = picture.get_size_inches()[1]
    y = 1 - 0.2 / height
    heading = picture.text(left, y, title, **style.TITLE)
    if note:
        box = heading.get_window_extent()
        x = picture.transFigure.inverted().transform((box.x1, 0))[0] + 0.015
        picture.text(x, y, note, **style.FAINT)
    for name, handles in rows:
        y -= 0.24 / height
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


def style_axes(axes: Axes, scale: Scale, ranks: Sequence[int]) -> None:
    """Style the axes: rank names on the left, time with its unit below, faint verticals, no box."""
    axes.set_xlim(scale.x(scale.start_s), scale.x(scale.end_s))
    axes.set_ylim(max(len(ranks), 1), 0)
    axes.set_yticks(
        [lane + MAIN_MIDDLE for lane in range(len(ranks))], [f"rank {rank}" for rank in ranks]
    )
    label = f"time ({scale.unit.name})"
    if scale.zero_s:
        label += f" from {seconds_text(scale.zero_s)} of the run"
    axes.set_xlabel(label, fontsize=style.BASE_POINTS, color=style.INK)
    axes.tick_params(axis="both", length=0, labelsize=style.BASE_POINTS, labelcolor=style.INK)
    axes.tick_params(axis="x", labelsize=style.SMALL_POINTS)
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
        waiting_s = sum(span.end_s - span.start_s for span in spans if span.operation is not None)
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
