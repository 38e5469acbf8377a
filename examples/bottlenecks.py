"""Why is it slow: what labkit.profile says about real GPU traces and about runs with a known fault.

    python examples/bottlenecks.py            5 runs of each fault, 50 healthy ones: half an hour
    python examples/bottlenecks.py --quick    one run for each cause, and healthy ones
    python examples/bottlenecks.py --jobs 4   4 runs at once: for a machine with 16 cores

- the breakdown of GPU traces beside what HTA 0.5 reports: within 3%, overlap within 0.5 points
- four traces of a GPU, and what bounds them
- faults of 20% of a step on 4 ranks, by strategy: is the first finding the fault and its rank?
- the run without the fault, as the replay predicts it, beside runs that really have none
- how small a fault may be

Exits with 1 where a GPU trace differs, or where the terms of a step do not add up to it. The rest
are measurements: they are printed and decide nothing. Other programs on the same cores slow ranks
down as faults do, so it says where there were some.
"""

import argparse
import math
import multiprocessing
import os
import random
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path

from labkit import arguments, inject, profile
from labkit.inject import CATALOGUE
from labkit.launch.machine import usable_cores
from labkit.profile import Trace

TRACES = Path(__file__).parents[1] / "tests" / "data" / "traces"
# Reported by HTA 0.5: idle, compute, non-compute and total in us, overlap in percent.
HTA = {
    "sampled_rank-0": (321378, 106252, 172428, 600058, 11.81),
    "sampled_rank-1": (328671, 135548, 136455, 600674, 20.05),
    "two_gpus_rank-0": (338781, 75169, 21636, 435586, 14.31),
}
H200 = {
    "large_model": "compute",
    "small_model": "launch",
    "item_per_layer": "launch",
    "slow_loader": "input",
}
WORLD_SIZE = 4
STRATEGIES = tuple(inject.STRATEGIES)
SIZED = ("slow rank", "pauses of one host", "slow loader", "uneven shards")
# One for each cause.
QUICK = ("slow rank", "pauses of one host", "slow loader", "barrier per layer", "skewed router")
QUICK += ("tiny buckets", "one huge bucket", "slow link, tp")
_QUIET = 0.5
"""A load, in cores, below which runs take turns with nobody."""
SIZES = (0.025, 0.05, 0.1, 0.2, 0.4)


Setting = tuple[str, bool, bool]
"""Strategy, on_network, is_uneven: runs without a fault are compared within one."""


@dataclass(frozen=True)
class Job:
    """A run to be made."""

    name: str
    strategy: str
    seed: int
    share: float = 0.2
    has_fault: bool = True
    num_steps: int = 5

    @property
    def setting(self) -> Setting:
        """Settings that the run without the fault shares with it."""
        return self.strategy, CATALOGUE[self.name].on_network, CATALOGUE[self.name].is_uneven


@dataclass(frozen=True)
class Outcome:
    """Diagnosis of one run."""

    job: Job
    place: str
    """Rank of the fault among the findings: right (first), second, or wrong."""
    step_s: float
    without_s: float
    """A step without the fault, by the replay; nan where the fault is not found."""
    adds_up: bool


def outcome(job: Job) -> Outcome:
    """Make the run and look at it."""
    row = CATALOGUE[job.name]
    rank = random.Random(f"{job.name} {job.strategy} {job.seed}").randrange(WORLD_SIZE)
    faults = row.make(rank, job.share)
    present = faults if job.has_fault else faults[:-1]
    with redirect_stdout(None):  # notes on messages that came late
        trace = inject.timed_run(
            *present, strategy=job.strategy, on_network=row.on_network, num_steps=job.num_steps
        )
    found = [each for each in profile.diagnose(trace) if each.is_fault]
    named = [(each.cause, each.rank) for each in found]
    wanted = (faults[-1].cause, faults[-1].rank)
    if job.has_fault:
        place = dict(zip(named, ("right", "second"), strict=False)).get(wanted, "wrong")
    else:
        place = "wrong" if named else "right"
    gain_s = found[named.index(wanted)].gain_s if wanted in named else math.nan
    steps = len(trace.ranks[0].steps)
    return Outcome(
        job, place, trace.seconds / steps, (trace.seconds - gain_s) / steps, adds_up(trace)
    )


def adds_up(trace: Trace) -> bool:
    """Return whether each step's terms add up to the step."""
    steps = [step for steps in profile.breakdown(trace).values() for step in steps]
    return all(abs(sum(step.seconds.values()) - step.total) < 1e-9 for step in steps)


