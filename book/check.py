"""Check the built site: `python -m book.check` prints what is wrong, and fails.

dead links      each link and anchor of each page leads somewhere, those inside outputs too
pictures        each has words for who does not see it
other hosts     no page loads anything from elsewhere; links to papers are fine
weight          a notebook's page with all that it loads, without pictures, compressed
"""

import gzip
import sys
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

from book.links import ROOT

SITE = ROOT / "build" / "book" / "html"
MOST_BYTES = 400_000
_HERE = "http://site/"
# Attributes with which a page loads something by itself.
_LOADS = {
    "script": "src",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "video": "src",
    "object": "data",
    "embed": "src",
}
_LOADED_LINKS = ("stylesheet", "icon", "preload", "modulepreload", "manifest")


class _Page(HTMLParser):
    """Collects a page's links, loaded files, anchors, and pictures without words."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = {"", "top"}
        self.wordless: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag == "img" and not given.get("alt", "").strip():
            self.wordless.append(given.get("src", "")[:80])
        if tag == "link" and set(given.get("rel", "").split()) & set(_LOADED_LINKS):
            self.loads.append(given["href"])
        if _LOADS.get(tag, "") in given:
            self.loads.append(given[_LOADS[tag]])


def faults(site: Path = SITE) -> Iterator[str]:
    """Yield each fault of the site in words, with its page."""
    for path in sorted(site.rglob("*.html")):
        name, page = path.relative_to(site).as_posix(), _read(path)
        for link in page.links:
            if reason := _dead(site, name, link):
                yield f"{name}: the link {link} is dead: {reason}"
        for each in page.loads:
            if not each.startswith("data:") and not urljoin(_HERE, each).startswith(_HERE):
                yield f"{name}: loads {each} from another host"
            elif not each.startswith("data:") and (reason := _dead(site, name, each)):
                yield f"{name}: loads {each}: {reason}"
        for source in page.wordless:
            yield f"{name}: the picture {source} has no alt text"
        if name.startswith("notebooks/") and (weight := first_visit_bytes(site, name)) > MOST_BYTES:
            yield f"{name}: a first visit takes {weight:,} bytes; it may take {MOST_BYTES:,}"


def first_visit_bytes(site: Path, name: str) -> int:
    """Return the compressed bytes of a page and its scripts and styles, without pictures."""
    page = _read(site / name)
    files = {urlsplit(urljoin(_HERE + name, each)).path for each in page.loads}
    loaded = [site / unquote(each.lstrip("/")) for each in files if each.endswith((".js", ".css"))]
    return sum(map(_compressed, [site / name, *loaded]))


def _dead(site: Path, name: str, link: str) -> str:
    """Return why a link leads nowhere; "" for one that leads somewhere, or to another host."""
    there = urlsplit(urljoin(_HERE + name, link))
    if there.netloc != "site":
        return ""
    path = site / unquote(there.path.lstrip("/"))
    if path.is_dir():
        path /= "index.html"
    if not path.is_file():
        return f"there is no {path.relative_to(site)}"
    if there.fragment and path.suffix == ".html":
        anchors = _read(path).anchors
        if not {there.fragment, unquote(there.fragment)} & anchors:
            return f"{path.relative_to(site)} has no place {there.fragment}"
    return ""


@cache
def _read(path: Path) -> _Page:
    page = _Page()
    page.feed(path.read_text("utf-8"))
    return page


@cache
def _compressed(path: Path) -> int:
    return len(gzip.compress(path.read_bytes(), 6))


def main() -> None:
    """Print the faults, and what the site weighs. Exits with 1 if there are any."""
    found = list(faults())
    for each in found:
        print(each)
    if found:
        sys.exit(f"make book: {len(found)} faults")
    pages = sorted(SITE.glob("notebooks/*.html"))
    if not pages:
        sys.exit(f"make book: there is no page in {SITE}")
    heaviest = max(first_visit_bytes(SITE, f"notebooks/{each.name}") for each in pages)
    size = sum(each.stat().st_size for each in SITE.rglob("*") if each.is_file())
    print(
        f"{len(list(SITE.rglob('*.html')))} pages, {size / 1e6:.1f} MB; no dead link. First visit "
        f"of the heaviest notebook: {heaviest / 1e3:.0f} kB without pictures."
    )


if __name__ == "__main__":
    main()
