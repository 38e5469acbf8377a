"""Turn Markdown of cards and reports into HTML. HTML tags in the Markdown are escaped."""

from functools import cache

from markdown_it import MarkdownIt


def html_of(markdown: str) -> str:
    """Return the HTML of paragraphs, lists, tables and code."""
    return str(_reader().render(markdown))


@cache
def _reader() -> MarkdownIt:
    return MarkdownIt("commonmark", {"html": False}).enable("table")
