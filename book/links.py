"""Find where a file of the repository is on the site, and rewrite links to there.

    links = Links()
    links.in_markdown("notebooks/01_x.ipynb", "[a](../exercises/y.py)")    [a](../exercises/y.md)
    links.in_html("notebooks/01_x.ipynb", '<a href="../exercises/y.py">')  ... ../exercises/y.html
    links.wanted     files that need a page because a link leads to them

A page is named by its source in build/book/stage: "exercises/y.md". Links to other hosts and links
inside a page stay as they are.
"""

import os
import re
from html import escape, unescape
from pathlib import Path
from urllib.parse import unquote

ROOT = Path(__file__).resolve().parents[1]

# Fenced blocks and code spans, whose text is no link.
_CODE = re.compile(
    r"(^ *(`{3,}|~{3,}).*?^ *\2`*[ \t]*$|(?<!`)(`+)(?!`).*?(?<!`)\3(?!`))", re.S | re.M
)
_TARGET = re.compile(r"(\]\()([^)\s]+)(?=[)\s])")
_ATTRIBUTE = re.compile(r"""(<(?:a|img)\b[^>]*?\b(?:href|src)=")([^"]+)(?=")""")
_ELSEWHERE = re.compile(r"[a-z]+:|//|#", re.I)


class DeadLink(ValueError):
    """A link leads to a file that is not in the repository."""


def slug(heading: str) -> str:
    """Return the anchor of a heading: GitHub's form, "the-ring-by-hand"."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def page_of(path: str) -> str:
    """Return the page of a file or folder, by their paths in the repository and in the stage."""
    if path in ("README.md", "."):
        return "index.md"
    if path in ("exercises", "solutions"):
        return "exercises/index.md"
    if path == "labkit/course":
        return "cards/index.md"
    if match := re.fullmatch(r"(?:exercises|solutions)/(\w+)\.py", path):
        return f"exercises/{match[1]}.md"
    if match := re.fullmatch(r"labkit/course/(\w+)/cards\.md", path):
        return f"cards/{match[1]}.md"
    if match := re.fullmatch(r"labkit/course/(\w+)/claims\.toml", path):
        return f"claims/{match[1]}.md"
    if path.endswith((".md", ".ipynb")):
        return path
    return f"code/{path}.md"


class Links:
    """Rewrites links, and remembers which files they lead to."""

    def __init__(self) -> None:
        """No file is wanted at first."""
        self.wanted: set[str] = set()

    def in_markdown(self, path: str, text: str, page: str = "") -> str:
        """Return Markdown with links to pages. path: the file that the text is from.

        page: the page that it is on; the file's own by default. DeadLink for a file that is not
        there.
        """
        page = page or page_of(path)
        parts, end = [], 0
        for code in _CODE.finditer(text):
            parts += [self._outside_code(path, page, text[end : code.start()]), code[0]]
            end = code.end()
        return "".join([*parts, self._outside_code(path, page, text[end:])])

    def in_html(self, path: str, html: str, page: str = "") -> str:
        """Return HTML with links to pages, as `in_markdown` does."""
        page = page or page_of(path)
        return _ATTRIBUTE.sub(
            lambda m: m[1] + escape(self._moved(path, page, unescape(m[2]), is_html=True)), html
        )

    def to(self, path: str, page: str) -> str:
        """Return a Markdown link's target on a page to a file of the repository."""
        return self._moved("here", page, path, is_html=False)

    def _outside_code(self, path: str, page: str, text: str) -> str:
        text = _TARGET.sub(lambda m: m[1] + self._moved(path, page, m[2], is_html=False), text)
        return self.in_html(path, text, page)

    def _moved(self, path: str, page: str, target: str, is_html: bool) -> str:
        if _ELSEWHERE.match(target):
            return target if not target.startswith("#") else f"#{slug(unquote(target[1:]))}"
        name, _, anchor = target.partition("#")
        found = os.path.normpath(os.path.join(os.path.dirname(path), unquote(name)))
        if not (ROOT / found).exists():
            raise DeadLink(f"{path} links to {target}: there is no {found}; mend the link")
        self.wanted.add(found)
        if found.endswith((".png", ".svg", ".pdf", ".html")):  # copied as they are
            return os.path.relpath(found, os.path.dirname(page) or ".")
        there = os.path.relpath(page_of(found), os.path.dirname(page) or ".")
        if is_html:
            there = re.sub(r"\.(md|ipynb)$", ".html", there)
        return f"{there}#{slug(unquote(anchor))}" if anchor else there
