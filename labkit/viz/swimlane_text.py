"""Everything around the lanes: title, legend, axis, rank names, share of time spent waiting."""

from collections.abc import Sequence

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from labkit.calc.units import seconds_text
from labkit.profile.activity import Span
from labkit.viz import style
from labkit.viz.lanes import FLIGHT_BOTTOM, FLIGHT_TOP, MAIN_MIDDLE, Scale
from labkit.viz.picture import Picture

LegendRow = tuple[str, list[Artist]]
_MAX_REGIONS = 6


def legend_rows(
    region_colours: dict[str, str], spans: Sequence[Span], *, has_arrows: bool
) -> list[LegendRow]:
    """The rows of the legend: computing, communicating; only what the picture contains."""
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
            Line2D([], [], color=style.INK, marker=">", ms=4, lw=0.9, label="message")
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
    """Title, an optional note after it, and the legend's rows, from the top of the picture down."""
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
    """Rank names on the left, time with its unit below, faint verticals, no box."""
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
            **style.FAINT | {"fontsize": 6.5},
        )


def draw_waiting_shares(axes: Axes, lanes: Sequence[Sequence[Span]]) -> None:
    """At the right of each lane: the share of its time in which the rank could only wait."""
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
