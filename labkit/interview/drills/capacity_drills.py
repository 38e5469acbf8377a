"""Drills on experts' buffers: how many rows, and how many choices do not fit."""

import random

from labkit import calc
from labkit.interview.drills.drill import Shown, drill
from labkit.interview.drills.question import Solution, Trap

_NOTEBOOK = "10_mixture_of_experts"
_FACTORS = (1.1, 1.25, 1.5)


@drill(
    "mo-2",
    "Capacity of an expert",
    difficulty=1,
    notebook=_NOTEBOOK,
    prompt="A rank routes {tokens} tokens to {k} of {experts} experts each, with a capacity factor "
    "of {factor}, rounded up. How many of this rank's choices does an expert take at most?",
    draws={
        "tokens": (1000, 1500, 2000, 3000, 4096, 5000, 6000, 7000),
        "k": (2, 4),
        "experts": (16, 48, 64, 72, 96, 128),
        "factor": (1.1, 1.25, 1.3, 1.5),
    },
    unit="",
    digits=None,
    between=("8", "10000"),
)
def capacity_of_an_expert(tokens: int, k: int, experts: int, factor: float) -> Solution:
    """ceil(factor k N / E)."""
    capacity = int(calc.expert_capacity(tokens, experts, k, factor))
    exact = factor * k * tokens / experts
    return Solution(
        capacity,
        [
            f"There are {k} x {tokens:,} = {k * tokens:,} choices, "
            f"{k * tokens / experts:.6g} for each of {experts} experts if balanced.",
            f"Times {factor:g}: {exact:.6g}.",
            f"Rounded up: {capacity:,}.",
        ],
        [
            Trap(
                "tokens counted, not choices",
                calc.expert_capacity(tokens, experts, 1, factor),
                "Each token is sent to more than one expert.",
            ),
            Trap(
                "the capacity factor left out",
                calc.expert_capacity(tokens, experts, k, 1.0),
                "The factor leaves room for an uneven router.",
            ),
            Trap("rounded down", int(round(exact, 9)), "A capacity is rounded up."),
            Trap(
                "all experts together",
                calc.expert_capacity(tokens, 1, k, factor),
                "That is the room of all experts; each has its part.",
            ),
        ],
    )


def _routers() -> list[tuple[int, int, float, Shown]]:
    """Tokens, choices of each, factor, and how many choices fell on each of 8 experts."""
    rng, found = random.Random(8), []
    for _ in range(400):
        tokens, k = rng.choice((256, 400, 512, 800, 1024)), rng.choice((2, 2, 4))
        weights = [rng.uniform(0.4, 1.9) for _ in range(8)]
        loads = [int(tokens * k * weight / sum(weights)) for weight in weights]
        loads[rng.randrange(8)] += tokens * k - sum(loads)
        if max(loads) <= tokens:  # a token chooses an expert once
            shown = Shown(tuple(loads), ", ".join(map(str, loads)))
            found.append((tokens, k, rng.choice(_FACTORS), shown))
    return found


@drill(
    "mo-2",
    "Dropped choices",
    difficulty=2,
    notebook=_NOTEBOOK,
    prompt="A rank routes {tokens} tokens to {k} of 8 experts each. Its choices fall on the "
    "experts like this: {loads}. The capacity factor is {factor}, rounded up to whole choices. How "
    "many choices are dropped?",
    draws={"tokens k factor loads": _routers()},
    unit="",
    digits=None,
    between=("2", "3000"),
)
def dropped_choices(tokens: int, k: int, factor: float, loads: tuple[int, ...]) -> Solution:
    """What each expert has above its capacity."""
    capacity = int(calc.expert_capacity(tokens, len(loads), k, factor))
    dropped = int(calc.dropped_choices(loads, capacity))
    over = [max(load - capacity, 0) for load in loads]
    return Solution(
        dropped,
        [
            f"Balanced, an expert gets {k} x {tokens} / {len(loads)} = "
            f"{k * tokens / len(loads):g} choices.",
            f"Its capacity is {factor:g} times that, rounded up: {capacity}.",
            f"Above it: {' + '.join(str(each) for each in over if each)} = {dropped}, "
            f"{dropped / (k * tokens):.1%} of all choices.",
        ],
        [
            Trap(
                "the capacity factor left out",
                calc.dropped_choices(loads, calc.expert_capacity(tokens, len(loads), k, 1.0)),
                "The factor makes the buffers larger than balance needs.",
            ),
            Trap(
                "capacity by tokens, not by choices",
                calc.dropped_choices(loads, calc.expert_capacity(tokens, len(loads), 1, factor)),
                "There are k choices for each token, and the capacity counts choices.",
            ),
            Trap(
                "the busiest expert alone",
                max(over),
                "Every expert above its capacity drops.",
            ),
            Trap(
                "all choices of the crowded experts",
                sum(load for load in loads if load > capacity),
                "An expert takes as many as fit, and drops what is above.",
            ),
            Trap(
                "free places filled by others",
                capacity * len(loads) - k * tokens,
                "That is the room left over in all; a choice is for one expert, and free places "
                "elsewhere do not help it.",
            ),
        ],
    )
