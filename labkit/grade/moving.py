"""Whether a launch whose time was up had come to a standstill, or was ended on its way.

Stacks, journals and records are taken one after another. Of ranks that stand still they say the
same. Ranks that go on are somewhere else each time: what the three say together was never true.
"""

from collections.abc import Iterator

from labkit.comm.operation import Timeline
from labkit.launch.errors import RunError, RunTimeout


def was_moving(failure: RunError, timeout_s: float) -> bool:
    """Whether ranks did anything that journals tell of in the last half of `timeout_s`.

    That they begin is such a thing, and they may never have done so. A deadlock is proved: there
    nothing moves that could change it.
    """
    if not isinstance(failure, RunTimeout):
        return False
    ended_s = max((timeline.end_s for timeline in failure.timeline), default=0.0)
    last_s = max((each for timeline in failure.timeline for each in _events(timeline)), default=0.0)
    return ended_s - last_s < timeout_s / 2


def _events(timeline: Timeline) -> Iterator[float]:
    """When the rank was told to go, and posted or completed something; seconds, in no order."""
    yield timeline.start_s
    for operation in timeline.operations:
        yield operation.posted_s
        if operation.done_s is not None:
            yield operation.done_s
    for region in timeline.regions:
        yield region.start_s
        if region.end_s is not None:
            yield region.end_s
