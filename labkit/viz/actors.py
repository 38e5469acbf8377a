r"""Pictures of reinforcement learning: returns, how long each rank waited, ages of samples.

returns: the mean return of the last 100 episodes, twice, with the same lines and the same y.

    475 |- - - - - - - -    |- - - - - - - -    the dashed line is the threshold
        |   ___/ PPO        |        __/ PPO
        | _/ __/ IMPALA     | __/ IMPALA
        +------- samples    +-------- seconds

idle_by_rank: a panel for each run, a bar for each rank: the share of the time in which it waited.

    % | #  #  #             |                   a synchronous run: all wait for the slow rank 3
      | #  #  #  .          | .  .  .  .        an asynchronous one: none does
      +-0--1--2--3-- rank   +-0--1--2--3-- rank

policy_lag: a panel for each run: how many uses of samples were how many versions old.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from matplotlib.ticker import MaxNLocator

from labkit.calc.units import count_text
from labkit.rl.history import WINDOW, Episode, History
from labkit.viz import style
from labkit.viz.picture import Picture
from labkit.viz.training import COLOURS, side_by_side

if TYPE_CHECKING:
    from labkit.rl.language import Trained

_AXIS: dict[str, Any] = {"fontsize": style.SMALL_POINTS, "color": style.FAINT_INK}
_LINES = ("-", "--", "-.", ":")
_MAX_PANELS = 4


def returns(
    histories: Mapping[str, History],
    *,
    title: str,
    threshold: float | None = None,
    window: int = WINDOW,
) -> Picture:
    """Draw the mean return of the last `window` episodes against samples and against seconds.

    histories: by the line's name, up to 6. threshold: a return to reach. Returns a Picture.
    ValueError for a history with fewer than `window` episodes, and for no history or too many.
    """
    if not 1 <= len(histories) <= len(COLOURS):
        raise ValueError(f"{len(histories)} lines: a picture that can be read has 1 to 6")
    means = {name: history.mean_returns(window) for name, history in histories.items()}
    for name, of in means.items():
        if not of:
            num_episodes = len(histories[name].episodes)
            raise ValueError(
                f"{name} has {num_episodes} episodes, and a mean is of {window}: give a smaller "
                "window, or train for longer"
            )
    names = ["against samples", "against time"]
    caption = f"{title}: {', '.join(_summary(name, of) for name, of in means.items())}"
    picture, (left, right) = side_by_side(title, names, caption, sharex=False)
    for number, (name, of) in enumerate(means.items()):
        look: dict[str, Any] = {"color": COLOURS[number], "label": name}
        look |= {"linestyle": _LINES[number % len(_LINES)]}
        left.plot([each.samples for each in of], [each.total for each in of], **look)
        right.plot([each.seconds for each in of], [each.total for each in of], **look)
    for axes, unit in ((left, "samples"), (right, "seconds")):
        if threshold is not None:
            axes.axhline(threshold, color=style.FAINT_INK, linestyle=":", linewidth=1.2)
        axes.set_xlabel(unit, **_AXIS)
        axes.set_xlim(left=0)
        axes.xaxis.set_major_formatter(lambda value, _: count_text(value) if value else "0")
    left.set_ylabel(f"return, mean of {window} episodes", **_AXIS)
    right.legend(framealpha=0.85, edgecolor="none", fontsize=style.SMALL_POINTS)
    return picture


def _summary(name: str, means: list[Episode]) -> str:
    return f"{name} up to {max(each.total for each in means):.0f}"


def idle_by_rank(histories: Mapping[str, History | Trained], *, title: str) -> Picture:
    """Draw the share of the time in which each rank waited for others, a panel for each training.

    histories: by the panel's title, up to 4; of a language model, what its trainers return. Returns
    a Picture. ValueError for none or too many.
    """
    if not 1 <= len(histories) <= _MAX_PANELS:
        raise ValueError(f"{len(histories)} panels: a picture that can be read has 1 to 4")
    of_all = "; ".join(
        f"{name}: {', '.join(f'{share:.0%}' for share in history.idle_shares)}"
        for name, history in histories.items()
    )
    caption = f"{title}, by rank: {of_all}"
    picture, axes_of = side_by_side(title, list(histories), caption, sharex=False)
    for axes, history in zip(axes_of, histories.values(), strict=True):
        for rank, share in enumerate(history.idle_shares):
            axes.bar(rank, 100 * share, width=0.7, color=style.rank_colour(rank))
            text = style.SMALL | {"ha": "center", "va": "bottom"}
            axes.text(rank, 100 * share + 1, f"{share:.0%}", **text)
        axes.set_xlabel("rank", **_AXIS)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes_of[0].set_ylim(0, 110)
    axes_of[0].set_ylabel("% of the time idle", **_AXIS)
    return picture


def policy_lag(histories: Mapping[str, History], *, title: str) -> Picture:
    """Draw how many versions old samples were when they were used, a panel for each history.

    histories: by the panel's title, up to 4. The dashed line is the mean. Returns a Picture.
    ValueError for none or too many, and for a history without `staleness`.
    """
    if not 1 <= len(histories) <= _MAX_PANELS:
        raise ValueError(f"{len(histories)} panels: a picture that can be read has 1 to 4")
    if empty := [name for name, history in histories.items() if not history.staleness]:
        raise ValueError(
            f"{empty[0]} has no staleness: in its rung samples are never old, so leave it out"
        )
    means = {
        name: sum(history.staleness) / len(history.staleness) for name, history in histories.items()
    }
    caption = f"{title}, mean: {', '.join(f'{name} {mean:.1f}' for name, mean in means.items())}"
    picture, axes_of = side_by_side(title, list(histories), caption, sharex=False)
    for axes, (name, history) in zip(axes_of, histories.items(), strict=True):
        ages = range(max(history.staleness) + 1)
        shares = [100 * history.staleness.count(age) / len(history.staleness) for age in ages]
        axes.bar(ages, shares, width=0.8, color=COLOURS[0])
        label = f"mean {means[name]:.1f}"
        axes.axvline(means[name], color=style.INK, linestyle="--", linewidth=1.2, label=label)
        axes.set_xlabel("versions old", **_AXIS)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.legend(frameon=False, fontsize=style.SMALL_POINTS)
    axes_of[0].set_ylabel("% of updates or rollouts", **_AXIS)
    return picture
