"""Something that a cell shows: as HTML in a notebook, as plain text everywhere else.

Both forms are compared when notebooks are tested, so both depend only on what is shown.
"""

from html import escape
from typing import Any

# Notebook themes define these; the fallbacks are for pages that don't (GitHub, nbconvert).
BORDER = "var(--jp-border-color2, #d0d0d0)"
FAINT = "var(--jp-ui-font-color2, #666)"
FRAME = "#0072b2"  # the bar of a box that judges nothing


class Shown:
    """A result whose `repr` is its text, and whose HTML is used where there is a browser."""

    def __init__(self, text: str, html: str | None = None) -> None:
        """html: the text itself, in a box, where none is given."""
        self.text = text
        self.html = html if html is not None else box(f"<div>{escape(text)}</div>")

    def __repr__(self) -> str:
        return self.text

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        return {"text/plain": self.text, "text/html": self.html}


def scrolled(content_html: str, label: str) -> str:
    """What is too wide for a narrow page is scrolled by itself, by keys too, and not all around it.

    label: what a screen reader calls it.
    """
    return (
        f'<div role="region" tabindex="0" aria-label="{escape(label)}" '
        f'style="overflow-x: auto; contain: inline-size;">{content_html}</div>'
    )


def box(content_html: str, colour: str = FRAME) -> str:
    """A paragraph set off by a coloured bar on its left."""
    return (
        f'<div style="border-left: 4px solid {colour}; padding: 4px 12px; margin: 4px 0; '
        f'max-width: 46em;">{content_html}</div>'
    )
