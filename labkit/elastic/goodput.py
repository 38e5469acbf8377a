"""Measure goodput: a real job, real failures at random moments, and where its time went.

    attempt 0   |step|step|write|step|step|wri X              X: rank 1 is killed
    attempt 1                                  |  down  |step|step|write|...
                                                         repeated: made before, and lost

Ranks are processes. A step is some waiting and an all-reduce, a save is a Checkpointer's on a slow
disk, and a failure is SIGKILL. A step that is killed counts as repeated, a write that is killed as
writing. Down is from a failure to the first step after it: detection, restart of all ranks, load.

The failure model: the ranks together fail once in `mtbf_s` on average, at random (a Poisson
process), while they run or load. They do not fail while they are down or being started. So a turn
of work T and write W, with restarts R, takes (M + R) (e^((T + W)/M) - 1) on average, M being
`mtbf_s`. If restarts failed and were repeated, the first factor would be M e^(R/M) (Daly 2006,
equation 13; calc.lost_share), which is 2% more at R = M/5.

How far formulas hold, by steps between saves, on two cores: steps of 7 ms, writes of 51, restarts
of 0.25 s, one failure a second. 20 jobs for each, with one or two failures in most:

                                       3      8     16     32     96
    measured                         23%    39%    46%    48%    44%
    exact (calc.lost_share, "daly")  22%    39%    50%    55%    49%
    first order                     none   none    25%    42%    33%

The first order counts failures in time that is lost already. The rest is mostly chance: 8 other
jobs with 32 steps between saves met 0.42 failures a second, which happens, and had 68%. The exact
formula gives 69% at that rate. So compare intervals with the same seeds.

Wire: an all-reduce of one number a step, and a Checkpointer's.
"""

from __future__ import annotations

import io
import os
import random
import signal
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from dataclasses import astuple, dataclass
from itertools import pairwise
from pathlib import Path
from threading import Timer
from typing import NamedTuple

import torch
from torch import nn

from labkit.checkpoint import Checkpointer, Disk
from labkit.checkpoint.disk import OpenFile
from labkit.comm import Group
from labkit.elastic.restarts import run
from labkit.launch import attempt

_NUM_RANKS, _MOST_FAILURES, _AT_ONCE = 2, 200, 4


class Failure(NamedTuple):
    """The end of an attempt: `rank` is killed so many seconds after it began."""

    after_s: float
    rank: int


class Event(NamedTuple):
    """The activity of an attempt from a moment on: "step", "write", "down", or "end"."""

    at_s: float
    attempt: int
    kind: str
    step: int


@dataclass(frozen=True)
class Goodput:
    """Seconds from a job's first step to the end of its last; the other four add up to wall_s."""

    wall_s: float
    useful_s: float
    """Steps that stayed."""
    writing_s: float
    repeated_s: float
    """Steps that a failure undid, or interrupted."""
    down_s: float
    num_steps: int
    """That stayed."""
    num_writes: int
    num_failures: int

    def __add__(self, other: Goodput) -> Goodput:
        """Both jobs as one: its share weighs each by its time."""
        return Goodput(*map(sum, zip(astuple(self), astuple(other), strict=True)))

    @property
    def share(self) -> float:
        """The goodput: the share of the time in which steps were made that stayed."""
        return self.useful_s / self.wall_s

    @property
    def means_s(self) -> tuple[float, float, float]:
        """Mean seconds of a step, a write and a restart, without those that never happened."""
        spent = (self.useful_s, self.writing_s, self.down_s)
        nums = (self.num_steps, self.num_writes, self.num_failures)
        step_s, write_s, restart_s = (x / max(1, num) for x, num in zip(spent, nums, strict=True))
        return step_s, write_s, restart_s


def draw_failures(mtbf_s: float, num_ranks: int, num: int, seed: int) -> list[Failure]:
    """The first failures of a Poisson process: exponential gaps, and ranks at random."""
    rng = random.Random(seed)
    return [Failure(rng.expovariate(1 / mtbf_s), rng.randrange(num_ranks)) for _ in range(num)]


