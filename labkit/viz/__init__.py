"""Pictures of a run, and a trace of it for Perfetto.

    from labkit import viz
    viz.timeline(result)                             # who computed, who waited, what was in flight
    viz.moves({"all_reduce": result.values})         # what moves where, from the tensors themselves
    viz.ring_steps(states)                           # a ring, step by step
    viz.chrome_trace.write(result, "trace.json")     # no matplotlib needed for this one

Names load when first used: a machine without matplotlib can still write traces.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from labkit.viz import chrome_trace
    from labkit.viz.movement import moves
    from labkit.viz.picture import Picture
    from labkit.viz.ring_picture import ring_steps
    from labkit.viz.swimlanes import timeline
    from labkit.viz.tags import tagged

# The modules are named differently from their functions: importing labkit.viz.x sets the name
# x on this package, and would replace a function of that name by the module.
_HOME = {
    "Picture": "labkit.viz.picture",
    "moves": "labkit.viz.movement",
    "ring_steps": "labkit.viz.ring_picture",
    "tagged": "labkit.viz.tags",
    "timeline": "labkit.viz.swimlanes",
}

__all__ = ["Picture", "chrome_trace", "moves", "ring_steps", "tagged", "timeline"]


def __getattr__(name: str) -> Any:
    if name == "chrome_trace":
        return importlib.import_module("labkit.viz.chrome_trace")
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'labkit.viz' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
