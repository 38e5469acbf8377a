"""Setups of large-batch training, drawn for each check, and what is asked about them."""

import random
from dataclasses import dataclass, replace

from labkit.grade.answers import Question
from labkit.large_batch import scaled_learning_rate, warmed_up


@dataclass(frozen=True)
class Setup:
    """As in the exercise."""

    base_rate: float
    base_batch: int
    per_rank: int
    num_ranks: int
    num_accumulated: int
    warmup_steps: int
    start: float

    @property
    def batch(self) -> int:
        """Samples of one step of the optimizer."""
        return self.per_rank * self.num_ranks * self.num_accumulated

    @property
    def as_dict(self) -> dict[str, float]:
        """Plain data."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    def __str__(self) -> str:
        return (
            f"{self.per_rank} samples x {self.num_ranks} ranks x {self.num_accumulated}, "
            f"base_batch = {self.base_batch}, base_rate = {self.base_rate:g}, "
            f"warmup_steps = {self.warmup_steps}, start = {self.start:g}"
        )


@dataclass(frozen=True)
class Known:
    """The setup, the number that is asked about (a step, samples or steps), and what is right."""

    setup: Setup
    number: int
    right: float


def draw(rng: random.Random) -> list[Question[Known]]:
    """All that is asked: batches, rates, epochs and totals, the plainest setup first."""
    setups = _setups(rng)
    return [
        *[_batch(setup) for setup in setups],
        *[_rate(step, setup) for setup in setups for step in _steps(setup, rng)],
        *[_epoch(num, setup) for setup in setups for num in _samples(setup, rng)],
        *[_total(rng.randrange(10_000, 99_999), setup) for setup in setups],
        *[_total(rng.randrange(10, 99) * setup.batch, setup) for setup in setups],
    ]


def steps_for(num_samples: int, batch: int) -> int:
    """The least number of steps that see so many samples."""
    return num_samples // batch + bool(num_samples % batch)


def _setups(rng: random.Random) -> list[Setup]:
    """Without accumulation and warmup, with one of them, with both, and a batch below the base."""

    def setup(num_accumulated: int, warmup_steps: int, is_zero: bool = False) -> Setup:
        """start is below the base rate, so that it is nobody's mistake."""
        base_rate = rng.choice((0.1, 0.05, 0.4, 3e-4)) * rng.uniform(0.9, 1.1)
        return Setup(
            base_rate,
            base_batch=rng.choice((100, 128, 256)),
            per_rank=rng.choice((12, 24, 48)),
            num_ranks=rng.choice((6, 8, 24, 64)),
            num_accumulated=num_accumulated,
            warmup_steps=warmup_steps,
            start=0.0 if is_zero else base_rate * rng.uniform(0.2, 0.6),
        )

    small = Setup(0.1, 512, 10, 3, rng.choice((2, 5)), rng.randrange(20, 40), 0.001)
    return [
        setup(1, 0),
        setup(rng.choice((2, 3, 5)), 0),
        setup(1, rng.randrange(50, 500), is_zero=True),
        setup(rng.choice((2, 4, 8)), rng.randrange(50, 500)),
        setup(rng.choice((3, 6)), 5),
        # Large: one sample too many is a small part of a step, which sloppy rounding loses.
        replace(setup(2, 1), per_rank=48, num_ranks=64),
        small,
    ]


def _steps(setup: Setup, rng: random.Random) -> list[int]:
    """The ends of the warmup, and beyond."""
    last = setup.warmup_steps
    steps = {0, 1, last // 2, last - 1, last, last + 1, last + rng.randrange(100, 9_999)}
    return sorted(step for step in steps if step >= 0)


def _samples(setup: Setup, rng: random.Random) -> list[int]:
    """Sizes that the batch does not divide, one that it divides, and that of a text in tokens."""
    batch = setup.batch
    whole = batch * rng.randrange(10, 90)
    return [whole + rng.randrange(1, batch), whole, whole + 1, rng.randrange(10**12, 10**13)]


def _batch(setup: Setup) -> Question[Known]:
    return Question("global_batch", (setup.as_dict,), str(setup), Known(setup, 0, setup.batch))


def _rate(step: int, setup: Setup) -> Question[Known]:
    full = scaled_learning_rate(setup.base_rate, setup.batch, setup.base_batch)
    right = warmed_up(full, step, setup.warmup_steps, setup.start)
    known = Known(setup, step, right)
    return Question("learning_rate", (step, setup.as_dict), f"step {step}; {setup}", known)


def _epoch(num_samples: int, setup: Setup) -> Question[Known]:
    known = Known(setup, num_samples, steps_for(num_samples, setup.batch))
    label = f"{num_samples} samples; {setup}"
    return Question("steps_per_epoch", (num_samples, setup.as_dict), label, known)


def _total(base_steps: int, setup: Setup) -> Question[Known]:
    right = steps_for(base_steps * setup.base_batch, setup.batch)
    known = Known(setup, base_steps, right)
    label = f"{base_steps} steps of the base run; {setup}"
    return Question("total_steps", (base_steps, setup.as_dict), label, known)
