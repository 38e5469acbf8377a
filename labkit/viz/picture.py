"""The Picture that every drawing function returns, and parts of drawings that several share.

A Picture shows itself exactly once, without pyplot, which keeps every figure alive and shows it
again at the end of the cell: as the last line of a cell, or through `show()`; otherwise never.
CellPainter fills the cells of a tensor with the colours of the ranks whose data is in them.
"""

import io
import os
import sys
import tempfile
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.patches import Rectangle
from matplotlib.textpath import text_to_path
from PIL import Image

from labkit.viz import style

DOTS_PER_INCH = 100
# Twice as many pixels as are shown: sharp on today's screens.
_OVERSAMPLING = 2
# Flat colours and grey text edges: more palette entries change nothing that can be seen.
_PALETTE_COLOURS = 64


class Picture(Figure):
    """A matplotlib Figure (savefig and all) with a caption, which is also its plain-text form."""

    def __init__(self, width_inches: float, height_inches: float, caption: str) -> None:
        """A notebook column is about 9 inches wide. `caption`: what is drawn, without times."""
        super().__init__(figsize=(width_inches, height_inches), dpi=DOTS_PER_INCH)
        self.patch.set_facecolor("white")  # dark themes would swallow dark text
        self.caption = caption
        FigureCanvasAgg(self)

    def __repr__(self) -> str:
        return f"<{self.caption}>"

    def png(self) -> bytes:
        """Return the picture as a PNG file of twice its size on the page, usually well under 100
        KB."""
        image = self._rendered()
        # Median cut keeps flat colours exact (white stays white); a faster octree does not.
        few_colours = image.quantize(
            _PALETTE_COLOURS, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE
        )
        small = io.BytesIO()
        few_colours.save(small, "PNG")
        return small.getvalue()

    def _rendered(self) -> Image.Image:
        # Not "tight": that draws everything twice, and the layout leaves no empty margins.
        dots_per_inch = self.get_dpi()
        canvas = FigureCanvasAgg(self)
        try:
            self.set_dpi(DOTS_PER_INCH * _OVERSAMPLING)
            canvas.draw()
            return Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")
        finally:
            self.set_dpi(dots_per_inch)

    def show(self, warn: bool = True) -> None:
        """Display it: in the notebook, or, outside of one, as a file whose path is printed.

        warn: unused; here because matplotlib's Figure.show has it.
        """
        ipython = sys.modules.get("IPython")
        if ipython is not None and ipython.get_ipython() is not None:
            ipython.display.display(self)
            return
        handle, path = tempfile.mkstemp(prefix="labkit-", suffix=".png")
        with os.fdopen(handle, "wb") as file:
            file.write(self.png())
        print(f"{self.caption}: {path}")

    def _repr_mimebundle_(
        self, include: Any = None, exclude: Any = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        png = self.png()
        width, height = (pixels // _OVERSAMPLING for pixels in Image.open(io.BytesIO(png)).size)
        data = {"image/png": png, "text/plain": repr(self)}
        # The second is Jupyter's word for pictures on white: dark themes put white behind them, and
        # labextension/ inverts them instead.
        return data, {
            "image/png": {"width": width, "height": height},
            "needs_background": "light",
        }


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
    """Make axes from 0 to width, 0 to height downwards, without ticks and box."""
    axes.set_xlim(0, width)
    axes.set_ylim(height, 0)
    axes.axis("off")


def draw_heading(
    picture: Picture, title: str, note: str, handles: Sequence[Artist], num_columns: int
) -> None:
    """Draw the title with a note beside it, and below them a legend of at most `num_columns`."""
    height = picture.get_size_inches()[1]
    heading = picture.text(0.012, 1 - 0.2 / height, title, **style.TITLE)
    x = picture.transFigure.inverted().transform((heading.get_window_extent().x1, 0))[0] + 0.015
    picture.text(x, 1 - 0.2 / height, note, **style.FAINT)
    picture.legend(
        handles=handles,
        loc="upper left",
        bbox_to_anchor=(0.004, 1 - 0.32 / height),
        ncols=min(len(handles), num_columns),
        frameon=False,
        fontsize=style.SMALL_POINTS,
        handlelength=2.2,
        columnspacing=1.6,
        borderpad=0.2,
    )


_LINE = 1.2  # height of a line, of the type size


@cache
def text_inches(text: str, points: float, weight: str = "normal") -> tuple[float, float]:
    """Return width and height of one or more lines of text, before they are drawn."""
    font = FontProperties(size=points, weight=weight)
    lines = text.split("\n")
    widths = [text_to_path.get_text_width_height_descent(line, font, False)[0] for line in lines]
    return max(widths) / 72, len(lines) * _LINE * points / 72
