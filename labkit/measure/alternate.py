"""Calls timed side by side on the ranks of one run: candidates take turns.

Times on a shared machine wander by tens of percent within a minute. Ratios of medians of calls that
took turns do not: what slows one candidate slows its neighbour too.
"""

import time
from collections.abc import Callable, Mapping, Sequence

import torch

from labkit import arguments
from labkit.comm import Group

Call = Callable[[], object]


def alternate(
    world: Group,
    candidates: Mapping[str, Call],
    repetitions: int,
    *,
    before: Call | None = None,
) -> dict[str, list[float]]:
    """Seconds of every call of each candidate on this rank; `slowest` joins those of all ranks.

    candidates: by name, the same on every rank. Each is called `repetitions` times and once more
    to warm up, after a barrier; who goes first moves on from round to round. before: called ahead
    of each barrier, outside of the time. TypeError and ValueError, before any call: no whole number
    of repetitions from 1, no functions to call.
    Wire: besides the calls a barrier for each.
    """
    allowed = "a median needs at least 1 call, better 11"
    repetitions = arguments.whole("repetitions", repetitions, allowed)
    _check_candidates(candidates)
    names = list(candidates)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for repetition in range(repetitions + 1):
        for turn in range(len(names)):
            name = names[(repetition + turn) % len(names)]
            if before is not None:
                before()
            world.barrier()
            began = time.perf_counter()
            candidates[name]()
            if world.device.type == "cuda":
                torch.cuda.synchronize(world.device)  # nccl returns before the bytes have moved
            if repetition:  # the first only warms up
                seconds[name].append(time.perf_counter() - began)
    return seconds


def slowest(by_rank: Sequence[Mapping[str, Sequence[float]]]) -> dict[str, list[float]]:
    """From what `alternate` returned on each rank: a call takes as long as its slowest rank.

    ValueError where there is no rank.
    """
    if not by_rank:
        raise ValueError(f"by_rank={by_rank!r}: give what alternate returned, of 1 rank or more")
    return {
        name: [max(times) for times in zip(*(seconds[name] for seconds in by_rank), strict=True)]
        for name in by_rank[0]
    }


def _check_candidates(candidates: object) -> None:
    if not isinstance(candidates, Mapping) or not candidates:
        raise TypeError(
            f"candidates={candidates!r:.80}: give functions by name, "
            "{'ring': lambda: ring_all_reduce(x, world)}"
        )
    for name, call in candidates.items():
        if not callable(call):
            raise TypeError(f"candidates[{name!r}]={call!r:.80}: give a function of no arguments")
