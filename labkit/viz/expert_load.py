"""How much each rank of an expert-parallel layer has to compute, and how that changes in training.

load_of_experts: a bar for each rank, expert by expert.

    rank 0 |expert 0   |expert 1                |//|      |   1.8 x the mean
         1 |expert 2 |e3|                                 |   0.7 x
                                    mean

A segment is an expert; a narrow one has only its name, e3. Hatched are the choices that it dropped.
All ranks wait for the longest bar.

imbalance_curves: the busiest expert over the mean, by training step, a line for each way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from labkit.moe.gpt_moe import ExpertLoad
from labkit.viz import style
from labkit.viz.memory import clean
from labkit.viz.picture import Picture

MAX_RANKS = 12
_WIDTH, _LEFT, _RIGHT, _BAR, _HEADER, _BOTTOM = 9.0, 0.75, 2.0, 0.44, 0.62, 0.56  # inches
_LETTER = 0.078  # inches of a small letter, about
_THICKNESS = 0.72


def load_of_experts(load: ExpertLoad, *, title: str = "who has how much to do") -> Picture:
    """Draw a bar for each rank, a segment for each of its experts, and the mean over the ranks.

    load: of `labkit.moe.expert_load`. The numbers are choices: (token, expert) pairs. Dropped ones
    are hatched, at the end of a bar, and not computed. Returns a Picture. TypeError for anything
    but a load; ValueError for more than 12 ranks.
    """
    num_ranks = len(load.held)
    if num_ranks > MAX_RANKS:
        raise ValueError(f"{num_ranks} ranks: a picture that can be read has 1 to {MAX_RANKS}")
    height = _HEADER + _BAR * num_ranks + _BOTTOM
    picture = Picture(_WIDTH, height, _caption(title, load))
    width = _WIDTH - _LEFT - _RIGHT
    axes = picture.add_axes(
        (_LEFT / _WIDTH, _BOTTOM / height, width / _WIDTH, _BAR * num_ranks / height)
    )
    span = 1.02 * max(1, *(_wanted(load, rank) for rank in range(num_ranks)))
    axes.set_xlim(0, span)
    axes.set_ylim(num_ranks, 0)
    axes.set_yticks([])
    clean(axes)
    for rank in range(num_ranks):
        _draw_rank(axes, load, rank, per_inch=span / width)
    mean = sum(load.by_rank) / num_ranks
    axes.axvline(mean, color=style.INK, linewidth=1.6, linestyle="--", zorder=5)
    axes.set_xlabel(f"choices of tokens; dashed: the mean of the ranks, {mean:,.0f}", **_LABEL)
    picture.text(0.013, 1 - 0.22 / height, title, **style.TITLE)
    _draw_legend(picture, load, height)
    return picture


_LABEL: dict[str, Any] = {"fontsize": style.SMALL_POINTS, "color": style.FAINT_INK}


def _caption(title: str, load: ExpertLoad) -> str:
    ranks = ", ".join(f"rank {rank} {number}" for rank, number in enumerate(load.by_rank))
    return f"{title}: {ranks}; {load.num_dropped} dropped; busiest {load.imbalance:.2f} x the mean"


def _wanted(load: ExpertLoad, rank: int) -> int:
    """Return the choices of a rank's experts, dropped ones included."""
    dropped = load.dropped_by_expert
    return load.by_rank[rank] + sum(dropped[number] for number in load.held[rank])


