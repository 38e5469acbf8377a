"""Measure hangs and slow steps: what journals and traces show.

Four real ranks hang, or have a straggler. Terms of a step come from recorded traces of GPUs: one
H200, and a rank of 128 GPUs. The H200's traces are part of the package
(labkit/profile/h200_traces.py). The other one is in the repository, in tests/data/traces, so its
numbers are not proved beside an installed package.
"""

from collections import Counter
from statistics import mean

import torch

from labkit import Deadlock, Group, inject, profile
from labkit.comm import Timeline
from labkit.grade.workspace import find_packages_workspace
from labkit.interview.real_run import real_run, run
from labkit.profile import Terms, Trace


@real_run
def blocked() -> tuple[int, int]:
    """Return how many ranks block in an operation, and the number of ranks. Rank 1 has one batch
    less than the others."""
    return sum(map(_is_blocked, _hang())), len(_hang())


@real_run
def rank_that_left() -> int:
    """Return the rank whose last operation has ended, in the same run."""
    (left,) = (rank for rank, timeline in enumerate(_hang()) if not _is_blocked(timeline))
    return left


@real_run
def last_collective(rank: int) -> int:
    """Return the number, from 1, of a rank's last all-reduce in the same run."""
    return len(_hang()[rank].operations)


@real_run
def _hang() -> list[Timeline]:
    try:
        run(_one_batch_too_few, 4, stall=1)
    except Deadlock as error:
        return error.timeline
    raise RuntimeError("the run ended, and was meant to hang")


def _is_blocked(timeline: Timeline) -> bool:
    return timeline.operations[-1].done_s is None  # an operation without an end


def _one_batch_too_few(world: Group) -> None:
    for _ in range(3 if world.rank == 1 else 4):
        world.all_reduce(torch.ones(1000), "mean")


def straggler() -> int:
    """Return the rank that `labkit.profile` names in a training of four, whose rank 2 has half
    speed."""
    first = profile.diagnose(_slow_rank_2())[0]
    if first.cause != "straggler" or first.rank is None:
        raise RuntimeError(f"the diagnosis is {first}")
    return first.rank


def ranks_that_waited_for(rank: int) -> int:
    """Return how many ranks waited for this one longer than for any other, in the same run."""
    waited: dict[int, Counter[int]] = {}
    for own, steps in profile.breakdown(_slow_rank_2()).items():
        waited[own] = sum((Counter(each.waited_for) for each in steps), Counter())
    return sum(bool(by) and by.most_common(1)[0][0] == rank for by in waited.values())


def spread_of_steps() -> float:
    """Return the longest total of a rank's steps divided by the shortest, in the same run."""
    sums = [
        sum(each.total for each in steps) for steps in profile.breakdown(_slow_rank_2()).values()
    ]
    return max(sums) / min(sums)


@real_run
def _slow_rank_2() -> profile.Trace:
    """Record traces with PyTorch Profiler. Layers sleep instead of computing, rank 2 for twice as
    long."""
    return inject.timed_run(inject.SlowRank(rank=2, share=1.0))


def step_seconds(name: str, term: str = "") -> float:
    """Return the mean seconds of a step on one H200, or of one term of its breakdown.

    name: "large_model", "small_model", "item_per_layer" or "slow_loader".
    """
    return mean(
        each.seconds[term] if term else each.total for each in _steps(profile.h200_trace(name))
    )


def share_of_a_trace(name: str, term: str) -> float:
    """Return a term's share of all steps on one H200, 0 to 1."""
    return step_seconds(name, term) / step_seconds(name)


def cause(name: str) -> str:
    """Return the first cause in the diagnosis of this trace: "compute", "launch", "input"."""
    return profile.diagnose(profile.h200_trace(name))[0].cause


def of_128_gpus(what: str) -> float:
    """Return a number of the first step of rank 0 of 128 GPUs.

    what: "step" and "communication", in seconds; "exposed": communication while nothing is
    computed, in seconds; "overlap": the share of the communication that is hidden, 0 to 1.
    """
    file = find_packages_workspace().root / "tests" / "data" / "traces" / "sampled_rank-0.json.gz"
    step = _steps(profile.read([file]))[0]
    exposed = step.in_flight - step.hidden
    numbers = {"step": step.total, "communication": step.in_flight, "exposed": exposed}
    return {**numbers, "overlap": step.overlap}[what]


def _steps(trace: Trace) -> list[Terms]:
    (steps,) = profile.breakdown(trace).values()  # the steps of the only rank
    return steps
