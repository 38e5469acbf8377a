"""Markdown of cards and reports as HTML. What looks like a tag in it stays text."""

from functools import cache

from markdown_it import MarkdownIt


def html_of(markdown: str) -> str:
    """Paragraphs, lists, tables, code."""
    return str(_reader().render(markdown))


@cache
def _reader() -> MarkdownIt:
    return MarkdownIt("commonmark", {"html": False}).enable("table")
