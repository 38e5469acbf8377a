"""Wrong ideas of a global batch, and the numbers of steps that they lead to."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from labkit.grade.graders.scaling_questions import Known, Setup, steps_for


@dataclass(frozen=True)
class Theory:
    """A mistake, and the answer by it."""

    name: str
    explanation: str
    answer: Callable[[Known], float]
    hint: int = 2


_NO_ACCUMULATION = (
    "forgets the accumulation",
    "a step of the optimizer averages the gradients of all passes that were accumulated for it: "
    "the batch is per_rank * num_ranks * num_accumulated",
)
_NO_RANKS = (
    "forgets the other ranks",
    "data parallelism averages gradients over all ranks, so the batch of a step is that of all of "
    "them together",
)
OTHER_BATCHES: tuple[tuple[str, str, Callable[[Setup], int]], ...] = (
    (*_NO_ACCUMULATION, lambda setup: setup.per_rank * setup.num_ranks),
    (*_NO_RANKS, lambda setup: setup.per_rank * setup.num_accumulated),
    (*_NO_RANKS, lambda setup: setup.per_rank),
)
"""Name, explanation, and what is taken for the batch."""


def _of_setup(batch: Callable[[Setup], int]) -> Callable[[Known], int]:
    return lambda known: batch(known.setup)


def _in_steps_of(
    samples: Callable[[Known], int], batch: Callable[[Setup], int]
) -> Callable[[Known], int]:
    return lambda known: steps_for(samples(known), batch(known.setup))


def steps_theories(samples: Callable[[Known], int]) -> Sequence[Theory]:
    """Of steps_per_epoch and total_steps. samples: how many are to be seen."""
    return (
        Theory(
            "drops the last samples",
            "it is rounded down: the samples that are left over need a step as well, a short one",
            lambda known: samples(known) // known.setup.batch,
            3,
        ),
        Theory(
            "one step too many where nothing is left over",
            "n // batch + 1 is rounded up only where there is a remainder; -(-n // batch) always",
            lambda known: samples(known) // known.setup.batch + 1,
            3,
        ),
        *(Theory(name, why, _in_steps_of(samples, batch)) for name, why, batch in OTHER_BATCHES),
    )


BATCHES = tuple(Theory(name, why, _of_setup(batch), hint=1) for name, why, batch in OTHER_BATCHES)
EPOCHS = steps_theories(lambda known: known.number)
TOTALS = (
    Theory(
        "makes as many steps as before",
        "each step sees k times as many samples, so it takes k times fewer",
        lambda known: known.number,
    ),
    Theory(
        "more steps for a larger batch",
        "each step sees k times as many samples, so it takes k times fewer, and not more",
        lambda known: steps_for(known.number * known.setup.batch, known.setup.base_batch),
    ),
    *steps_theories(lambda known: known.number * known.setup.base_batch),
)
