"""What to draw, from whatever has timelines: the timelines, and how ranks ended."""

from typing import Any

from labkit.comm.operation import Timeline
from labkit.doctor.stage import Stage

_OF_ITSELF = {Stage.RETURNED.value, Stage.RAISED.value, Stage.DIED.value}


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


def endings_of(run: Any) -> dict[int, str]:
    """Of the error of a failed run: `returned`, `raised` or `died`, by rank.

    Ranks that the run's end has ended are not in it. Of all else it is empty: the ranks of a Run
    have all returned.
    """
    positions = getattr(run, "positions", ())
    words = {rank: text.partition(" ")[0] for rank, text in enumerate(positions)}
    return {rank: word for rank, word in words.items() if word in _OF_ITSELF}
