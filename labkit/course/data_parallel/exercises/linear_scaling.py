"""Grade linear_scaling: batches, learning rates and numbers of steps of drawn setups."""

import math
import random
from fractions import Fraction
from typing import Any

from labkit.grade import grader as g
from labkit.large_batch import scaled_learning_rate, warmed_up

FUNCTIONS = ("global_batch", "learning_rate", "steps_per_epoch", "total_steps")


def cases(draw: g.Draw) -> list[g.Case]:
    """With and without accumulation and warmup, batches above and below the base."""
    rng, asked = draw.rng, []
    for its in (
        setup(rng, 3, 0),
        setup(rng, 1, rng.randrange(50, 500), start=0.0),
        setup(rng, rng.choice((2, 4, 8)), rng.randrange(50, 500)),
        setup(rng, 2, 1, per_rank=48, num_ranks=64),
        setup(rng, 2, 30, base_batch=512, per_rank=10, num_ranks=3, base_rate=0.1, start=0.001),
        setup(rng, 1, 10, base_batch=100, per_rank=48, num_ranks=16),
    ):
        batch, last = right(its, known="global_batch"), its["warmup_steps"]
        late, whole = last + rng.randrange(100, 9999), batch * rng.randrange(10, 90)
        # One more than a multiple of the batch, so large that floats do not have the quotient.
        large = batch * rng.randrange(10**16, 10**17) + 1
        numbers = {
            "learning_rate": sorted({0, 1, last // 2, last - 1, last, last + 1, late} - {-1}),
            "steps_per_epoch": [whole + rng.randrange(1, batch), whole, whole + 1, large],
            # 13,056 * 100 / 768 is 1,700. In floats 13,056 * (1 / 7.68) is a little more.
            "total_steps": [13_056, rng.randrange(10_000, 99_999), whole, large],
        }
        asked += [("global_batch", its)]
        asked += [(name, number, its) for name in numbers for number in numbers[name]]
    return [
        g.Case(", ".join(map(str, args)), *args, function=name, known=name)
        for name, *args in sorted(asked, key=lambda each: FUNCTIONS.index(each[0]))
    ]


def setup(rng: random.Random, num_accumulated: int, warmup_steps: int, **others: Any) -> Any:
    """Return a setup whose start is below the base rate."""
    base_rate = round(rng.choice((0.1, 0.05, 0.4, 3e-4)) * rng.uniform(0.9, 1.1), 6)
    return {
        "base_rate": base_rate,
        "base_batch": rng.choice((100, 128, 256)),
        "per_rank": rng.choice((12, 24, 48)),
        "num_ranks": rng.choice((6, 8, 24, 64)),
        "num_accumulated": num_accumulated,
        "warmup_steps": warmup_steps,
        "start": round(base_rate * rng.uniform(0.2, 0.6), 6),
        **others,
    }


def right(*args: Any, known: str) -> float:
    """Return the answer of the function `known`."""
    *number, its = args
    batch = its["per_rank"] * its["num_ranks"] * its["num_accumulated"]
    if known == "global_batch":
        return batch
    if known == "learning_rate":
        full = scaled_learning_rate(its["base_rate"], batch, its["base_batch"])
        return warmed_up(full, number[0], its["warmup_steps"], its["start"])
    base_batch = its["base_batch"] if known == "total_steps" else 1
    return math.ceil(Fraction(number[0] * base_batch, batch))


K, START = 'global_batch(setup) / setup["base_batch"]', 'setup["start"]'
SHARE = 'step / setup["warmup_steps"]'
LINE = f"{START} + (rate - {START}) * {SHARE}"
FLOOR = "num_samples // global_batch(setup)"
STEPS = f"-(-{FLOOR})"
FEWER = 'steps_per_epoch(base_steps * setup["base_batch"], setup)'
MISTAKES = [
    g.Mistake(
        "leaves a factor out of the batch",
        "The gradients of all ranks and of all accumulated passes are averaged for one step: the "
        "batch is per_rank * num_ranks * num_accumulated.",
        [g.patch(' * setup["num_accumulated"]', ""), g.patch(' * setup["num_ranks"]', "")],
    ),
    g.Mistake(
        "scales by something else than k",
        "k is the global batch divided by base_batch, not the number of ranks. It may be below "
        "1. With k times fewer steps, each step goes k times as far: the rate is "
        "base_rate * k. The square root of k is another rule, for Adam.",
        [
            g.patch(f" * {K}", ' * setup["num_ranks"]'),
            *g.patches(K, f"({K}) ** 0.5", f"max(1, {K})", "1"),
        ],
    ),
    g.Mistake(
        "warms up along another line",
        "The line goes from start to the full rate: start + (rate - start) * step / warmup_steps. "
        "start is the rate of step 0 as it is, for every batch.",
        g.patches(
            LINE,
            f"rate * {SHARE}",
            f"max({START}, rate * {SHARE})",
            LINE.replace(START, f"{START} * {K}"),
        ),
        hint=2,
    ),
    g.Mistake(
        "off by one step in the warmup",
        "The rate is start at step 0 and the full rate at step warmup_steps, not earlier and not "
        "later: the share of the way is step / warmup_steps.",
        g.patch(SHARE, '(step + 1) / setup["warmup_steps"]'),
        hint=3,
    ),
    g.Mistake(
        "rounds the steps another way",
        "The samples that are left over need one more step. If none are left over, n // batch is "
        "enough, and n // batch + 1 is one step too many. -(-n // batch) is right for both.",
        g.patches(STEPS, FLOOR, f"{FLOOR} + 1"),
        hint=3,
    ),
    g.Mistake(
        "does not make the steps fewer",
        "Each step sees k times as many samples, so the same data needs k times fewer steps.",
        g.patch(FEWER, "base_steps"),
    ),
    g.Mistake(
        "rounds up in floats",
        "1 / k is not exact in floats, so ceil(base_steps * (1 / k)) is one step too many now and "
        "then, and ceil(samples / batch) is wrong above 2**53. Divide whole numbers: "
        "-(-samples // batch).",
        [
            g.patch(STEPS, "int(-(-num_samples / global_batch(setup) // 1))"),
            g.patch(FEWER, f"int(-(-base_steps / ({K}) // 1))"),
            g.patch(FEWER, f"int(-(-base_steps * (1 / ({K})) // 1))"),
        ],
        hint=3,
    ),
    g.Mistake(
        "returns a float",
        "The number of steps is an int. // of two ints and math.ceil return one.",
        g.patch(f"return {STEPS}", f"return 1.0 * {STEPS}"),
        wrong=lambda s: type(s.y) is float and s.case.function != "learning_rate",
        hint=3,
    ),
]

GRADER = g.Questions(
    functions=FUNCTIONS,
    cases=cases,
    right=right,
    same=lambda got, right, case: (
        (type(got) is int or type(right) is float) and g.close(got, right)
    ),
    mistakes=MISTAKES,
    closed=("labkit.large_batch",),
    shown="you scale by the samples of a step, with ranks and accumulation, warm up from start to "
    "the full rate in exactly as many steps as asked, and see every sample",
)
