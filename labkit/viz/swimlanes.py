"""One picture of a run: a lane per rank, computing and communicating side by side.

    rank 0   |  forward  |= all_reduce =|  backward  ...     42 % waiting
             ------------====-----------                     (thin: what was in flight)

The thin lane is where overlap shows: an operation that is in flight under a computing bar costs
nothing until the rank has to wait for it.
"""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes

from labkit.comm.operation import Timeline
from labkit.viz import style
from labkit.viz.activity import Span, clipped, doing, end_of, in_flight, topmost
from labkit.viz.lanes import (
    FLIGHT_BOTTOM,
    FLIGHT_TOP,
    MAIN_BOTTOM,
    MAIN_MIDDLE,
    MAIN_TOP,
    LanePainter,
    Scale,
)
from labkit.viz.messages import Message, matched_messages
from labkit.viz.picture import Picture
from labkit.viz.swimlane_text import draw_header, draw_waiting_shares, legend_rows, style_axes

MAX_RANKS = 16
MAX_ARROWS = 60
_WIDTH, _LEFT, _RIGHT = 9.0, 0.75, 1.0  # inches
# A lane with more spans too narrow to see than this is drawn as shares of time.
_MAX_NARROW = 60
_BINS = 260


def timeline(
    run: Any,
    *,
    ranks: Sequence[int] | None = None,
    between: tuple[float, float] | None = None,
    title: str | None = None,
) -> Picture:
    """What every rank was doing, moment by moment: computing, or waiting for communication.

    run: a Run, or a list of Timelines by rank (such as those an error carries).
    ranks: which to show, in this order; all of them, up to 16, by default.
    between: (start, end) in seconds on the run's clock; everything by default.

    The wide bars are regions (`with world.region("forward")`), other work in pale grey, and in
    colour the time in which the rank was blocked; the thin lane below is every operation in flight.
    Arrows go from a send's post to the end of its receive, where there are at most 60 to draw.
    A torn, hatched end means that the operation never came to an end, a cross that it failed.

    Returns a Picture: the last line of a cell shows it, `savefig` saves it.
    Raises ValueError for ranks that the run doesn't have and for an empty window.
    """
    timelines: list[Timeline] = list(getattr(run, "timeline", run))
    shown, note = _chosen(ranks, len(timelines))
    start_s, end_s = _window(timelines, between)
    until_s = max((end_of(one) for one in timelines), default=0.0)
    lanes = {
        rank: (
            clipped(doing(timelines[rank], until_s), start_s, end_s),
            clipped(in_flight(timelines[rank], until_s), start_s, end_s),
        )
        for rank in shown
    }
    names = [s.label for main, _ in lanes.values() for s in main if s.operation is None]
    colours = style.region_colours(names)
    every_span = [span for main, flight in lanes.values() for span in (*main, *flight)]
    title = title or f"{len(timelines)} rank{'s' if len(timelines) != 1 else ''}"
    if not any(span.operation for span in every_span):
        note = note or "nothing was communicated"
    arrows = _arrows(timelines, shown, start_s, end_s)
    rows = legend_rows(colours, every_span, has_arrows=bool(arrows))
    picture, axes = _canvas(len(shown), len(rows), f"timeline of {title}")
    scale = Scale(style.time_unit(end_s), start_s, end_s, 72 * (_WIDTH - _LEFT - _RIGHT))
    painter = LanePainter(axes, scale, colours)
    is_dense = any(_is_dense(scale, main) for main, _ in lanes.values())
    for lane, (main, flight) in enumerate(lanes.values()):
        _draw_lane(painter, lane, main, flight, is_dense=is_dense, has_arrows=bool(arrows))
    _draw_arrows(axes, scale, arrows, shown)
    if is_dense:
        note = " · ".join(filter(None, [note, "each column is split by the share of its time"]))
    style_axes(axes, scale, shown)
    draw_waiting_shares(axes, [main for main, _ in lanes.values()])
    draw_header(picture, rows, title, note, left=_LEFT / _WIDTH)
    return picture


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
    painter: LanePainter,
    lane: int,
    main: list[Span],
    flight: list[Span],
    *,
    is_dense: bool,
    has_arrows: bool,
) -> None:
    top, bottom = lane + MAIN_TOP, lane + MAIN_BOTTOM
    done = [span for span in flight if not span.unfinished]
    if is_dense:
        painter.stacked(main, top, bottom, _BINS)
        painter.stacked(topmost(done), lane + FLIGHT_TOP, lane + FLIGHT_BOTTOM, _BINS)
    else:
        painter.bars([span for span in main if not span.unfinished], top, bottom)
        painter.flight_rows(done, lane)
        painter.labels(main, lane, has_arrows=has_arrows)
    for span in flight:
        if span.unfinished:
            painter.unfinished(span, lane + FLIGHT_TOP, lane + FLIGHT_BOTTOM, named=False)
        elif span.operation is not None and span.operation.failed:
            x = painter.scale.x(span.end_s)
            painter.axes.plot(
                x, lane + MAIN_MIDDLE, "X", color=style.ALARM, mec="white", ms=9, clip_on=False
            )
    for span in main:
        if span.unfinished:
            painter.unfinished(span, top, bottom, named=True)


def _arrows(
    timelines: list[Timeline], shown: list[int], start_s: float, end_s: float
) -> list[Message]:
    """The messages to draw: all that lie in the window, or none where they would be a thicket."""
    messages = [
        message
        for message in matched_messages(timelines)
        if message.source in shown
        and message.destination in shown
        and message.recv.done_s is not None
        and start_s <= message.send.posted_s <= message.recv.done_s <= end_s
    ]
    return messages if len(messages) <= MAX_ARROWS else []


def _draw_arrows(axes: Axes, scale: Scale, messages: list[Message], shown: list[int]) -> None:
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
