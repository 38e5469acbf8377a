"""The scores that each rank computes under a causal mask, for placements of the sequence.

rank 0  |#                 a row is a query, a column a key; a row ends at its own key
rank 1  |##                the area of a colour is a rank's work
rank 1  |###
rank 0  |####
"""

from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from labkit import arguments
from labkit.context_parallel.shards import Placement
from labkit.viz import style
from labkit.viz.picture import Picture

MAX_PLACEMENTS, MAX_RANKS = 3, 8
_TOKENS_PER_RANK = 8  # all placements cut these into equal parts


def causal_work(
    placements: Mapping[str, Placement],
    num_ranks: int,
    *,
    title: str = "who computes which scores under a causal mask",
) -> Picture:
    """Draw a panel per placement: queries downwards, keys to the right, a colour per rank.

    placements: by title, functions as `labkit.context_parallel.zigzag`. Returns a Picture.
    ValueError for more than 8 ranks, or for none or more than 3 placements.
    """
    n = arguments.whole("num_ranks", num_ranks, f"1 to {MAX_RANKS}", most=MAX_RANKS)
    if not 1 <= len(placements) <= MAX_PLACEMENTS:
        raise ValueError(
            f"{len(placements)} placements: a picture that can be read has 1 to {MAX_PLACEMENTS}"
        )
    picture = Picture(9.0, 4.3, f"{title}: {', '.join(placements)}, {n} ranks")
    picture.text(0.012, 0.96, title, **style.TITLE)
    panels = picture.subplots(1, len(placements), squeeze=False)[0]
    for axes, (name, placement) in zip(panels, placements.items(), strict=True):
        _draw(axes, placement, name, n)
    picture.subplots_adjust(left=0.08, right=0.99, top=0.86, bottom=0.06, wspace=0.2)
    return picture


def _draw(axes: Axes, placement: Placement, name: str, n: int) -> None:
    num_tokens = _TOKENS_PER_RANK * n
    for rank in range(n):
        for part in placement(num_tokens, n, rank):
            for query in part:
                look: dict[str, Any] = {"facecolor": style.rank_colour(rank), "edgecolor": "none"}
                axes.add_patch(Rectangle((0, query), query + 1, 1, **look))
            axes.axhline(part.start, color="white", linewidth=1.2)
            middle = (part.start + part.stop) / 2
            axes.text(-0.6, middle, f"rank {rank}", ha="right", **style.SMALL)
    axes.set_xlim(0, num_tokens)
    axes.set_ylim(num_tokens, 0)
    axes.set_aspect("equal")
    axes.axis("off")
    heading: dict[str, Any] = {
        "fontsize": style.BASE_POINTS,
        "fontweight": "bold",
        "color": style.INK,
    }
    axes.set_title(name, loc="left", **heading)
    axes.text(num_tokens / 2, num_tokens + 1.3, "keys", ha="center", **style.FAINT)
    axes.text(num_tokens, 0.8, "one row: one query", ha="right", **style.FAINT)
