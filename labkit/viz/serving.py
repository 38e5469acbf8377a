"""Pictures of serving: slots of a cache, requests over passes, latency against throughput.

cache_map: the sequence whose keys and values are in each slot.

    slots      |T h e _|. . . .|c a t _|d o g .|      a cell is a slot, coloured by its sequence
    sequence 0   page 0, 2                            pale: reserved; white: free;
    sequence 1   page 0, 3                            in stripes: shared

slot_use: the use of slots over the passes of a trace, one panel for each cache.

    share |    ,-- internal --.
          |  ,-- reserved --.
          |,-- cached --.
          +--------------- passes

passes: the tokens of each request in each pass of an engine, one panel for each scheduler.

    static batches, 6 passes            number: tokens of a prompt, or of a chunk of it
    request 0  | 7|  |  |  |            pale:   one new token
            1  | 3|  |--|--|--|  |      --      between its passes: it was preempted, or left out
            2              | 5|  |
    tokens      ## .  .  .  ## .        all new tokens of a pass; they make it longer

latency_throughput: a point for each rate of arrivals, measured and predicted.

    latency |              : o     beyond the capacity requests wait in the queue: latency grows,
            |            o         throughput does not
            |  o--o--o-'
            +------------------ tokens per second
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import LogLocator, MaxNLocator

from labkit.calc.units import number_text, seconds_text
from labkit.serving.caches import KVCache, SlotUse
from labkit.serving.requests import ScheduledTokens
from labkit.viz import style
from labkit.viz.memory import clean
from labkit.viz.picture import CellPainter, Picture, blank_axes

MAX_SLOTS, MAX_SEQUENCES = 192, 8
_WIDTH = 9.0  # inches, as all that follow
_CACHE_LEFT, _CACHE_TITLE, _GAP, _BOTTOM = 1.1, 0.42, 0.12, 0.08
_CELL, _PER_ROW, _NUMBER, _TABLE_ROW = 0.235, 32, 0.17, 0.24
_RESERVED = 0.65  # how much white is in the colour of a slot that holds nothing yet

# From below; what is left above them is free.
_KINDS = {
    "cached": "#0072b2",
    "reserved": "#e69f00",
    "internal": "#cc79a7",
    "external": "#8c6d31",
}


def cache_map(
    cache: KVCache,
    texts: Mapping[int, str],
    *,
    title: str = "whose keys and values are in which slot",
) -> Picture:
    """Draw every slot of the cache, and below it the pages or the region of each sequence.

    texts: by sequence, a letter for each token, which is written into the token's slot. Pages have
    their numbers above them. Returns a Picture. ValueError for more than 192 slots or 8 sequences,
    and for fewer letters than cached tokens.
    """
    num_slots = cache.keys_LNGK.shape[1]
    if not (1 <= num_slots <= MAX_SLOTS and len(texts) <= MAX_SEQUENCES):
        raise ValueError(
            f"{num_slots} slots and {len(texts)} sequences: a picture that can be read has 1 to "
            f"{MAX_SLOTS} slots and up to {MAX_SEQUENCES} sequences"
        )
    for sequence, text in texts.items():
        if len(text) < (num_cached := cache.num_cached(sequence)):
            raise ValueError(
                f"sequence {sequence} has {num_cached} cached tokens and {len(text)} letters; "
                "give one for each token"
            )
    page_size = getattr(cache, "page_size", 1)
    places = {f"sequence {each}": _place(cache.held(each).tolist(), page_size) for each in texts}
    per_row = max(page_size, _PER_ROW // page_size * page_size)
    row_height = _CELL + (_NUMBER if page_size > 1 else 0.06)
    top = _CACHE_TITLE + row_height * -(-num_slots // per_row) + _GAP
    height = top + _TABLE_ROW * len(texts) + _BOTTOM
    words = "; ".join(f"{name}: {place}" for name, place in places.items())
    picture = Picture(_WIDTH, height, f"{title}: {words}")
    axes = picture.add_axes((0, 0, 1, 1))
    blank_axes(axes, _WIDTH, height)
    axes.text(0.12, 0.2, title, **style.TITLE)
    axes.text(0.12, _CACHE_TITLE + row_height - _CELL / 2, "slots", **style.SMALL)
    _draw_slots(axes, cache, texts, page_size, per_row, row_height)
    for number, (name, place) in enumerate(places.items()):
        y = top + (number + 0.5) * _TABLE_ROW
        axes.text(0.12, y, name, **style.SMALL)
        axes.plot(_CACHE_LEFT + 0.07, y, "s", color=style.rank_colour(number), markersize=8)
        axes.text(_CACHE_LEFT + 0.25, y, place, **style.SMALL)
    return picture


def _draw_slots(
    axes: Axes,
    cache: KVCache,
    texts: Mapping[int, str],
    page_size: int,
    per_row: int,
    row_height: float,
) -> None:
    """Draw a cell for each slot, with its letter and the colours of the sequences that hold it."""
    colours: defaultdict[int, list[str]] = defaultdict(list)
    letters: dict[int, str] = {}
    for number, (sequence, text) in enumerate(texts.items()):
        colour, num_cached = style.rank_colour(number), cache.num_cached(sequence)
        slots = cache.held(sequence).tolist()
        letters |= zip(slots[:num_cached], text)
        for position, slot in enumerate(slots):
            is_cached = position < num_cached
            colours[slot].append(colour if is_cached else style.tint(colour, _RESERVED))
    painter = CellPainter(axes)
    for slot in range(cache.keys_LNGK.shape[1]):
        x = _CACHE_LEFT + slot % per_row * _CELL
        y = _CACHE_TITLE + (slot // per_row + 1) * row_height - _CELL
        painter.stripes(x, y, _CELL, _CELL, colours[slot] or ["#ffffff"])
        painter.frame(x, y, _CELL, _CELL)
        look = style.SMALL | {"ha": "center"}
        axes.text(x + _CELL / 2, y + _CELL / 2, letters.get(slot, ""), **look)
        if page_size > 1 and slot % page_size == 0:
            painter.frame(x, y, page_size * _CELL, _CELL, heavy=True)
            axes.text(x, y - 0.45 * _NUMBER, str(slot // page_size), **style.FAINT)
    painter.paint()


def _place(held: Sequence[int], page_size: int) -> str:
    """Return in words where the slots of a sequence are."""
    if not held:
        return "nothing"
    if page_size == 1:
        return f"slots {held[0]} to {held[-1]}"
    return f"pages {', '.join(str(slot // page_size) for slot in held[::page_size])}"


def slot_use(
    used: Mapping[str, Sequence[SlotUse]],
    *,
    title: str = "what the slots are used for",
) -> Picture:
    """Draw the shares of slots by kind over passes, one panel for each cache.

    used: by cache, what `KVCache.slot_use` gave after each pass. What is left white is free.
    Returns a Picture whose caption has the mean share of cached slots. ValueError without passes.
    """
    if not used or not all(used.values()):
        raise ValueError("no passes: give a SlotUse after each pass, for each cache")
    means = {name: _mean_cached(uses) for name, uses in used.items()}
    words = ", ".join(f"{name} {mean:.0%} cached" for name, mean in means.items())
    panel, header = 1.5, 0.62
    height = header + len(used) * panel + 0.35
    picture = Picture(_WIDTH, height, f"{title}: {words}")
    picture.text(0.013, 1 - 0.2 / height, title, **style.TITLE)
    for number, (name, uses) in enumerate(used.items()):
        below = height - header - (number + 1) * panel + 0.3
        axes = picture.add_axes((0.065, below / height, 0.92, (panel - 0.48) / height))
        _stack(axes, uses)
        axes.set_xlim(0, max(map(len, used.values())))
        axes.set_title(
            f"{name}: {means[name]:.0%} cached on average", loc="left", fontsize=style.BASE_POINTS
        )
    axes.set_xlabel("passes", fontsize=style.SMALL_POINTS)
    picture.legend(
        handles=[Patch(color=colour, label=kind) for kind, colour in _KINDS.items()],
        loc="upper left",
        bbox_to_anchor=(0.004, 1 - 0.3 / height),
        ncols=len(_KINDS),
        frameon=False,
        fontsize=style.SMALL_POINTS,
        handlelength=1.2,
    )
    return picture


def _stack(axes: Axes, uses: Sequence[SlotUse]) -> None:
    """Draw areas from below, one step for each pass."""
    passes = range(len(uses) + 1)
    below = [0.0] * len(passes)
    for kind, colour in _KINDS.items():
        shares = [getattr(use, kind) / _num_slots(use) for use in [*uses, uses[-1]]]
        above = [low + share for low, share in zip(below, shares)]
        axes.fill_between(passes, below, above, step="post", color=colour, linewidth=0)
        below = above
    axes.set_ylim(0, 1)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    clean(axes)


def _mean_cached(uses: Sequence[SlotUse]) -> float:
    return sum(use.cached / _num_slots(use) for use in uses) / len(uses)


def _num_slots(use: SlotUse) -> int:
    return use.cached + use.reserved + use.internal + use.external + use.free


_PASS_LEFT, _RIGHT = 0.85, 0.15
_ROW, _BARS, _HEADER, _PANEL_TITLE, _PANEL_GAP = 0.2, 0.42, 0.66, 0.26, 0.18
_DIGIT = 0.075  # inches of a digit, about
_WIDEST = 0.4  # inches of a column, at most
_COLOURS = {"prompt": "#d55e00", "again": "#e69f00", "token": "#a9c6e3"}
_BETWEEN: dict[str, Any] = {"color": style.FAINT_INK, "linewidth": 1}
_LABELS = {
    "prompt": "tokens of a prompt (number)",
    "again": "computed before, and again now",
    "token": "one new token",
}


class Cell(NamedTuple):
    """The tokens of a request in a pass. kind: "prompt", "again" or "token"."""

    sequence: int
    column: int
    num_tokens: int
    kind: str


def passes(
    schedules: Mapping[str, Sequence[Sequence[ScheduledTokens]]],
    *,
    title: str = "which request computes what in which pass",
) -> Picture:
    """Draw a grid for each schedule: a row per request, a column per pass, and bars of tokens.

    schedules: by name, the batch of each pass, as `measure.RecordedDecoder` notes them. Columns
    are equally wide in all panels. The last token of a prompt that is alone in a chunk looks like a
    new token. Returns a Picture. ValueError if there is no pass.
    """
    if not schedules or not all(schedules.values()):
        raise ValueError("there is no pass to draw: give {'continuous': recorded.passes, ...}")
    cells = {name: list(_cells(each)) for name, each in schedules.items()}
    rows = {name: sorted({cell.sequence for cell in each}) for name, each in cells.items()}
    heights = {
        name: _PANEL_TITLE + _ROW * len(each) + _BARS + _PANEL_GAP for name, each in rows.items()
    }
    height = _HEADER + sum(heights.values())
    counts = {name: len(each) for name, each in schedules.items()}
    words = ", ".join(f"{name} {count} passes" for name, count in counts.items())
    picture = Picture(_WIDTH, height, f"{title}: {words}")
    picture.text(0.013, 1 - 0.2 / height, title, **style.TITLE)
    _draw_legend(picture, list(cells.values()), height)
    width = _WIDTH - _PASS_LEFT - _RIGHT
    column = min(_WIDEST, width / max(counts.values()))  # inches
    top = height - _HEADER
    for name in schedules:
        heading = f"{name}: {counts[name]} passes"
        picture.text(0.013, (top - 0.12) / height, heading, **style.SMALL | {"weight": "bold"})
        bottom = top - _PANEL_TITLE - _ROW * len(rows[name])
        share = (
            _PASS_LEFT / _WIDTH,
            bottom / height,
            width / _WIDTH,
            _ROW * len(rows[name]) / height,
        )
        grid = picture.add_axes(share)
        below = bottom - _BARS
        bars = picture.add_axes(
            (_PASS_LEFT / _WIDTH, below / height, width / _WIDTH, 0.85 * _BARS / height)
        )
        for axes in (grid, bars):
            axes.set_xlim(0, width / column)
            axes.axis("off")
        _draw_grid(grid, cells[name], rows[name], column)
        _draw_bars(bars, cells[name], counts[name], column)
        top -= heights[name]
    return picture


def _cells(schedule: Sequence[Sequence[ScheduledTokens]]) -> Iterator[Cell]:
    ends: dict[int, int] = {}
    for column, batch in enumerate(schedule):
        for entry in batch:
            end = ends.get(entry.sequence)
            if end is not None and entry.start < end:
                kind = "again"
            else:
                kind = "prompt" if end is None or len(entry.tokens) > 1 else "token"
            yield Cell(entry.sequence, column, len(entry.tokens), kind)
            ends[entry.sequence] = max(end or 0, entry.end)


def _draw_grid(axes: Axes, cells: Sequence[Cell], rows: Sequence[int], column: float) -> None:
    """column: its width in inches, which decides where a number fits."""
    axes.set_ylim(len(rows), 0)
    for row, sequence in enumerate(rows):
        own = [cell for cell in cells if cell.sequence == sequence]
        first, last = own[0].column, own[-1].column
        axes.plot([first, last], [row + 0.5] * 2, **_BETWEEN, zorder=1)
        look = style.SMALL | {"ha": "right"}
        axes.text(-0.08 / column, row + 0.5, f"{'request ' * (row == 0)}{sequence}", **look)
        for cell in own:
            colour = _COLOURS[cell.kind]
            box = Rectangle((cell.column, row + 0.06), 1, 0.88, facecolor=colour, zorder=2)
            box.set(edgecolor="white", linewidth=0.8)
            axes.add_patch(box)
            if cell.kind != "token" and column > _DIGIT * len(str(cell.num_tokens)):
                look = style.SMALL | {"ha": "center", "color": style.text_on(colour)}
                axes.text(cell.column + 0.5, row + 0.54, str(cell.num_tokens), **look)


def _draw_bars(axes: Axes, cells: Sequence[Cell], num_passes: int, column: float) -> None:
    """Draw the tokens of each pass, one kind on another."""
    below = [0] * num_passes
    for kind, colour in _COLOURS.items():
        tokens = [0] * num_passes
        for cell in cells:
            if cell.kind == kind:
                tokens[cell.column] += cell.num_tokens
        centres = [each + 0.5 for each in range(num_passes)]
        axes.bar(centres, tokens, 0.9, below, color=colour)
        below = [low + more for low, more in zip(below, tokens, strict=True)]
    axes.set_ylim(0, max(below))
    axes.axhline(0, color=style.GRID, linewidth=0.8)
    for words, level in ((f"{max(below)}", 0.85), ("tokens", 0.25)):
        axes.text(-0.08 / column, level * max(below), words, **style.FAINT | {"ha": "right"})


def _draw_legend(picture: Picture, schedules: Sequence[Sequence[Cell]], height: float) -> None:
    """Draw a legend of the kinds in the picture only."""
    kinds = {cell.kind for cells in schedules for cell in cells}
    handles: list[Artist] = [
        Patch(color=_COLOURS[kind], label=_LABELS[kind]) for kind in _COLOURS if kind in kinds
    ]
    if any(map(_has_gap, schedules)):
        handles.append(Line2D([], [], **_BETWEEN, label="left out or preempted"))
    picture.legend(
        handles=handles,
        loc="upper left",
        bbox_to_anchor=(0.004, 1 - 0.32 / height),
        ncols=len(handles),
        frameon=False,
        fontsize=style.SMALL_POINTS,
    )


def _has_gap(cells: Sequence[Cell]) -> bool:
    """Return whether a request has no tokens in a pass between its first and its last."""
    columns: dict[int, list[int]] = {}
    for cell in cells:
        columns.setdefault(cell.sequence, []).append(cell.column)
    return any(len(each) <= each[-1] - each[0] for each in columns.values())


_HEIGHT = 3.8
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

    predicted: curves of the same names, in the same colours. A line goes through its points in the
    order of throughput. target_s: a latency that requests
    should have, drawn as a level line. The latency's axis is logarithmic. Returns a Picture.
    ValueError if nothing was measured.
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
        axes.plot(*zip(*sorted(points), strict=True), "-", label=name, linewidth=1.6, **line)
        if predicted and name in predicted:
            axes.plot(
                *zip(*sorted(predicted[name]), strict=True),
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
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
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