def measure_goodput(
    intervals: Sequence[int],
    *,
    seeds: Sequence[int] = (0, 1, 2),
    num_steps: int = 96,
    step_s: float = 0.005,
    write_s: float = 0.03,
    mtbf_s: float = 1.0,
) -> dict[int, list[Goodput]]:
    """Run jobs of two ranks and `num_steps` steps through failures; by interval, one of each seed.

    intervals: steps between two saves. step_s, write_s: the least that they take; the results say
    what they took. Jobs with the same seed meet the same failures. Some jobs run at once: their
    ranks mostly wait.
    """

    def measure(interval: int, seed: int) -> Goodput:
        failures = draw_failures(mtbf_s, _NUM_RANKS, _MOST_FAILURES, seed)
        with tempfile.TemporaryDirectory() as name:
            arguments = (Path(name), failures, interval, num_steps, step_s, write_s)
            ended = run(_train, _NUM_RANKS, arguments, restarts=_MOST_FAILURES - 1, timeout=600)
            assert ended.run.values == [num_steps] * _NUM_RANKS, ended.run.values
            lines = [line.split() for line in (Path(name) / "events").read_text().splitlines()]
        return account([Event(float(t), int(a), kind, int(step)) for t, a, kind, step in lines])

    pairs = [(interval, seed) for interval in intervals for seed in seeds]
    with redirect_stdout(io.StringIO()), ThreadPoolExecutor(_AT_ONCE) as pool:
        found = list(pool.map(measure, *zip(*pairs, strict=True)))
    return {
        interval: [each for (other, _), each in zip(pairs, found, strict=True) if other == interval]
        for interval in intervals
    }


def account(events: Sequence[Event]) -> Goodput:
    """Give each span of time, from one event to the next, to what the job did in it."""
    useful = dict[int, float]()
    spent = {"write": 0.0, "repeated": 0.0, "down": 0.0}
    known = _of_the_job(events)
    for event, after in pairwise(known):
        seconds = after.at_s - event.at_s
        if event.kind != "step":
            spent["down" if event.kind == "end" else event.kind] += seconds
        else:
            # The earlier time of this step is lost: killed or undone.
            spent["repeated"] += useful.get(event.step, 0.0)
            useful[event.step] = seconds
    kinds = [event.kind for event in known]
    wall_s, useful_s = known[-1].at_s - known[0].at_s, sum(useful.values())
    seconds_of = (spent["write"], spent["repeated"], spent["down"])
    num_of = (len(useful), kinds.count("write"), kinds.count("down"))
    return Goodput(wall_s, useful_s, *seconds_of, *num_of)


def _of_the_job(events: Sequence[Event]) -> list[Event]:
    """From the first step on; a rank that lives on for a moment after a failure may still log."""
    known, ended = list[Event](), set[int]()
    for event in sorted(events):
        if event.attempt not in ended and (known or event.kind == "step"):
            known.append(event)
        if event.kind == "down":
            ended.add(event.attempt)
    return known


def _train(
    world: Group,
    folder: Path,
    failures: Sequence[Failure],
    interval: int,
    num_steps: int,
    step_s: float,
    write_s: float,
) -> int:
    """Count the steps in a model's parameters, so that a step lost or made twice shows."""

    def note(kind: str, step: int = 0) -> None:
        with (folder / "events").open("a") as file:
            print(time.monotonic(), attempt(), kind, step, file=file)

    def fail() -> None:
        note("down")
        os.kill(os.getpid(), signal.SIGKILL)

    failure = failures[attempt()]
    timer = Timer(failure.after_s, fail)
    if failure.rank == world.rank:
        timer.start()
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    disk = _SlowDisk(write_s)
    checkpointer = Checkpointer(folder / "saved", model, None, world, disk=disk, keep_last=1)
    loaded = checkpointer.load()
    for step in range(loaded.step if loaded else 0, num_steps):
        if world.rank == 0:
            note("step", step)
        time.sleep(step_s)
        ones = world.all_reduce(torch.ones(1))
        with torch.no_grad():
            model.weight += ones / world.size
        if (step + 1) % interval == 0:
            if world.rank == 0:
                note("write")
            checkpointer.save(step + 1)
    timer.cancel()
    if world.rank == 0:
        note("end")
    return round(model.weight.item())


class _SlowDisk(Disk):
    """A rank's file takes so long. Nothing is synced, since no failure is a power cut."""

    def __init__(self, write_s: float) -> None:
        self._write_s = write_s

    def sync(self, file: OpenFile) -> None:
        """Wait, once in a save."""
        if file.path.suffix == ".safetensors":
            time.sleep(self._write_s)

    def sync_folder(self, path: Path) -> None:
        """Nothing."""
