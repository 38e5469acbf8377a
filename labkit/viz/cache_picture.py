"""Two pictures of a cache: whose keys and values are in which slot, and what slots are used for.

slots      |T h e _|. . . .|c a t _|d o g .|      a cell is a slot, coloured by its sequence
sequence 0   page 0, 2                            pale: reserved; white: free;
sequence 1   page 0, 3                            in stripes: shared

share |    ,-- internal --.        the slots of a cache over the passes of a trace,
      |  ,-- reserved --.          one panel for each cache
      |,-- cached --.
      +--------------- passes
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from labkit.serving.caches import KVCache, SlotUse
from labkit.viz import style
from labkit.viz.cells import CellPainter, blank_axes
from labkit.viz.memory_header import clean
from labkit.viz.picture import Picture

MAX_SLOTS, MAX_SEQUENCES = 192, 8
_WIDTH, _LEFT, _TITLE, _GAP, _BOTTOM = 9.0, 1.1, 0.42, 0.12, 0.08  # inches
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
    top = _TITLE + row_height * -(-num_slots // per_row) + _GAP
    height = top + _TABLE_ROW * len(texts) + _BOTTOM
    words = "; ".join(f"{name}: {place}" for name, place in places.items())
    picture = Picture(_WIDTH, height, f"{title}: {words}")
    axes = picture.add_axes((0, 0, 1, 1))
    blank_axes(axes, _WIDTH, height)
    axes.text(0.12, 0.2, title, **style.TITLE)
    axes.text(0.12, _TITLE + row_height - _CELL / 2, "slots", **style.SMALL)
    _draw_slots(axes, cache, texts, page_size, per_row, row_height)
    for number, (name, place) in enumerate(places.items()):
        y = top + (number + 0.5) * _TABLE_ROW
        axes.text(0.12, y, name, **style.SMALL)
        axes.plot(_LEFT + 0.07, y, "s", color=style.rank_colour(number), markersize=8)
        axes.text(_LEFT + 0.25, y, place, **style.SMALL)
    return picture


def _draw_slots(
    axes: Axes,
    cache: KVCache,
    texts: Mapping[int, str],
    page_size: int,
    per_row: int,
    row_height: float,
) -> None:
    """A cell for each slot, with the colours of the sequences that hold it and its letter."""
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
        x = _LEFT + slot % per_row * _CELL
        y = _TITLE + (slot // per_row + 1) * row_height - _CELL
        painter.stripes(x, y, _CELL, _CELL, colours[slot] or ["#ffffff"])
        painter.frame(x, y, _CELL, _CELL)
        look = style.SMALL | {"ha": "center"}
        axes.text(x + _CELL / 2, y + _CELL / 2, letters.get(slot, ""), **look)
        if page_size > 1 and slot % page_size == 0:
            painter.frame(x, y, page_size * _CELL, _CELL, heavy=True)
            axes.text(x, y - 0.45 * _NUMBER, str(slot // page_size), **style.FAINT)
    painter.paint()


def _place(held: Sequence[int], page_size: int) -> str:
    """Where the slots of a sequence are, in words."""
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
    """Areas from below, one step for each pass."""
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
