"""Seconds of a region on all ranks: of a run, or of its replay on a virtual clock."""


def timed(world, name, step):
    """Call `step()` in a region of this name, which all ranks enter together."""
    world.barrier()
    with world.region(name):
        step()


def seconds_of(timelines, name):
    """From the first rank that enters the latest region of this name to the last that leaves it."""
    spans = [
        [each for each in timeline.regions if each.name == name][-1:] for timeline in timelines
    ]
    found = [region for of_rank in spans for region in of_rank]
    return max(each.end_s for each in found) - min(each.start_s for each in found)
