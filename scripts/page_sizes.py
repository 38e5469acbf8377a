"""Print the size of every notebook, and exit with 1 if one is over its bounds.

python scripts/page_sizes.py            all pages
python scripts/page_sizes.py 03 06      pages whose file name begins so

min      minutes to work through: words / 60 + lines of code / 7, folded text included
words    of text; drawings and code inside of fences do not count
code     lines that are not empty, of all code cells but the strip's
longest  lines of the longest code cell
plot     lines of code cells that call matplotlib: labkit.viz draws instead
before   words before the first picture
predict  predictions, and how many cells the farthest stands before its `reveal`
links    to other sites
over     the bounds that the page breaks
"""

import argparse
import json
import re
from dataclasses import dataclass
from pathlib import Path

from labkit.notebook.page_strip import count_words

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
MINUTES, WORDS_BEFORE, LONGEST, PLOT, DISTANCE = 75, 300, 25, 0, 3
_PICTURE = re.compile(r"!\[|<img|<svg")
_PLOT = re.compile(r"\b(plt|ax|axes|fig|figure)\.\w|matplotlib")
_PREDICT = re.compile(r"\bpredict\(\s*[\"']([\w-]+)[\"']")
_REVEAL = re.compile(r"\breveal\(\s*[\"']([\w-]+)[\"']")


@dataclass(frozen=True, slots=True)
class Size:
    """Sizes of one page, as the module's docstring names them."""

    words: int
    code: int
    longest: int
    plot: int
    before: int | None
    """None: the page has no picture."""
    distances: dict[str, int | None]
    """By prediction, cells from `predict` to `reveal`; None if it is never revealed."""
    links: int

    @property
    def minutes(self) -> int:
        return round(self.words / 60 + self.code / 7)

    @property
    def over(self) -> list[str]:
        """The bounds that the page breaks."""
        far = [name for name, cells in self.distances.items() if cells is None or cells > DISTANCE]
        broken = {
            f"{MINUTES} minutes": self.minutes > MINUTES,
            f"{WORDS_BEFORE} words before a picture": self.before is None
            or self.before > WORDS_BEFORE,
            f"{LONGEST} lines in a cell": self.longest > LONGEST,
            "plotting": self.plot > PLOT,
            f"{DISTANCE} cells to a reveal ({', '.join(far)})": bool(far),
        }
        return [name for name, is_broken in broken.items() if is_broken]


def size_of(notebook: dict) -> Size:
    """Measure a notebook, given as the JSON of its file."""
    texts: list[str] = []
    codes: list[list[str]] = []
    predicted: dict[str, int] = {}
    revealed: dict[str, int] = {}
    before = None
    for index, cell in enumerate(notebook["cells"]):
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            if before is None and (picture := _PICTURE.search(source)):
                before = sum(map(count_words, [*texts, source[: picture.start()]]))
            texts.append(source)
            continue
        if "strip(" in source:
            continue  # it says where the reader is
        codes.append([line for line in source.splitlines() if line.strip()])
        predicted |= dict.fromkeys(_PREDICT.findall(source), index)
        revealed |= dict.fromkeys(_REVEAL.findall(source), index)
        if before is None and any(map(_is_picture, cell["outputs"])):
            before = sum(map(count_words, texts))
    asked = {name: revealed.get(name) for name in predicted}
    # A prediction with an answer of its own is revealed by the commitment.
    own = {name for name in predicted if _answers_itself(notebook["cells"][predicted[name]], name)}
    return Size(
        words=sum(map(count_words, texts)),
        code=sum(map(len, codes)),
        longest=max(map(len, codes), default=0),
        plot=sum(bool(_PLOT.search(line)) for lines in codes for line in lines),
        before=before,
        distances={
            name: 0 if name in own else None if at is None else at - predicted[name]
            for name, at in asked.items()
        },
        links=sum(text.count("](http") for text in texts),
    )


def _is_picture(output: dict) -> bool:
    data = output.get("data", {})
    html = "".join(data.get("text/html", ""))
    return any(kind.startswith("image/") for kind in data) or bool(_PICTURE.search(html))


def _answers_itself(cell: dict, name: str) -> bool:
    source = "".join(cell["source"])
    call = source[source.index(name) :]
    return bool(re.match(r"[^\n]*(\n[^\n]*){0,3}\banswer=", call))


def main() -> None:
    """Print a row for each page; exit with 1 if a bound is broken."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("pages", nargs="*", help="how file names begin; all")
    begins = tuple(parser.parse_args().pages)
    paths = [
        path for path in sorted(NOTEBOOKS.glob("*.ipynb")) if path.stem.startswith(begins or ("",))
    ]
    if not paths:
        parser.error(f"no notebook begins with {' or '.join(begins)}")
    print(f"{'page':36} min words code longest plot before  predict links  over")
    is_over = False
    for path in paths:
        size = size_of(json.loads(path.read_text(encoding="utf-8")))
        cells = [cells for cells in size.distances.values() if cells is not None]
        print(
            f"{path.stem:36}{size.minutes:4}{size.words:6}{size.code:5}{size.longest:8}"
            f"{size.plot:5}{'none' if size.before is None else size.before:>7}"
            f"{len(size.distances):4}, {max(cells, default=0):2}{size.links:6}  "
            f"{'; '.join(size.over)}"
        )
        is_over |= bool(size.over)
    raise SystemExit(is_over)


if __name__ == "__main__":
    main()
