r"""Figures of reinforcement learning by update, as small multiples: what one looks at first.

    reward          entropy             KL                  a panel for each figure, updates as x
    sample size     unchanged policy    version lag
    norms           idle time by rank   length of answers   dashed grey: another run beside it

In a healthy job the ratio of an unchanged policy is exactly 1. Norms are sent (line) and served
(dots, an engine each): a dot belongs on the line, at most as many updates late as the staleness
allows. An engine that sleeps has no dot.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, NullLocator

from labkit.rl.figures import NO_WEIGHTS, Figures
from labkit.viz import style
from labkit.viz.memory import clean
from labkit.viz.picture import Picture
from labkit.viz.training import COLOURS

_WIDTH, _HEIGHT, _ROWS, _COLUMNS = 9.0, 7.2, 3, 3
_MARKERS = ("o", "x", "^", "s")
_FLOOR = 1e-7
"""Where the axis of the unchanged policy ends in zero."""
_Line = tuple[str, Callable[[Figures], float]]
_PANELS: dict[str, tuple[_Line, ...]] = {
    "reward": (("mean", lambda f: f.reward),),
    "entropy, in nats": (("mean", lambda f: f.entropy),),
    "KL, in nats": (
        ("to the reference", lambda f: f.kl),
        ("to the policy that generated", lambda f: f.kl_generated),
    ),
    "effective sample size": (("share of tokens", lambda f: f.effective_sample_size),),
    "unchanged policy, |ratio - 1|": (
        ("largest", lambda f: f.unchanged_off),
        ("median", lambda f: f.unchanged_median),
    ),
    "version lag": (("mean", lambda f: f.lag), ("largest", lambda f: f.lag_most)),
    "norm of the weights": (("sent", lambda f: f.sent_norm or float("nan")),),
    "% of the time idle": (),
    "tokens of an answer": (
        ("longest", lambda f: f.longest),
        ("mean", lambda f: f.tokens / max(1, f.answers)),
    ),
}
_IN_LOGARITHMS = "unchanged policy, |ratio - 1|"


def rollout_figures(
    figures: Sequence[Figures],
    *,
    title: str,
    beside: Sequence[Figures] = (),
    since: int | None = None,
) -> Picture:
    """Draw the figures of a training by reinforcement learning, by update.

    figures: of Trained. beside: of another run, drawn in grey. since: an update to mark. Returns a
    Picture. ValueError without an update.
    """
    if not figures:
        raise ValueError("no figures: the job made no update, and its `stalled` says why")
    last = figures[-1]
    caption = (
        f"{title}: {len(figures)} updates, reward {figures[0].reward:.2f} to {last.reward:.2f}, "
        f"{len(last.idle_s)} ranks"
    )
    picture = Picture(_WIDTH, _HEIGHT, caption)
    picture.text(0.013, 1 - 0.2 / _HEIGHT, title, **style.TITLE)
    for number, (name, lines) in enumerate(_PANELS.items()):
        axes = _axes(picture, number, name)
        if since is not None:
            axes.axvline(since, color=style.ALARM, linestyle=":", linewidth=1.2)
        for line, (label, of) in enumerate(lines):
            dashes: dict[str, Any] = {"color": "#9a9a9a", "linestyle": "--", "linewidth": 1.0}
            axes.plot(*_points(beside, of), **dashes)
            look: dict[str, Any] = {"color": COLOURS[line], "label": label}
            look |= {"linestyle": ("-", "-.")[line], "marker": ".", "markersize": 4}
            axes.plot(*_points(figures, of), **look)
        if name.startswith("norm"):
            _draw_served(axes, figures)
        if name.endswith("idle"):
            _draw_idle(axes, figures)
        if name == _IN_LOGARITHMS:
            axes.set_yscale("symlog", linthresh=_FLOOR)
            axes.set_yticks([0, 1e-6, 1e-4, 1e-2, 1])
            axes.yaxis.set_minor_locator(NullLocator())
            axes.set_ylim(bottom=0)
        if len(axes.get_legend_handles_labels()[0]) > 1:
            axes.legend(framealpha=0.8, edgecolor="none", fontsize=style.SMALLEST_POINTS)
    return picture


def _axes(picture: Picture, number: int, name: str) -> Axes:
    """Add the axes of a panel, by its number in reading order."""
    row, column = divmod(number, _COLUMNS)
    width, height = 1 / _COLUMNS, (1 - 0.5 / _HEIGHT) / _ROWS
    left, bottom = column * width + 0.055, (_ROWS - 1 - row) * height + 0.055
    axes = picture.add_axes((left, bottom, width - 0.075, height - 0.095))
    axes.set_title(name, loc="left", fontsize=style.BASE_POINTS, color=style.INK)
    clean(axes)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    if row == _ROWS - 1:
        axes.set_xlabel("update", fontsize=style.SMALL_POINTS, color=style.FAINT_INK)
    return axes


def _points(
    figures: Sequence[Figures], of: Callable[[Figures], float]
) -> tuple[list[int], list[float]]:
    return [each.version for each in figures], [float(of(each)) for each in figures]


def _draw_served(axes: Axes, figures: Sequence[Figures]) -> None:
    updates = [each.version for each in figures]
    awake = [
        [
            float("nan") if version == NO_WEIGHTS else norm
            for norm, version in zip(each.served_norm, each.served_version, strict=True)
        ]
        for each in figures
    ]
    for engine, norms in enumerate(zip(*awake, strict=True)):
        look: dict[str, Any] = {"marker": _MARKERS[engine % len(_MARKERS)], "markersize": 5}
        look |= {"linestyle": "", "color": COLOURS[1 + engine % 4], "markerfacecolor": "none"}
        axes.plot(updates, norms, label=f"served by engine {engine}", **look)


def _draw_idle(axes: Axes, figures: Sequence[Figures]) -> None:
    updates = [each.version for each in figures]
    # An engine's seconds are from report to report, a little apart from those of the update.
    shares = [
        [100 * idle / max(each.seconds, idle, 1e-9) for idle in each.idle_s] for each in figures
    ]
    for rank, of_rank in enumerate(zip(*shares, strict=True)):
        look: dict[str, Any] = {"color": style.rank_colour(rank), "label": f"rank {rank}"}
        axes.plot(updates, of_rank, linewidth=1.6, **look)
    axes.set_ylim(-4, 104)
