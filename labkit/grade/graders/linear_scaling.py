"""Grade linear_scaling: batches, learning rates and numbers of steps of drawn setups."""

import math
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from labkit.grade.grader import Case, Draw, Mistake, Outcome, Questions, close, patch
from labkit.large_batch import scaled_learning_rate, warmed_up

Setup = Mapping[str, Any]
Formula = Callable[..., Any]
FUNCTIONS = BATCH, RATE, EPOCH, TOTAL = (
    "global_batch",
    "learning_rate",
    "steps_per_epoch",
    "total_steps",
)


def cases(draw: Draw) -> Iterator[Case]:
    """With and without accumulation and warmup, batches above and below the base."""
    rng = draw.rng
    setups = [
        setup(rng, 1, 0),
        setup(rng, rng.choice((2, 3, 5)), 0),
        setup(rng, 1, rng.randrange(50, 500), start=0.0),
        setup(rng, rng.choice((2, 4, 8)), rng.randrange(50, 500)),
        setup(rng, 3, 5),
        setup(rng, 2, 1, per_rank=48, num_ranks=64),
        setup(rng, 2, 30, base_batch=512, per_rank=10, num_ranks=3, base_rate=0.1, start=0.001),
        setup(rng, 1, 10, base_batch=100, per_rank=48, num_ranks=16),
    ]
    for its in setups:
        yield case(BATCH, "", its)
    for its in setups:
        last = its["warmup_steps"]
        asked = {0, 1, last // 2, last - 1, last, last + 1, last + rng.randrange(100, 9999)}
        for step in sorted(asked - {-1}):
            yield case(RATE, f"step {step}; ", its, step)
    for its in setups:
        batch = global_batch(its)
        whole = batch * rng.randrange(10, 90)
        for num in (
            whole + rng.randrange(1, batch),
            whole,
            whole + 1,
            rounded_by_floats(batch, rng),
        ):
            yield case(EPOCH, f"{num:,} samples; ", its, num)
    for its in setups:
        # 13,056 * 100 / 768 is 1,700. In floats 13,056 * (1 / 7.68) is a little more.
        for num in (
            13_056,
            rng.randrange(10_000, 99_999),
            batch * rng.randrange(10, 99),
            rounded_by_floats(batch, rng),
        ):
            yield case(TOTAL, f"{num:,} base steps; ", its, num)


def rounded_by_floats(batch: int, rng: random.Random) -> int:
    """One more than a multiple of the batch, so large that floats do not have the quotient."""
    return batch * rng.randrange(10**16, 10**17) + 1


def setup(rng: random.Random, num_accumulated: int, warmup_steps: int, **others: Any) -> Setup:
    """A setup whose start is below the base rate."""
    base_rate = rng.choice((0.1, 0.05, 0.4, 3e-4)) * rng.uniform(0.9, 1.1)
    return {
        "base_rate": base_rate,
        "base_batch": rng.choice((100, 128, 256)),
        "per_rank": rng.choice((12, 24, 48)),
        "num_ranks": rng.choice((6, 8, 24, 64)),
        "num_accumulated": num_accumulated,
        "warmup_steps": warmup_steps,
        "start": base_rate * rng.uniform(0.2, 0.6),
        **others,
    }


def case(function: str, asked: str, its: Setup, *number: int) -> Case:
    """One question about a setup."""
    passes = (
        f"{its['per_rank']} samples x {its['num_ranks']} ranks x {its['num_accumulated']} passes"
    )
    others = [f"{k} {its[k]:g}" for k in ("base_batch", "base_rate", "warmup_steps", "start")]
    label = asked + ", ".join([passes, *others])
    return Case(label, *number, its, function=function, known=function)


def global_batch(its: Setup) -> int:
    """Samples of one step."""
    return math.prod(its[each] for each in ("per_rank", "num_ranks", "num_accumulated"))


def right(*args: Any, known: str) -> float:
    """The answer of the function `known`."""
    *number, its = args
    batch = global_batch(its)
    if known == BATCH:
        return batch
    if known == RATE:
        full = scaled_learning_rate(its["base_rate"], batch, its["base_batch"])
        return warmed_up(full, number[0], its["warmup_steps"], its["start"])
    samples = number[0] * (its["base_batch"] if known == TOTAL else 1)
    return samples // batch + bool(samples % batch)


def same(got: Any, right: Any, case: Case | None = None) -> bool:
    """A whole number exactly, as an int; a rate to nine digits."""
    return close(got, right) if type(right) is float else type(got) is int and got == right


def scaled(k: Callable[[Setup], float]) -> Formula:
    """A formula of learning_rate: base_rate times another k, and a right warmup."""
    return lambda step, its: right(
        step, {**its, "base_rate": its["base_rate"] * k(its) / right_k(its)}, known=RATE
    )


def right_k(its: Setup) -> float:
    """The batch, in base batches."""
    return global_batch(its) / float(its["base_batch"])


def warming(rate: Callable[[float, float, float], float]) -> Formula:
    """A formula of learning_rate: rate(start, full, step / warmup_steps) during the warmup."""

    def formula(step: int, its: Setup) -> float:
        full, num = its["base_rate"] * right_k(its), its["warmup_steps"]
        return rate(its["start"], full, step / num) if step < num else full

    return formula


def shared(share: Callable[[int, int], float]) -> Formula:
    """A formula of learning_rate: share(step, warmup_steps) of the way from start, at most 1."""
    return lambda step, its: (
        its["start"]
        + min(1, share(step, its["warmup_steps"]))
        * (its["base_rate"] * right_k(its) - its["start"])
    )


def rounded(rule: Callable[[int, int], float]) -> list[Formula]:
    """Formulas of steps_per_epoch and total_steps: rule(samples, batch)."""
    return [
        lambda number, its: rule(number, global_batch(its)),
        lambda number, its: rule(number * its["base_batch"], global_batch(its)),
    ]


LINE = 'setup["start"] + (rate - setup["start"]) * step / setup["warmup_steps"]'

MISTAKES = [
    Mistake(
        "forgets the accumulation",
        "The gradients of all accumulated passes are averaged for one step: the batch is "
        "per_rank * num_ranks * num_accumulated.",
        function=BATCH,
        formula=lambda its: its["per_rank"] * its["num_ranks"],
        made_by=patch(' * setup["num_accumulated"]', ""),
    ),
    Mistake(
        "forgets the other ranks",
        "Gradients are averaged over all ranks, so a step has the samples of all ranks.",
        function=BATCH,
        formula=[
            lambda its: its["per_rank"] * its["num_accumulated"],
            lambda its: its["per_rank"],
        ],
        made_by=patch(' * setup["num_ranks"]', ""),
    ),
    Mistake(
        "scales by the ranks, not by the batch",
        "k is the global batch divided by base_batch. That is the number of ranks only if "
        "per_rank * num_accumulated is base_batch.",
        hint=3,
        function=RATE,
        formula=[
            scaled(lambda its: its["num_ranks"]),
            scaled(lambda its: its["num_ranks"] * its["num_accumulated"]),
        ],
        made_by=patch('global_batch(setup) / setup["base_batch"]', 'setup["num_ranks"]'),
    ),
    Mistake(
        "scales with another function of k",
        "k times the batch has k times fewer steps, so each step goes k times as far: the rate is "
        "base_rate * k, for any k, also below 1. The square root is a rule for Adam.",
        function=RATE,
        formula=[
            scaled(lambda its: math.sqrt(right_k(its))),
            scaled(lambda its: max(1, right_k(its))),
            scaled(lambda its: global_batch(its) // its["base_batch"]),
            scaled(lambda its: 1 / right_k(its)),
            scaled(lambda its: 1),
        ],
        made_by=patch(
            'global_batch(setup) / setup["base_batch"]',
            '(global_batch(setup) / setup["base_batch"]) ** 0.5',
        ),
    ),
    Mistake(
        "divides by zero where there is no warmup",
        "warmup_steps may be 0: then the full rate counts from step 0 on. Compare step with it "
        "before you divide.",
        hint=3,
        outcome=Outcome.CRASHED,
        seen=lambda s: "ZeroDivisionError" in s.error,
        made_by=patch('step >= setup["warmup_steps"]', 'step > setup["warmup_steps"]'),
    ),
    Mistake(
        "warms up from zero",
        "The line goes from start to the full rate: start + (rate - start) * step / warmup_steps.",
        hint=2,
        function=RATE,
        formula=[
            warming(lambda start, full, share: full * share),
            warming(lambda start, full, share: max(start, full * share)),
        ],
        made_by=patch(LINE, 'rate * step / setup["warmup_steps"]'),
    ),
    Mistake(
        "adds start to the line",
        "start + rate * step / warmup_steps ends above the full rate. What grows is the "
        "difference, (rate - start) * step / warmup_steps.",
        hint=2,
        function=RATE,
        formula=[
            warming(lambda start, full, share: start + full * share),
            warming(lambda start, full, share: min(full, start + full * share)),
        ],
        made_by=patch('(rate - setup["start"]) * step', "rate * step"),
    ),
    Mistake(
        "scales start, too",
        "start is the rate of step 0 as it is, for every batch.",
        hint=3,
        function=RATE,
        formula=lambda step, its: right(
            step, {**its, "start": its["start"] * right_k(its)}, known=RATE
        ),
        made_by=patch(
            LINE,
            'rate * (setup["start"] / setup["base_rate"] * (1 - step / setup["warmup_steps"])\n'
            '                   + step / setup["warmup_steps"])',
        ),
    ),
    Mistake(
        "off by one step in the warmup",
        "The rate is start at step 0 and the full rate at step warmup_steps, not earlier and not "
        "later: the share of the way is step / warmup_steps, in a straight line.",
        hint=3,
        function=RATE,
        formula=[
            shared(lambda i, n: (i + 1) / max(n, 1)),
            shared(lambda i, n: i / (n + 1)),
            shared(lambda i, n: (i + 1) / (n + 1)),
            shared(lambda i, n: i / (n + 1) if i < n else 1),
            shared(lambda i, n: (i + 1) / (n + 1) if i < n else 1),
            shared(lambda i, n: i / (n - 1) if i < n - 1 else 1),
            warming(lambda start, full, share: start * (full / start) ** share),
        ],
        made_by=patch(" * step / setup", " * (step + 1) / setup"),
    ),
    Mistake(
        "drops the last samples",
        "Rounded down, or to the nearest number, the samples that are left over are never seen. "
        "They need one more step.",
        hint=3,
        formula=[
            *rounded(lambda samples, batch: samples // batch),
            *rounded(lambda samples, batch: round(samples / batch)),
        ],
        made_by=patch(
            "-(-num_samples // global_batch(setup))", "num_samples // global_batch(setup)"
        ),
    ),
    Mistake(
        "one step too many if nothing is left over",
        "n // batch + 1 is rounded up only if there is a remainder. -(-n // batch) always is.",
        hint=3,
        formula=rounded(lambda samples, batch: samples // batch + 1),
        made_by=patch(
            "-(-num_samples // global_batch(setup))", "num_samples // global_batch(setup) + 1"
        ),
    ),
    Mistake(
        "does not make the steps fewer",
        "Each step sees k times as many samples, so the same data needs k times fewer steps.",
        function=TOTAL,
        formula=[
            lambda base_steps, its: base_steps,
            lambda base_steps, its: base_steps * global_batch(its) // its["base_batch"],
            lambda base_steps, its: -(-base_steps * global_batch(its) // its["base_batch"]),
        ],
        made_by=patch('steps_per_epoch(base_steps * setup["base_batch"], setup)', "base_steps"),
    ),
    Mistake(
        "rounds up in floats",
        "1 / k is not exact in floats, so ceil(base_steps * (1 / k)) is one step too many now and "
        "then, and ceil(samples / batch) is wrong above 2**53. Divide whole numbers: "
        "-(-samples // batch).",
        hint=3,
        formula=[
            lambda steps, its: math.ceil(steps * (1 / (global_batch(its) / its["base_batch"]))),
            lambda steps, its: math.ceil(steps * (its["base_batch"] / global_batch(its))),
            lambda steps, its: math.ceil(steps / (global_batch(its) / its["base_batch"])),
            *rounded(lambda samples, batch: math.ceil(samples / batch)),
            *rounded(lambda samples, batch: math.ceil(samples * (1 / batch))),
            *rounded(lambda samples, batch: int(samples / batch + 0.999)),
            *rounded(lambda samples, batch: int(samples / batch + 0.99)),
        ],
        made_by=patch(
            'return steps_per_epoch(base_steps * setup["base_batch"], setup)',
            'steps = base_steps * (setup["base_batch"] / global_batch(setup))\n'
            "    return int(steps) + (steps > int(steps))",
        ),
    ),
    Mistake(
        "returns a float",
        "The number of steps is an int. // of two ints and math.ceil return one.",
        hint=3,
        seen=lambda s: type(s.y) is float and s.case.function != RATE,
        made_by=patch("return -(-num_samples", "return 1.0 * -(-num_samples"),
    ),
]

GRADER = Questions(
    name="linear_scaling",
    functions=FUNCTIONS,
    cases=cases,
    right=right,
    same=same,
    mistakes=MISTAKES,
    closed=("labkit.large_batch",),
    shown="you scale by the samples of a step, with ranks and accumulation, warm up from start to "
    "the full rate in exactly as many steps as asked, and see every sample",
)
