"""Turn Markdown of cards and reports into HTML. HTML tags in the Markdown are escaped."""

from functools import cache
from html import escape

from markdown_it import MarkdownIt

from labkit.interview.cards.card import FollowUp


def html_of(markdown: str) -> str:
    """Return the HTML of paragraphs, lists, tables and code."""
    return str(_reader().render(markdown))


def follow_up_html(asked: FollowUp) -> str:
    """Return the question; its answer and the points listened for, folded away."""
    if not asked.answer:
        return escape(asked.question)
    points = "".join(f"<li>{escape(each)}</li>" for each in asked.rubric)
    return (
        f"<details><summary>{escape(asked.question)}</summary>{html_of(asked.answer)}"
        f"<ol>{points}</ol></details>"
    )


@cache
def _reader() -> MarkdownIt:
    return MarkdownIt("commonmark", {"html": False}).enable("table")
