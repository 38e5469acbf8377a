"""Pictures of real runs that move: played, paused and stepped by buttons and keys.

    from labkit.notebook import moving
    moving.ring(result)            # the chunks of a ring all-reduce, step by step

Each returns a Moving: the last line of a cell shows it. steps.py reads the steps from a run;
player.mjs plays them, and each picture has a module of its own, such as ring.mjs. The modules also
work on a plain web page: `player(element, data, ring)`.
"""

from typing import TYPE_CHECKING

from labkit.lazy import lazy

if TYPE_CHECKING:
    from labkit.notebook.moving.pictures import ring
    from labkit.notebook.moving.widget import Moving

__getattr__, __dir__, __all__ = lazy(__name__)
