"""Pictures of real runs that move: played, paused and stepped by buttons and keys.

    from labkit.notebook import moving
    moving.ring(result)                          # the chunks of a ring all-reduce
    moving.timeline(result, between)             # buckets under backward: posted and taken
    moving.schedule(simulate(plan(gpipe, 4, 8))) # a pipeline's step as it fills
    moving.experts(result, load)                 # tokens to experts and back
    moving.power_cuts(operations, found)         # a save that is cut after each operation
    moving.pages([moving.shot(...), ...], still) # the slots of a cache at several moments

Each returns a Moving: the last line of a cell shows it. time_steps.py and event_steps.py read
the steps from a run; player.mjs plays them, and each picture has a module of
its own, such as ring.mjs. The modules also work on a plain web page: `player(element, data, ring)`.
"""

from typing import TYPE_CHECKING

from labkit.lazy import lazy

if TYPE_CHECKING:
    from labkit.notebook.moving.event_steps import Shot, shot
    from labkit.notebook.moving.pictures import experts, pages, power_cuts, ring, schedule, timeline
    from labkit.notebook.moving.widget import Moving

__getattr__, __dir__, __all__ = lazy(__name__)