def _draw_rank(axes: Axes, load: ExpertLoad, rank: int, *, per_inch: float) -> None:
    left, middle = 0, rank + 0.5
    colour = style.rank_colour(rank)
    for place, number in enumerate(load.held[rank]):
        count = load.by_expert[number]
        shade = style.paler(colour, 0.15 if place % 2 == 0 else 0.45)
        axes.barh(middle, count, _THICKNESS, left, color=shade, edgecolor="white", linewidth=0.8)
        for text in (f"expert {number}: {count:,}", f"e{number}: {count:,}", f"e{number}"):
            if count > per_inch * (_LETTER * len(text) + 0.06):
                look = style.SMALL | {"ha": "center", "color": style.text_on(shade), "zorder": 6}
                ground = {"facecolor": shade, "edgecolor": "none", "pad": 0.6}
                axes.text(left + count / 2, middle + 0.02, text, bbox=ground, **look)
                break
        left += count
    dropped = _wanted(load, rank) - left
    if dropped:
        axes.barh(middle, dropped, _THICKNESS, left, **_DROPPED)
    look = style.SMALL | {"ha": "right"}
    axes.text(-0.012 * axes.get_xlim()[1], middle, f"rank {rank}", **look)
    share = left * len(load.held) / max(1, sum(load.by_rank))
    words = f"  {left:,}, {share:.2f} x the mean"
    is_busiest = left == max(load.by_rank) and load.imbalance > 1
    weight = {"fontweight": "bold", "color": style.ALARM} if is_busiest else {}
    axes.text(axes.get_xlim()[1], middle, words, **style.SMALL | weight)


_DROPPED: dict[str, Any] = {
    "color": "white",
    "edgecolor": style.FAINT_INK,
    "hatch": "////",
    "linewidth": 0.6,
}


def _draw_legend(picture: Picture, load: ExpertLoad, height: float) -> None:
    if not load.num_dropped:
        return
    patch = Patch(
        facecolor="white",
        edgecolor=style.FAINT_INK,
        hatch="////",
        label=f"dropped: {load.num_dropped:,} of {load.num_dropped + sum(load.by_rank):,}",
    )
    picture.legend(
        handles=[patch],
        loc="upper left",
        bbox_to_anchor=(0.006, 1 - 0.34 / height),
        frameon=False,
        fontsize=style.SMALL_POINTS,
        borderaxespad=0,
    )


_CURVES_HEIGHT, _SMOOTHED = 3.3, 8  # inches, steps


def imbalance_curves(
    by_step: Mapping[str, Sequence[float]], most: float, *, title: str = "busiest expert over mean"
) -> Picture:
    """Draw each way's imbalance by training step, as the mean of the last 8 steps.

    by_step: by name, choices of the busiest expert over the mean of all experts. most: if all
    tokens choose the same experts, E / k. Dotted lines are at 1, which is balanced, and at `most`.
    Returns a Picture. ValueError for a name without steps, and for none at all.
    """
    if not by_step or not all(len(values) for values in by_step.values()):
        raise ValueError("no steps to draw: give {'a loss': [3.1, 2.4, ...]}")
    smooth = {name: _means_of_last(values) for name, values in by_step.items()}
    ends = ", ".join(f"{name} {values[-1]:.1f}" for name, values in smooth.items())
    picture = Picture(_WIDTH, _CURVES_HEIGHT, f"{title}, at the end: {ends}")
    picture.text(0.013, 1 - 0.22 / _CURVES_HEIGHT, title, **style.TITLE)
    axes = picture.add_axes((0.06, 0.15, 0.77, 0.72))
    clean(axes)
    for words, height in (("balanced", 1.0), ("all choose the same", most)):
        axes.axhline(height, color=style.FAINT_INK, linestyle=":", linewidth=1.2)
        look = style.FAINT | {"ha": "left", "va": "bottom"}
        axes.annotate(words, (0.005, height), xycoords=axes.get_yaxis_transform(), **look)
    looks = style.series(list(by_step))
    for name, values in smooth.items():
        look = {"color": looks[name].colour, "linestyle": looks[name].line, "linewidth": 1.8}
        axes.plot(range(1, len(values) + 1), values, **look)
        at = (1.01, values[-1])
        text = style.SMALL | {"color": looks[name].colour}
        axes.annotate(name, at, xycoords=axes.get_yaxis_transform(), annotation_clip=False, **text)
    axes.set_xlim(0, max(map(len, by_step.values())))
    axes.set_ylim(0, 1.12 * most)
    axes.set_xlabel("training step", **_LABEL)
    return picture


def _means_of_last(values: Sequence[float]) -> list[float]:
    """Mean of each value and up to seven before it."""
    parts = (values[max(0, end - _SMOOTHED) : end] for end in range(1, len(values) + 1))
    return [sum(part) / len(part) for part in parts]