def outcomes(jobs: list[Job], at_once: int) -> Iterator[Outcome]:
    """Yield the outcomes of all runs, in order."""
    if at_once == 1:
        yield from map(outcome, jobs)
        return
    with ProcessPoolExecutor(at_once, multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(outcome, jobs)


def gpu_traces() -> bool:
    """Print the figures of GPU traces beside HTA's, and what bounds a GPU; whether all is right."""
    agrees = True
    headings = "".join(f"{each:>10}" for each in ("idle", "compute", "other", "total", "overlap"))
    print(f"{'GPU trace':<18}{'':>6}{headings}")
    for name, reported in HTA.items():
        found = next(iter(profile.figures(profile.read([TRACES / f"{name}.json.gz"])).values()))
        times = (found.idle, found.compute, found.non_compute, found.total)
        ours = (*(1e6 * each for each in times), 100 * found.overlap)
        for source, row in (("HTA", reported), ("ours", ours)):
            cells = "".join(f"{each:>10,.0f}" for each in row[:4])
            print(f"{name if source == 'HTA' else '':<18}{source:>6}{cells}{row[4]:>9.2f}%")
        agrees &= all(abs(a / b - 1) <= 0.03 for a, b in zip(ours[:4], reported, strict=False))
        agrees &= abs(ours[4] - reported[4]) <= 0.5
    print()
    for name, cause in H200.items():
        trace = profile.h200_trace(name)
        steps = profile.breakdown(trace)[0]
        step_ms = 1e3 * statistics.mean(step.total for step in steps)
        first = profile.diagnose(trace)[0]
        print(f"H200, {name:<16}{step_ms:>6.1f} ms per step, {first.share:.0%} of it {first.cause}")
        agrees &= first.cause == cause
    return agrees


def table_of_faults(found: list[Outcome], healthy_s: dict[Setting, float]) -> None:
    """Print what the diagnosis says of each fault, and what the replay without it."""
    print(f"\n{'fault of 20% of a step':<22}", end="")
    print("".join(f"{each:>8}" for each in STRATEGIES), f"{'without it: predicted / real':>31}")
    print("right/second/wrong")
    for name in dict.fromkeys(each.job.name for each in found):
        of_name = [each for each in found if each.job.name == name]
        cells = ""
        for strategy in STRATEGIES:
            places = Counter(each.place for each in of_name if each.job.strategy == strategy)
            counts = "/".join(str(places[place]) for place in ("right", "second", "wrong"))
            cells += f"{counts if places else '-':>8}"
        ratios = [each.without_s / healthy_s[each.job.setting] for each in of_name]
        print(f"{name:<22}{cells} {spread(ratios):>31}")
    rights = sum(each.place == "right" for each in found)
    print(f"{rights} of {len(found)} are right")


def table_of_sizes(found: list[Outcome]) -> None:
    """Print how many faults of each size are found first."""
    print(f"\n{'found first, by size':<22}" + "".join(f"{share:>8.1%}" for share in SIZES))
    rights: dict[tuple[str, float], list[bool]] = defaultdict(list)
    for each in found:
        rights[each.job.name, each.job.share].append(each.place == "right")
    for name in SIZED:
        cells = [f"{sum(rights[name, share])}/{len(rights[name, share])}" for share in SIZES]
        print(f"{name:<22}" + "".join(f"{cell:>8}" for cell in cells))


def note_on_load() -> str:
    """Say how other programs may disturb the tables, if they use the cores; asked before the
    runs."""
    load, cores = os.getloadavg()[0], f"{usable_cores():g} cores"
    if load < _QUIET:
        return ""
    return (
        f"\nOther programs use this machine's {cores}: load {load:.1f} before the runs.\n"
        "They slow ranks down, as a fault does, and the tables below count them as faults.\n"
        f"Run this again when the load is below {_QUIET}.\n"
    )


def spread(ratios: list[float]) -> str:
    """Median, least and most of those that are numbers."""
    known = [each for each in ratios if not math.isnan(each)]
    if not known:
        return "-"
    return f"{statistics.median(known):.2f} ({min(known):.2f} to {max(known):.2f})"


def main() -> int:
    """Print all tables; 1 where an exact fact is not so."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one run of each fault")
    parser.add_argument("--jobs", type=arguments.count, default=1, help="runs at once")
    chosen = parser.parse_args()
    note = note_on_load()
    is_right = gpu_traces()
    print(note, end="")

    num_runs, num_steps = (1, 3) if chosen.quick else (5, 5)
    names = QUICK if chosen.quick else tuple(CATALOGUE)
    pairs = [
        (name, strategy)
        for n, name in enumerate(names)
        for m, strategy in enumerate(CATALOGUE[name].strategies)
        if not chosen.quick
        or m == n % len(CATALOGUE[name].strategies)  # another one for each fault
    ]
    of_setting = {Job(*pair, 0).setting: pair for pair in pairs}
    jobs = [
        Job(*pair, seed, has_fault=False, num_steps=num_steps)
        for pair in of_setting.values()
        for seed in range(1 if chosen.quick else 6)
    ]
    healthy = list(outcomes(jobs, chosen.jobs))
    steps_s: dict[Setting, list[float]] = defaultdict(list)
    for each in healthy:
        steps_s[each.job.setting].append(each.step_s)
    healthy_s = {setting: statistics.median(each_s) for setting, each_s in steps_s.items()}
    named = sum(each.place == "wrong" for each in healthy)
    print(f"\n{len(healthy)} healthy runs: a fault is named in {named}")

    jobs = [Job(*pair, seed, num_steps=num_steps) for pair in pairs for seed in range(num_runs)]
    faulty = list(outcomes(jobs, chosen.jobs))
    table_of_faults(faulty, healthy_s)
    if not chosen.quick:
        jobs = [Job(n, "ddp", seed, share) for n in SIZED for share in SIZES for seed in range(3)]
        table_of_sizes(list(outcomes(jobs, chosen.jobs)))
    return 0 if is_right and all(each.adds_up for each in healthy + faulty) else 1


if __name__ == "__main__":
    sys.exit(main())
