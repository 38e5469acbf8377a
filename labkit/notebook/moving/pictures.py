"""Moving pictures, a function each: the run's steps in motion, and the whole run as a picture."""

from typing import Any

from labkit import viz
from labkit.notebook.moving.ring_steps import ring_data
from labkit.notebook.moving.widget import Moving
from labkit.viz.rings import RingWalk, ring_walk


def ring(run: Any, *, title: str = "") -> Moving:
    """Show which chunk is on which rank, step by step, and the messages of each step.

    run: a Run of one ring all-reduce on 2 to 8 ranks; who holds what comes from its journals.
    Raises what `viz.ring_steps` raises, and ValueError for more ranks.
    """
    walk = run if isinstance(run, RingWalk) else ring_walk(run)
    data = ring_data(walk, title)
    return Moving("ring", data, viz.ring_steps(walk, title=data["title"]))
