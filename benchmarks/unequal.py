"""Ranks of unequal speed and memory: equal shares beside shares by speed, in one run.

Written down before measuring:

    speed      rank 3 of 4 takes three times as long for a row; layers wait as a GPU would compute
    rows       40 in a batch: equal shares take 30 row times, the best whole shares 12
    asked      the ratio of the steps, equal over balanced: 2.5 without any other cost
    drift      after half of the steps rank 3 recovers and rank 1 is slow
    pipeline   16 layers on 4 stages, 4 each or 5, 5, 5 and 1; simulated beside measured
    exact      the parameters with any shares equal the serial ones to 1e-12, and between replicas
               in every bit; bytes of unequal shards are those of labkit.calc
    fleet      Llama 3 8B on 8 H100 and 8 A100, from the planner

Times decide nothing. The exit status is 1 if an exact fact is not so.

    python benchmarks/unequal.py            about a minute
    python benchmarks/unequal.py --quick    a few steps of each
"""

import statistics
import sys
from collections.abc import Sequence

import torch
from measure import command_line, machine

from labkit import Group, calc, run
from labkit.data_parallel.unequal_shares import shares_by_speed, train
from labkit.inject import unequal_pipeline, unequal_training
from labkit.model import GPTConfig
from labkit.pipeline import Costs, balanced_stages, even_stages, one_f_one_b, plan, simulate
from labkit.train import TrainConfig, train_serial
from labkit.zero.unequal_shards import unequal_zero1_step

ROWS, FACTOR, EVERY = 40, (1.0, 1.0, 1.0, 3.0), 4
SHARES = ([7], [6, 1], [4, 0, 3], [3, 0, 3, 1])
CONFIG = GPTConfig(context=16, num_layers=1, hidden=16, num_heads=2)
SETTINGS = TrainConfig(
    num_sequences=7, num_steps=3, optimizer="sgd", learning_rate=0.1, dtype=torch.float64
)
TOLERANCE = 1e-12


def spread(milliseconds: Sequence[float]) -> str:
    """Return the median, and the least to the most."""
    return (
        f"{statistics.median(milliseconds):6.1f} ms "
        f"({min(milliseconds):.1f} to {max(milliseconds):.1f})"
    )


def steps_of(every: int | None, num_steps: int) -> tuple[list[float], list[list[int]]]:
    """Return the milliseconds of the slowest rank, and the shares, by step."""
    phases = [(num_steps, {3: FACTOR[3]}), (num_steps, {1: FACTOR[3]})]
    by_rank = run(unequal_training, 4, (phases, every, ROWS), timeout=300).values
    milliseconds = [
        1e3 * max(seconds for seconds, _ in step) for step in zip(*by_rank, strict=True)
    ]
    return milliseconds, [shares for _, shares in by_rank[0]]


def training(num_rounds: int, num_steps: int) -> None:
    """Print steps with equal shares and balanced ones, in alternating runs."""
    found: dict[str, list[float]] = {"equal": [], "balanced": [], "drift": []}
    settled = 2 * EVERY  # steps until the shares fit the speeds
    for _ in range(num_rounds):
        equal, _ = steps_of(None, num_steps)
        balanced, history = steps_of(EVERY, num_steps)
        found["equal"] += equal
        found["balanced"] += balanced[settled:num_steps]
        found["drift"] += balanced[num_steps + settled :]
    best = shares_by_speed(ROWS, [1 / each for each in FACTOR])
    print(f"{ROWS} rows on 4 ranks, rank 3 takes {FACTOR[3]:g} times as long; {num_rounds} rounds")
    print(f"  equal shares                      {spread(found['equal'])}")
    print(f"  balanced every {EVERY}, settled         {spread(found['balanced'])}")
    print(f"  the same, rank 1 slow since then  {spread(found['drift'])}")
    ratio = statistics.median(found["equal"]) / statistics.median(found["balanced"])
    slowest = max(rows * each for rows, each in zip(best, FACTOR, strict=True))
    print(f"  equal over balanced {ratio:.2f}, without other costs {ROWS / 4 * 3 / slowest:.2f}")
    print(
        f"  last shares in each half {history[num_steps - 1]} {history[-1]}, best at first {best}"
    )


