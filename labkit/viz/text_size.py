"""How much room words take, before they are drawn."""

from functools import cache

from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path

_LINE = 1.2  # height of a line, of the type size


@cache
def text_inches(text: str, points: float, weight: str = "normal") -> tuple[float, float]:
    """Width and height of one or more lines of text."""
    font = FontProperties(size=points, weight=weight)
    lines = text.split("\n")
    widths = [text_to_path.get_text_width_height_descent(line, font, False)[0] for line in lines]
    return max(widths) / 72, len(lines) * _LINE * points / 72
