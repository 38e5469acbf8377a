"""Moving pictures, a function each: the run's steps in motion, and the whole run as a picture."""

from collections.abc import Mapping, Sequence
from typing import Any

from labkit import viz
from labkit.checkpoint.power_cut import Operation
from labkit.moe.gpt_moe import ExpertLoad
from labkit.notebook.moving.event_steps import (
    Shot,
    cuts_data,
    experts_data,
    pages_data,
    ring_data,
)
from labkit.notebook.moving.time_steps import schedule_data, window_data
from labkit.notebook.moving.widget import Moving
from labkit.pipeline import Timing
from labkit.viz.rings import RingWalk, ring_walk


def ring(run: Any, *, title: str = "") -> Moving:
    """Show which chunk is on which rank, step by step, and the messages of each step.

    run: a Run of one ring all-reduce on 2 to 8 ranks; who holds what comes from its journals.
    Raises what `viz.ring_steps` raises, and ValueError for more ranks.
    """
    walk = run if isinstance(run, RingWalk) else ring_walk(run)
    data = ring_data(walk, title)
    return Moving("ring", data, viz.ring_steps(walk, title=data["title"]))


def schedule(timing: Timing, *, title: str = "") -> Moving:
    """Show a pipeline's step as it fills: each rank's operations up to a moment that moves.

    timing: of `pipeline.simulate`, with at most 8 ranks and 120 moments at which an operation
    begins or ends. Right: the microbatches that each rank holds. Raises ValueError for more.
    """
    still = viz.schedule(timing, title=title or None)
    return Moving("bars", schedule_data(timing, title or repr(still)[1:-1]), still)


def timeline(
    run: Any,
    between: tuple[float, float],
    *,
    rank: int = 0,
    kinds: tuple[str, ...] = (),
    title: str = "",
) -> Moving:
    """Show a window of a run as it passes: a step for each operation that `rank` posts or takes.

    kinds: of the operations that make a step, ("all_reduce",); all by default. Right: how many of
    them each rank has in flight. Raises what `viz.timeline` raises, and ValueError for a window
    without such an operation or with too many to follow.
    """
    still = viz.timeline(run, between=between, title=title or None)
    data = window_data(run, between, rank, kinds, title or f"rank {rank}, step by step")
    return Moving("bars", data, still)


def experts(run: Any, load: ExpertLoad, *, title: str = "tokens to experts and back") -> Moving:
    """Show rows of tokens on their way to the ranks of their experts, and back.

    run: a Run with an expert-parallel layer; how many rows go where comes from the journal of its
    first dispatch. load: of `labkit.moe.expert_load`, for the picture of the whole. Raises
    ValueError for a run without dispatch and for more than 8 ranks.
    """
    return Moving("experts", experts_data(run, title), viz.load_of_experts(load, title=title))


def power_cuts(
    operations: Sequence[Operation],
    found: Mapping[str, Sequence[int | str | None]],
    *,
    title: str = "a power cut after each operation, and what the next load gives",
) -> Moving:
    """Show a save operation by operation, and what a load gives if the power is cut just then.

    Takes what `viz.power_cuts` takes, and raises what it raises.
    """
    still = viz.power_cuts(operations, found, title=title)
    return Moving("cuts", cuts_data(operations, found, title), still)


def pages(shots: Sequence[Shot], still: viz.Picture, *, title: str = "pages of a cache") -> Moving:
    """Show the slots of a cache at several moments, each kept with `moving.shot`.

    still: the picture below, such as `viz.cache_map` of the last one. Raises ValueError for shots
    of unlike caches.
    """
    return Moving("pages", pages_data(shots, title), still)
