"""A figure that shows itself exactly once, without pyplot.

pyplot keeps every figure alive and shows it again at the end of the cell. A Picture belongs to
whoever holds it: as the last line of a cell, or through `show()`, it appears once; otherwise never.
"""

import io
import os
import sys
import tempfile
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

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
        """The picture as a PNG file of twice its size on the page, usually well under 100 KB."""
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
        return data, {"image/png": {"width": width, "height": height}}
