"""What stands above pictures of memory, title and colours, and the look of their axes."""

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from labkit.viz import style
from labkit.viz.picture import Picture

LEGEND_COLUMNS = 6


def draw_memory_header(
    picture: Picture, title: str, labels: Mapping[str, str], note: str = ""
) -> None:
    """The title, and below it what each colour is."""
    height = picture.get_size_inches()[1]
    heading = picture.text(0.012, 1 - 0.2 / height, title, **style.TITLE)
    if note:
        box = heading.get_window_extent()
        x = picture.transFigure.inverted().transform((box.x1, 0))[0] + 0.015
        picture.text(x, 1 - 0.2 / height, note, **style.FAINT)
    picture.legend(
        handles=[Patch(color=style.memory_colour(kind), label=labels[kind]) for kind in labels],
        loc="upper left",
        bbox_to_anchor=(0.004, 1 - 0.32 / height),
        ncols=min(len(labels), 3 if max(map(len, labels.values())) > 20 else LEGEND_COLUMNS),
        frameon=False,
        fontsize=style.SMALL_POINTS,
        handlelength=1.2,
        columnspacing=1.6,
        borderpad=0.2,
    )


def clean(axes: Axes) -> None:
    """A grid, a line at the bottom, and no frame."""
    axes.tick_params(length=0, labelsize=style.SMALL_POINTS, labelcolor=style.INK)
    axes.grid(axis="both", color=style.GRID, linewidth=0.6, alpha=0.7)
    axes.set_axisbelow(True)
    for side in ("top", "left", "right"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(style.GRID)
