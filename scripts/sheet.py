"""Write the one-page sheet, docs/numbers_to_know.html and .pdf, from docs/numbers_to_know.md.

    python -m scripts.sheet    after the table has changed; needs a Chromium for the PDF

Each row of the table is a number, what it is, and an expression of calc that gives it. The page
shows the first two in two columns, and the expressions below it on a screen.
"""

import argparse
import re
import shutil
import subprocess
import sys
from hashlib import sha256
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

TABLE = Path(__file__).parents[1] / "docs" / "numbers_to_know.md"
PAGE, PDF = TABLE.with_suffix(".html"), TABLE.with_suffix(".pdf")
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_ROW = re.compile(r"\| \*\*(.+?)\*\* \| (.+?) \| `(.+)` \|")
_HEAD = ("| number | | proof |", "|---|---|---|")
_HTML = """\
<!doctype html>
<!-- Written by `python -m scripts.sheet` from numbers_to_know.md. -->
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>Numbers to know</title>
<style>
@page {{ size: A4; margin: 10mm 11mm }}
:root {{ color-scheme: light dark; --dim: #5c5c5c; --rule: #bbb }}
@media (prefers-color-scheme: dark) {{ :root {{ --dim: #aaa; --rule: #555 }} }}
body {{ font: 15px/1.35 "Helvetica Neue", Arial, "DejaVu Sans", sans-serif; max-width: 70em;
  margin: 1em auto; padding: 0 1em }}
h1 {{ font-size: 1.5em; margin: 0 }}
header p {{ color: var(--dim); margin: .2em 0 .6em }}
main {{ columns: 2 24em; column-gap: 2em }}
section {{ margin: 0 0 .7em }}
h2 {{ font-size: 1em; margin: 0 0 .15em; border-bottom: 1px solid var(--rule);
  break-after: avoid }}
dl {{ margin: 0 }}
dl div {{ display: grid; grid-template-columns: 7.4em 1fr; gap: .7em; break-inside: avoid;
  padding: .1em 0 }}
dt {{ font-weight: 700; text-align: right }}
dd {{ margin: 0 }}
aside dl div {{ grid-template-columns: minmax(0, 9em) minmax(0, 1fr) }}
code {{ overflow-wrap: anywhere; font-size: .9em }}
@media (max-width: 40em) {{ aside dl div {{ display: block }} dt {{ text-align: left }} }}
@media print {{
  :root {{ color-scheme: only light; --dim: #444; --rule: #999 }}
  body {{ font-size: 8.7pt; line-height: 1.27; max-width: none; margin: 0; padding: 0 }}
  dt {{ text-align: right }}
  main {{ columns: 2; column-gap: 7mm }}
  aside {{ display: none }}
}}
</style>
</head>
<body>
<header>
<h1>Numbers to know</h1>
<p>{intro}</p>
</header>
<main>
{sections}
</main>
<aside>
<h2>What gives each number</h2>
<p>Python, after <code>from labkit import calc</code>. A test runs all of it.</p>
<dl>
{proofs}
</dl>
</aside>
</body>
</html>
"""


class Row(NamedTuple):
    """A number with its unit, what it is, and the expression that gives it."""

    says: str
    what: str
    proof: str


def main() -> None:
    """Write both files, or exit with the reason."""
    argparse.ArgumentParser(description=__doc__.split("\n")[0]).parse_args()
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        sys.exit(f"No browser is here that prints a PDF: install one of {', '.join(BROWSERS)}.")
    PAGE.write_text(page(), encoding="utf-8")
    with TemporaryDirectory() as profile:  # so that a browser that is open is left alone
        command = [browser, "--headless", "--no-sandbox", f"--user-data-dir={profile}"]
        command += ["--no-pdf-header-footer", f"--print-to-pdf={PDF}", PAGE.as_uri()]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
    # A comment after a PDF's end is allowed: it names the page that the PDF was printed from.
    with PDF.open("ab") as file:
        file.write(mark())
    if (count := num_pages()) != 1:
        sys.exit(f"{PDF.name} has {count} pages: shorten a row of {TABLE.name}, or drop one.")


def sections() -> dict[str, list[Row]]:
    """Return the rows of each section. ValueError for a line of a table that is no row."""
    _, *parts = re.split(r"^## (.+)\n", TABLE.read_text(encoding="utf-8"), flags=re.M)
    found = {}
    for title, text in zip(parts[::2], parts[1::2]):
        lines = [line for line in text.splitlines() if line and line not in _HEAD]
        matches = [_ROW.fullmatch(line) for line in lines]
        for line, match in zip(lines, matches):
            if match is None:
                raise ValueError(
                    f"{TABLE.name}, {title}: {line!r:.80} is no row; write "
                    "| **number** | what it is | `expression` |"
                )
        found[title] = [Row(*match.groups()) for match in matches if match]
    return found


def page() -> str:
    """Return the page as HTML."""
    by_title = sections()
    rows = [row for each in by_title.values() for row in each]
    return _HTML.format(
        intro=escape(
            "GB is 1e9 bytes. A bandwidth is one direction of one GPU. n ranks, N parameters, "
            "D hidden features, L layers, s tokens, p stages, m microbatches. Each number is "
            "proved by a formula of labkit.calc."
        ),
        sections="\n".join(
            f"<section>\n<h2>{escape(title)}</h2>\n{_list(each)}\n</section>"
            for title, each in by_title.items()
        ),
        proofs="\n".join(
            f"<div><dt>{escape(row.says)}</dt><dd><code>{escape(row.proof)}</code></dd></div>"
            for row in rows
        ),
    )


def mark() -> bytes:
    """Return the line at the end of a PDF of this page."""
    return f"% printed from {sha256(page().encode()).hexdigest()}\n".encode()


def num_pages() -> int:
    """Return the number of pages of the PDF."""
    return len(re.findall(rb"/Type\s*/Page\b", PDF.read_bytes()))


def _list(rows: list[Row]) -> str:
    items = (
        f"<div><dt>{escape(_unbroken(row.says))}</dt><dd>{escape(row.what)}</dd></div>"
        for row in rows
    )
    return "\n".join(["<dl>", *items, "</dl>"])


def _unbroken(says: str) -> str:
    """Return a number that no line break parts from its unit; lists break after commas."""
    return re.sub("(?<!,) ", "\u00a0", says)


if __name__ == "__main__":
    main()
