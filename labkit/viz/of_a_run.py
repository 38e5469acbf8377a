"""The timelines to draw, from whatever has some."""

from typing import Any

from labkit.comm.operation import Timeline


def timelines_of(run: Any) -> list[Timeline]:
    """By rank: of a Run, of the error of a failed run, or the list itself.

    Raises TypeError for anything else.
    """
    timelines = getattr(run, "timeline", run)
    is_list = isinstance(timelines, (list, tuple))
    if not is_list or not all(isinstance(each, Timeline) for each in timelines):
        raise TypeError(
            f"a {type(run).__name__} has no timelines to show; pass what labkit.run returned, the "
            "error that it raised, or a list of Timelines by rank"
        )
    return list(timelines)
