"""How jobs go on after a failure: the steps they make over time, one line for each.

step   |            ,---x            ,-'        x: the failure
       |        ,--'    |         ,-'
       |    ,--'        '......,-'              the line falls to the step that was saved
       +----------------0------------- seconds since the failure
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.ticker import MaxNLocator

from labkit.viz import style
from labkit.viz.memory_header import clean
from labkit.viz.picture import Picture

_WIDTH, _HEIGHT = 9.0, 3.4  # inches


def recovery(
    steps_made: Mapping[str, Sequence[tuple[float, int]]],
    failed_in: int,
    *,
    title: str,
) -> Picture:
    """Draw the steps of several jobs over the seconds since each one's failure.

    steps_made: by name, (seconds, step) for each step that a job has made, in order, repeated ones
    too. failed_in: the step in which each job failed; seconds count from the end of the one before.
    Returns a Picture.
    """
    picture = Picture(_WIDTH, _HEIGHT, f"{title}: {'; '.join(steps_made)}")
    picture.text(0.013, 1 - 0.2 / _HEIGHT, title, **style.TITLE)
    axes = picture.add_axes((0.06, 0.15, 0.64, 0.66))
    looks = style.series(list(steps_made))
    for name, made in steps_made.items():
        failed = [step for _, step in made].index(failed_in - 1)
        zero_s = made[failed][0]
        axes.plot(
            [seconds - zero_s for seconds, _ in made],
            [step for _, step in made],
            marker=looks[name].marker,
            markersize=3,
            linewidth=1.4,
            color=looks[name].colour,
            label=name,
        )
        axes.plot(0, made[failed][1], "x", color=style.ALARM, markersize=9, zorder=5)
    clean(axes)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("seconds since the failure", fontsize=style.SMALL_POINTS)
    axes.set_title("step", loc="left", fontsize=style.BASE_POINTS)
    axes.legend(
        frameon=False,
        fontsize=style.SMALL_POINTS,
        loc="upper left",
        bbox_to_anchor=(1.0, 1.0),
    )
    return picture
