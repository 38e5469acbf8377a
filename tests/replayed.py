"""Seconds of a region on all ranks, and of a pipeline's step: of a run, or of its replay."""

from labkit import Link, Topology, replay, run
from labkit.pipeline import Costs, emulated_step, measured
from labkit.pipeline.executor import _REGIONS
from labkit.pipeline.simulation import Span

NO_LINKS = Link(1e18)
KINDS = {name: kind for kind, name in _REGIONS.items()}


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


def replayed_step(schedule, costs):
    """The Timing of a step that real ranks perform, with these costs; messages take no time."""
    free = Costs(forward=0, input_gradient=0, weight_gradient=0)
    ranks = schedule.num_ranks
    timelines = replay(
        run(emulated_step, ranks, (schedule, free)).timeline,
        Topology(hosts=1, ranks_per_host=ranks, fast=NO_LINKS),
        lambda rank, region: costs.of(KINDS[region.name], schedule.num_stages)[0],
    )
    spans = [
        [
            Span(op, region.start_s, region.end_s)
            for op, region in zip(row, timeline.regions[-len(row) :], strict=True)
        ]
        for row, timeline in zip(schedule.rows, timelines, strict=True)
    ]
    return measured(schedule, spans)