def pipeline(num_steps: int) -> None:
    """Print a step of 1F1B with an even cut and one by speed, simulated and measured."""
    cuts = {
        "even": even_stages(16, 4),
        "by speed": balanced_stages([1.0] * 16, 4, [1 / each for each in FACTOR]),
    }
    print("16 layers on 4 stages, 1F1B, 10 microbatches")
    medians, simulated = [], []
    for name, stages in cuts.items():
        layers = [len(each) for each in stages]
        passes = [count * each for count, each in zip(layers, FACTOR, strict=True)]
        costs = Costs(forward=passes, input_gradient=passes, weight_gradient=passes)
        simulated.append(simulate(plan(one_f_one_b, 4, 10), costs).makespan)
        steps = run(unequal_pipeline, 4, (layers, {3: FACTOR[3]}, num_steps), timeout=300).values[0]
        medians.append(statistics.median(steps))
        print(f"  {name:<9}{layers!s:<16}{spread([1e3 * each for each in steps])}")
    print(
        f"  even over by speed: measured {medians[0] / medians[1]:.2f}, "
        f"simulated {simulated[0] / simulated[1]:.2f}"
    )


class Descent:
    """An element-wise optimizer without states."""

    def step(self, weights: torch.Tensor, gradients: torch.Tensor) -> None:
        """Update in place."""
        weights -= 0.1 * gradients


def unequal_states(world: Group, shards: Sequence[int]) -> None:
    """Make one step of ZeRO-1."""
    unequal_zero1_step(torch.ones(sum(shards)), torch.ones(sum(shards)), Descent(), world, shards)


def exact_facts() -> list[str]:
    """Return what is not as it must be."""
    wrong = []
    serial = train_serial(CONFIG, SETTINGS)
    print("a small GPT on 7 sequences against one process, float64")
    for shares in SHARES:
        ranks = run(train, len(shares), (CONFIG, SETTINGS, None, shares)).values
        off = max(each.largest_difference(serial) for each, _ in ranks)
        apart = max(each.largest_difference(ranks[0][0]) for each, _ in ranks)
        print(f"  shares {shares!s:<16}from serial {off:.0e}, between replicas {apart:g}")
        if not (off < TOLERANCE and apart == 0):
            wrong.append(f"shares {shares}: {off:.1e} from serial, {apart:.1e} between replicas")
    for shards in ([400, 200, 200], [500, 0, 300]):
        traffic = run(unequal_states, 3, (shards,)).traffic
        sent = [each.sent_bytes for each in traffic]
        formula = [float(calc.unequal_zero1_traffic_bytes(shards, rank)) for rank in range(3)]
        print(f"  ZeRO-1 with shards {shards!s:<16}sends {sent} bytes by rank")
        if sent != formula:
            wrong.append(f"shards {shards} send {sent} bytes, and calc says {formula}")
    return wrong


def fleet() -> None:
    """Print what the planner says of two kinds of GPU."""
    job = calc.plan.Job("llama3-8b", "megatron_bf16", calc.cluster("h100", 8), 64)
    layout = calc.Layout.parse("dp=16 zero=2")
    print("8 H100 and 8 A100, Llama 3 8B, 64 sequences: the planner")
    for each in calc.plan.mixed_fleet(job, [calc.cluster("a100", 8)], layout):
        print(
            f"  {each.way:<17}{each.step!s:>7}{each.tokens_per_s:>10,.0f} tokens/s, "
            f"${each.dollars_per_million_tokens:.3f} a million"
        )


def main() -> None:
    """Print all tables; exit with 1 if an exact fact is not so."""
    parser = command_line(__doc__)
    parser.add_argument("--quick", action="store_true", help="a few steps of each")
    quick = parser.parse_args().quick
    print(machine())
    training(*((1, 12) if quick else (3, 24)))
    pipeline(3 if quick else 10)
    wrong = exact_facts()
    fleet()
    for each in wrong:
        print(f"WRONG: {each}")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
