"""Write README's picture: the timelines of two rungs that notebook 04 stores.

    python -m scripts.readme_picture    after notebooks/04_data_parallel.ipynb is stored again

README's caption names their times.
"""

import argparse
import base64
import io
from pathlib import Path

import nbformat
from PIL import Image

ROOT = Path(__file__).parents[1]
NOTEBOOK = ROOT / "notebooks" / "04_data_parallel.ipynb"
PICTURE = ROOT / "docs" / "naive_and_overlapped.png"
CAPTION = "<timelines of NaiveDDP: "
WIDTH = 1200
COLOURS = 64


def main() -> None:
    """Store the picture at the width of a page."""
    argparse.ArgumentParser(description=__doc__.split("\n")[0]).parse_args()
    whole = timelines(NOTEBOOK)
    small = whole.resize((WIDTH, whole.height * WIDTH // whole.width), Image.Resampling.LANCZOS)
    small.quantize(COLOURS, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE).save(PICTURE)


def timelines(notebook: Path) -> Image.Image:
    """Return the picture of a naive and of an overlapped step."""
    (png,) = [
        output.data["image/png"]
        for cell in nbformat.read(notebook, as_version=4).cells
        for output in cell.get("outputs", ())
        if output.get("data", {}).get("text/plain", "").startswith(CAPTION)
    ]
    return Image.open(io.BytesIO(base64.b64decode(png))).convert("RGB")


if __name__ == "__main__":
    main()
