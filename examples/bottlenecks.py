"""Why is it slow: what labkit.profile says about real GPU traces and about runs with a known fault.

    python examples/bottlenecks.py            5 runs of each fault, 50 healthy ones
    python examples/bottlenecks.py --quick    one of each, 3 healthy ones

- the breakdown of GPU traces beside what HTA 0.5 reports: within 3%, overlap within 0.5 points
- faults of 20% of a step, on DDP with 4 ranks: is the first finding the fault and its rank?
- the run without the fault, as the replay predicts it, beside a run that really has none

Exits with 1 where a GPU trace differs, or where the terms of a step do not add up to it. The rest
are measurements: they are printed and decide nothing.
"""

import argparse
import random
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import labkit
from labkit import inject, profile
from labkit.inject import Fault, NoisyNeighbour, Pauses, SlowLoader, SlowRank
from labkit.profile import Finding, Trace

TRACES = Path(__file__).parents[1] / "tests" / "data" / "traces"
# What HTA 0.5 reports: idle, compute, non-compute and total in us, overlap in percent.
HTA = {
    "sampled_rank-0": (321378, 106252, 172428, 600058, 11.81),
    "sampled_rank-1": (328671, 135548, 136455, 600674, 20.05),
    "two_gpus_rank-0": (338781, 75169, 21636, 435586, 14.31),
}
SHARE = 0.2
FAULT_S = SHARE * inject.STEP_S
WORLD_SIZE = 4
FAULTS: dict[str, Callable[[int, int], Fault]] = {
    "slow rank": lambda rank, seed: SlowRank(rank, SHARE),
    "noisy neighbour": lambda rank, seed: NoisyNeighbour(rank, SHARE, seed=seed),
    "pauses of one host": lambda rank, seed: Pauses(rank, FAULT_S / 2),
    "pauses of all hosts": lambda rank, seed: Pauses(None, FAULT_S / 2),
    "slow loader": lambda rank, seed: SlowLoader(None, FAULT_S),
    "one slow loader": lambda rank, seed: SlowLoader(rank, FAULT_S),
}


def gpu_traces() -> bool:
    """Print the figures of GPU traces beside HTA's; whether all agree."""
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
    return agrees


def recorded(*chosen: Fault) -> Trace:
    """The trace of a training on 4 ranks with these faults."""
    with tempfile.TemporaryDirectory() as folder:
        labkit.run(inject.timed_training, WORLD_SIZE, args=(folder, chosen))
        return profile.read(sorted(Path(folder).glob("rank*.json")))


def adds_up(trace: Trace) -> bool:
    """Whether each step's terms are the step."""
    steps = [step for steps in profile.breakdown(trace).values() for step in steps]
    return all(abs(sum(step.seconds.values()) - step.total) < 1e-9 for step in steps)


def place_of(fault: Fault, found: list[Finding]) -> str:
    """Whether the fault is the first finding, the second, or neither."""
    named = [(each.cause, each.rank) for each in found if each.is_fault]
    places = dict(zip(named, ("right", "second"), strict=False))
    return places.get(fault_of(fault), "wrong")


def fault_of(fault: Fault) -> tuple[str, int | None]:
    """What a finding should say."""
    return fault.cause, fault.rank


def table_of_faults(num_runs: int, healthy_s: float) -> bool:
    """Print what the diagnosis says of each fault; whether the steps' terms add up."""
    heading = f"{'right':>7}{'second':>8}{'wrong':>7}{'without it: predicted / real':>31}"
    print(f"\n{'fault of 20% of a step':<24}{heading}")
    is_right = True
    for name, make in FAULTS.items():
        places: Counter[str] = Counter()
        ratios = []
        for seed in range(num_runs):
            fault = make(random.Random(f"{name} {seed}").randrange(WORLD_SIZE), seed)
            trace = recorded(fault)
            is_right &= adds_up(trace)
            found = profile.diagnose(trace)
            places[place_of(fault, found)] += 1
            gains_s = [f.gain_s for f in found if (f.cause, f.rank) == fault_of(fault)]
            ratios += [(trace.seconds - gain_s) / healthy_s for gain_s in gains_s]
        spread = "-"
        if ratios:
            spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        print(
            f"{name:<24}{places['right']:>7}{places['second']:>8}{places['wrong']:>7}{spread:>31}"
        )
    return is_right


def main() -> int:
    """Print all tables; 1 where an exact fact is not so."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one run of each fault")
    quick = parser.parse_args().quick
    is_right = gpu_traces()

    healthy = [recorded() for _ in range(3 if quick else 50)]
    named = sum(profile.diagnose(trace)[0].is_fault for trace in healthy)
    healthy_s = statistics.median(trace.seconds for trace in healthy)
    print(f"\n{len(healthy)} healthy runs of {1e3 * healthy_s:.0f} ms: a fault is named in {named}")
    is_right &= all(adds_up(trace) for trace in healthy)

    is_right &= table_of_faults(1 if quick else 5, healthy_s)
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
