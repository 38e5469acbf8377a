"""Draw it: grids that a candidate fills on a whiteboard, checked by replaying them.

drawing.py has the form of a drawing and its ruling; messages.py who sends which chunk to whom in
each step; schedules.py what runs when; holdings.py who holds what.
"""

import difflib
import re
from functools import cache

from labkit import arguments
from labkit.interview.draw import holdings, messages, schedules
from labkit.interview.draw.drawing import Drawing, Ruling, UnknownDrawing, read_cells

__all__ = ["Drawing", "Ruling", "UnknownDrawing", "all_drawings", "get_drawing", "read_cells"]


@cache
def all_drawings() -> dict[str, Drawing]:
    """Return every drawing by its name."""
    every = [*holdings.drawings(), *messages.drawings(), *schedules.drawings()]
    return {each.name: each for each in every}


def get_drawing(name: str) -> Drawing:
    """Return a drawing. Raises UnknownDrawing, with near names; TypeError for no name."""
    arguments.instance("name", name, str, "name a drawing, such as 'ring-4'")
    plain, drawings = re.sub("[ _]", "-", name.strip().lower()), all_drawings()
    if plain in drawings:
        return drawings[plain]
    near = difflib.get_close_matches(plain, list(drawings), 5, 0.4) or list(drawings)[:5]
    raise UnknownDrawing(f"there is no drawing {name[:60]!r}; near it: {', '.join(near)}")
