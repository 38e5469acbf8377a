"""A cell of a tensor, filled with the colours of the ranks whose data is in it."""

from collections.abc import Iterable

from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.patches import Rectangle

from labkit.viz import style

Corner = tuple[float, float]


class CellPainter:
    """Collects coloured stripes and draws them at once: a patch for each would be slow."""

    def __init__(self, axes: Axes) -> None:
        """`axes`: y grows downwards."""
        self.axes = axes
        self._outlines: list[list[Corner]] = []
        self._colours: list[str] = []

    def stripes(
        self, x: float, y: float, width: float, height: float, colours: Iterable[str]
    ) -> None:
        """Side by side, one stripe of equal width per colour."""
        colours = list(colours)
        step = width / max(len(colours), 1)
        for number, colour in enumerate(colours):
            left, right = x + number * step, x + (number + 1) * step
            self._outlines.append([(left, y), (right, y), (right, y + height), (left, y + height)])
            self._colours.append(colour)

    def frame(
        self, x: float, y: float, width: float, height: float, *, heavy: bool = False
    ) -> None:
        """The outline of a cell; heavy where something happened to it."""
        self.axes.add_patch(
            Rectangle(
                (x, y),
                width,
                height,
                fill=False,
                edgecolor=style.INK if heavy else "#8a8a8a",
                linewidth=1.6 if heavy else 0.6,
                zorder=4 if heavy else 3,
            )
        )

    def paint(self) -> None:
        """Put all stripes on the axes."""
        collection = PolyCollection(
            self._outlines, facecolors=self._colours, edgecolors="none", antialiaseds=False
        )
        self.axes.add_collection(collection, autolim=False)


def blank_axes(axes: Axes, width: float, height: float) -> None:
    """0 to width, 0 to height downwards, without ticks and box."""
    axes.set_xlim(0, width)
    axes.set_ylim(height, 0)
    axes.axis("off")
