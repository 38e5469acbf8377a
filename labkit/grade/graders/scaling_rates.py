"""Wrong ideas of linear scaling and warmup, and the learning rates that they lead to."""

import math
from collections.abc import Callable

from labkit.grade.graders.scaling_questions import Known, Setup
from labkit.grade.graders.scaling_steps import OTHER_BATCHES, Theory


def _rate(known: Known, factor: float) -> float:
    """With the full rate at `factor` times the base rate, and a right warmup."""
    setup, full = known.setup, known.setup.base_rate * factor
    if known.number >= setup.warmup_steps:
        return full
    return setup.start + (full - setup.start) * known.number / setup.warmup_steps


def _ramp(known: Known, share: Callable[[int, int], float]) -> float:
    """With the right full rate, and another share of the way to it: share(step, warmup_steps)."""
    setup = known.setup
    full = setup.base_rate * setup.batch / setup.base_batch
    return setup.start + (full - setup.start) * share(known.number, setup.warmup_steps)


def _during(known: Known, warming: Callable[[float, float, float], float]) -> float:
    """Another rate during the warmup: warming(start, full, step / warmup_steps)."""
    setup = known.setup
    full = setup.base_rate * setup.batch / setup.base_batch
    if known.number >= setup.warmup_steps:
        return full
    return warming(setup.start, full, known.number / setup.warmup_steps)


def _line(start: float, end: float, share: float) -> float:
    return start + (end - start) * share


_BY_RANKS = (
    "scales by the ranks, and not by the batch",
    "k is the global batch over base_batch. The number of ranks is that only if a rank's share is "
    "as large as the batch of the run that worked",
)
_SCALES: tuple[tuple[str, str, Callable[[Setup], float]], ...] = (
    (
        "scales with the square root",
        "k times the batch is k times fewer steps for as much data, so each goes k times as far. "
        "The square root keeps the noise of a step the same, and is used with Adam; it is not "
        "linear scaling",
        lambda setup: math.sqrt(setup.batch / setup.base_batch),
    ),
    (*_BY_RANKS, lambda setup: setup.num_ranks),
    (*_BY_RANKS, lambda setup: setup.num_ranks * setup.num_accumulated),
    (
        "does not scale",
        "the learning rate of base_batch, on k times fewer steps, goes 1/k of the way",
        lambda setup: 1.0,
    ),
    (
        "scales the other way",
        "a mean over more samples has less noise, so a step may go further, and not less far",
        lambda setup: setup.base_batch / setup.batch,
    ),
    (
        "never scales down",
        "linear scaling holds below base_batch as well: a smaller batch is a smaller rate",
        lambda setup: max(1.0, setup.batch / setup.base_batch),
    ),
)


def _scaled(factor: Callable[[Setup], float]) -> Callable[[Known], float]:
    return lambda known: _rate(known, factor(known.setup))


def _of_batch(batch: Callable[[Setup], int]) -> Callable[[Setup], float]:
    return lambda setup: batch(setup) / setup.base_batch


_OFF_BY_ONE = (
    "off by one at the end of the warmup",
    "the full rate is there at step warmup_steps, no earlier and no later, and start at step 0: "
    "the share of the way is step / warmup_steps",
)
RATES: tuple[Theory, ...] = (
    *(Theory(name, why, _scaled(_of_batch(batch))) for name, why, batch in OTHER_BATCHES),
    *(Theory(name, why, _scaled(factor)) for name, why, factor in _SCALES),
    Theory(
        "warms up from zero",
        "it is a line from 0, and start is where it begins",
        lambda known: _during(known, lambda start, full, share: full * share),
        3,
    ),
    Theory(
        "warms up from the base rate",
        "it is a line from base_rate, which is where the paper begins; here start says where",
        lambda known: _during(
            known, lambda start, full, share: _line(known.setup.base_rate, full, share)
        ),
        3,
    ),
    Theory(
        "scales start, too",
        "start is the rate of step 0 as it is, whatever the batch",
        lambda known: _during(
            known,
            lambda start, full, share: _line(full / known.setup.base_rate * start, full, share),
        ),
        3,
    ),
    Theory(
        "adds start to the line",
        "it begins at start and comes out above the full rate: what grows is the difference "
        "between the two, (rate - start) * step / warmup_steps",
        lambda known: _during(known, lambda start, full, share: start + full * share),
        3,
    ),
    Theory(
        "no warmup",
        "the first steps, whose gradients are large and change fast, are to be small",
        lambda known: _during(known, lambda start, full, share: full),
    ),
    Theory(
        "stays at start until the warmup is over",
        "that is a constant warmup, with a jump at its end, which the paper tries and leaves: "
        "the rate grows in every step",
        lambda known: _during(known, lambda start, full, share: start),
    ),
    Theory(*_OFF_BY_ONE, lambda known: _ramp(known, lambda i, n: min(1, (i + 1) / max(n, 1))), 3),
    Theory(*_OFF_BY_ONE, lambda known: _ramp(known, lambda i, n: min(1, i / (n + 1))), 3),
    Theory(*_OFF_BY_ONE, lambda known: _ramp(known, lambda i, n: min(1, (i + 1) / (n + 1))), 3),
    Theory(*_OFF_BY_ONE, lambda known: _ramp(known, lambda i, n: i / (n + 1) if i < n else 1), 3),
    Theory(
        *_OFF_BY_ONE, lambda known: _ramp(known, lambda i, n: (i + 1) / (n + 1) if i < n else 1), 3
    ),
    Theory(
        *_OFF_BY_ONE,
        lambda known: _ramp(known, lambda i, n: 1 if i >= n - 1 else i / (n - 1)),
        3,
    ),
    Theory(
        "goes on growing after the warmup",
        "at step warmup_steps the rate is as high as it gets",
        lambda known: _ramp(known, lambda i, n: i / n if n else 1),
        3,
    ),
)
