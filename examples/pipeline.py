"""Pipeline schedules: closed form, simulation and measurement, beside each other.

    python examples/pipeline.py            bubbles, microbatches in flight, memory
    python examples/pipeline.py -n 3       3 ranks instead of 2 and 4

- simulated against the closed form: every schedule, p to 8 and m to 32: the largest difference
- bubble and microbatches in flight of real steps on n ranks, whose operations take 40 ms each by
  sleeping: a rank that sleeps needs no core, so that 4 ranks run at once on 2 cores
- activations of a small GPT, 1F1B beside GPipe: the peak of each rank by labkit.memory.Meter, in
  units of what one microbatch keeps there
"""

import argparse
from collections.abc import Iterator
from functools import partial

import torch

import labkit
from labkit import calc
from labkit.memory import Meter
from labkit.model import GPTConfig
from labkit.pipeline import (
    Costs,
    Pipeline,
    PipelineGPT,
    Row,
    Schedule,
    Timing,
    emulated_step,
    gpipe,
    in_flight,
    interleaved,
    measured,
    naive,
    one_f_one_b,
    plan,
    simulate,
    token_loss,
    zero_bubble_h1,
    zero_bubble_v,
)

SCHEDULES: dict[str, Row] = {
    "naive": naive,
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "interleaved": partial(interleaved, virtual=2),
    "zb_h1": zero_bubble_h1,
    "zb_v": zero_bubble_v,
}
OPERATION_S = 0.04
NUM_MICROBATCHES = 8
CONFIG = GPTConfig(context=64, num_layers=6, hidden=64, vocab=64)


def closed_form(name: str, p: int, m: int) -> float:
    """Return the bubble's share of the total time. ValueError if the schedule or its formula is
    missing."""
    virtual = 2 if name == "interleaved" else 1
    return calc.bubble_fraction(p, m, name, virtual).value


def largest_difference(name: str) -> tuple[int, float]:
    """Over all p to 8 and m to 32: how many there are, and simulated minus closed form."""
    differences = []
    for p in range(1, 9):
        for m in range(1, 33):
            try:
                predicted = closed_form(name, p, m)
            except ValueError:
                continue
            bubble = simulate(plan(SCHEDULES[name], p, m)).bubble()
            differences.append(abs(bubble - predicted))
    return len(differences), max(differences)


def costs_of(name: str) -> Costs:
    """In seconds: a virtual stage has half the layers."""
    seconds = OPERATION_S / (2 if name in ("interleaved", "zb_v") else 1)
    return Costs(forward=seconds, input_gradient=seconds, weight_gradient=seconds)


def quickest(schedule: Schedule, costs: Costs) -> tuple[Timing, list[int]]:
    """Return the shorter of two measured steps, and what the ranks held in it.

    Others' work on this machine can only make a step longer.
    """
    of_ranks = labkit.run(emulated_step, schedule.num_ranks, (schedule, costs, 2)).values
    steps = list(zip(*of_ranks, strict=True))
    timings = [measured(schedule, [step.spans for step in each]) for each in steps]
    best = min(range(len(steps)), key=lambda number: timings[number].makespan)
    return timings[best], [step.in_flight for step in steps[best]]


def bubbles(num_ranks: int) -> Iterator[tuple[str, float, float, list[int], list[int]]]:
    """(schedule, simulated bubble, measured, simulated in flight, measured), one at a time."""
    for name, row in SCHEDULES.items():
        try:
            schedule = plan(row, num_ranks, NUM_MICROBATCHES)
        except ValueError as error:
            print(f"  {num_ranks:<7}{name:<13}none: {error}")
            continue
        timing, held = quickest(schedule, costs_of(name))
        simulated = simulate(schedule, costs_of(name)).bubble()
        yield name, simulated, timing.bubble(), in_flight(schedule), held


def activations(world: labkit.Group, row: Row) -> float:
    """The peak of a step's activations on this rank, in what one microbatch keeps there."""
    torch.manual_seed(0)  # the first stage and the last read the same tokens
    peaks = []
    for m in (1, NUM_MICROBATCHES):
        schedule = plan(row, world.size, m)
        model = PipelineGPT(CONFIG, schedule, world.rank)
        pipeline = Pipeline(schedule, model.stages, token_loss, world, tied=model.tied)
        tokens_BT = torch.randint(CONFIG.vocab, (2 * m, CONFIG.context))
        with Meter(model) as meter:
            pipeline.step(tokens_BT, tokens_BT)
        peaks.append(meter.usage.peak_of("activations"))
    return peaks[1] / peaks[0]


def main() -> None:
    """Print the three tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "-n",
        type=int,
        choices=range(1, CONFIG.num_layers + 1),
        action="append",
        help="ranks; 2 and 4",
    )
    rank_counts = parser.parse_args().n or (2, 4)
    print("simulated bubble - closed form, p to 8 and m to 32")
    for name in SCHEDULES:
        count, difference = largest_difference(name)
        print(f"  {name:<13}{count:>5} schedules, largest difference {difference:.1e}", flush=True)
    print(f"\nsteps of {NUM_MICROBATCHES} microbatches, {1e3 * OPERATION_S:.0f} ms an operation")
    print(f"  {'ranks':<7}{'schedule':<13}{'bubble: simulated':>18}{'measured':>10}", end="")
    print("   in flight by rank: simulated, measured")
    for num_ranks in rank_counts:
        for name, simulated, found, planned, held in bubbles(num_ranks):
            print(f"  {num_ranks:<7}{name:<13}{simulated:>18.1%}{found:>10.1%}", end="")
            print(f"   {planned} {held}", flush=True)
    print("\npeak activations by rank, in what one microbatch keeps: planned, measured")
    for num_ranks in rank_counts:
        for name in ("gpipe", "1f1b"):
            planned = in_flight(plan(SCHEDULES[name], num_ranks, NUM_MICROBATCHES))
            peaks = labkit.run(activations, num_ranks, (SCHEDULES[name],)).values
            shown = ", ".join(f"{peak:.2f}" for peak in peaks)
            print(f"  {num_ranks:<7}{name:<13}{planned} [{shown}]", flush=True)


if __name__ == "__main__":
    main()
