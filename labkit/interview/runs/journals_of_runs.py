"""What a rank did within one of its regions."""

from labkit.comm import Operation, Timeline


def region_of(timeline: Timeline, name: str) -> tuple[float, float]:
    """Start and end of the latest region of this name that has ended. KeyError if there is none."""
    for each in reversed(timeline.regions):
        if each.name == name and each.end_s is not None:
            return each.start_s, each.end_s
    names = ", ".join(sorted({each.name for each in timeline.regions}))
    raise KeyError(f"no region {name!r} has ended; there are {names or 'none'}")


def operations_in(timeline: Timeline, name: str) -> list[Operation]:
    """The operations that were begun in it."""
    start_s, end_s = region_of(timeline, name)
    return [each for each in timeline.operations if start_s <= each.posted_s <= end_s]


def sent_bytes_in(timeline: Timeline, name: str) -> int:
    """What they put on the wire, in all."""
    return sum(each.sent_bytes for each in operations_in(timeline, name))
