"""Write README's picture: the two timelines that notebook 03 stores, one above the other.

    python -m scripts.readme_picture    after notebooks/03_data_parallel.ipynb is stored again

Both have one scale, which the notebook's cells give them. README's caption names their times.
"""

import argparse
import base64
import io
from pathlib import Path

import nbformat
from PIL import Image

ROOT = Path(__file__).parents[1]
NOTEBOOK = ROOT / "notebooks" / "03_data_parallel.ipynb"
PICTURE = ROOT / "docs" / "naive_and_overlapped.png"
TITLES = ("<timeline of naive: ", "<timeline of overlapped: ")
WIDTH = 1200
COLOURS = 64


def main() -> None:
    """Stack the pictures, and store them at the width of a page."""
    argparse.ArgumentParser(description=__doc__.split("\n")[0]).parse_args()
    pictures = timelines(NOTEBOOK)
    whole = Image.new("RGB", (pictures[0].width, sum(each.height for each in pictures)), "white")
    top = 0
    for each in pictures:
        whole.paste(each, (0, top))
        top += each.height
    small = whole.resize((WIDTH, whole.height * WIDTH // whole.width), Image.Resampling.LANCZOS)
    small.quantize(COLOURS, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE).save(PICTURE)


def timelines(notebook: Path) -> list[Image.Image]:
    """Return the pictures of a naive and of an overlapped step."""
    found = [
        output.data["image/png"]
        for cell in nbformat.read(notebook, as_version=4).cells
        for output in cell.get("outputs", ())
        if output.get("data", {}).get("text/plain", "").startswith(TITLES)
    ]
    return [Image.open(io.BytesIO(base64.b64decode(png))).convert("RGB") for png in found]


if __name__ == "__main__":
    main()
