"""Draw it: grids that a candidate fills on a whiteboard, checked by replaying them.

drawing.py has the form of a drawing and its ruling; messages.py who sends which chunk to whom in
each step; schedules.py what runs when; holdings.py who holds what.
"""

from functools import cache

from labkit.interview.draw import holdings, messages, schedules
from labkit.interview.draw.drawing import Drawing, Ruling, UnknownDrawing, find, read_cells

__all__ = ["Drawing", "Ruling", "UnknownDrawing", "all_drawings", "get_drawing", "read_cells"]


@cache
def all_drawings() -> dict[str, Drawing]:
    """Return every drawing by its name."""
    every = [*holdings.drawings(), *messages.drawings(), *schedules.drawings()]
    return {each.name: each for each in every}


def get_drawing(name: str) -> Drawing:
    """Return a drawing. Raises UnknownDrawing, with near names."""
    return find(name, all_drawings())
