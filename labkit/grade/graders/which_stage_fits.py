"""Grade which_stage_fits: drawn setups, many of which fit or do not fit by a single byte."""

from collections.abc import Callable, Mapping
from typing import Any

from labkit import calc
from labkit.grade.grader import Case, Draw, Mistake, Observed, Questions, patch

Setup = Mapping[str, Any]
STATES = {"optimizer": 1, "gradients": 2, "parameters": 3}
"""The level from which on a term is sharded."""
TERMS = (*STATES, "activations", "reserve")
ORDER = ("parameters", "gradients", "optimizer", "activations", "reserve")
RECIPES = ((2, 2, 12), (2, 4, 12), (4, 4, 8), (2, 2, 4), (2, 2, 2), (4, 4, 4), (1, 4, 8))


def cases(draw: Draw) -> list[Case]:
    """GPUs that exist, and GPUs with about the memory that some level needs."""
    rng = draw.rng
    setups = []
    for _ in range(10):
        setups += [
            setup_of(draw, lambda its: None),
            setup_of(draw, lambda its: 0, remainder=0),
            setup_of(draw, lambda its: -1, remainder=1),
            # GB and GiB differ by 7%.
            setup_of(draw, lambda its: its["reserve_gb"] * 1e9 * rng.uniform(0.01, 0.05)),
            setup_of(draw, lambda its: its["memory_gib"] * 2**30 * rng.uniform(0.03, 0.05)),
            setup_of(draw, lambda its: -its["activation_bytes"] * rng.uniform(0.8, 1)),
        ]
    return [
        Case(", ".join(f"{key}={value:,}" for key, value in its.items()), its) for its in setups
    ]


def setup_of(
    draw: Draw, spare: Callable[[Setup], float | None], remainder: int | None = None
) -> Setup:
    """A setup in which some level leaves so many bytes spare; None: a GPU that exists."""
    rng = draw.rng
    sizes, memory_gib = rng.choice(RECIPES), rng.choice((24, 40, 80, 141))
    its = {
        "num_params": int(memory_gib * 2**30 * 10 ** rng.uniform(-0.6, 1.6) / sum(sizes)),
        **dict(zip(("parameter_bytes", "gradient_bytes", "optimizer_bytes"), sizes)),
        "dp": rng.choice((4, 8, 16, 64, 512)),
        "activation_bytes": int(memory_gib * 2**30 * rng.uniform(0.03, 0.6)),
        # In some setups the reserve is the largest term.
        "reserve_gb": rng.randrange(1, memory_gib // 4) / 2 * rng.choice((1, 1, 6)),
        "memory_gib": memory_gib,
    }
    if remainder is not None:
        its["num_params"] += remainder - its["num_params"] % its["dp"]
    num_bytes = spare(its)
    if num_bytes is not None:
        needed = int(sum(terms_of(its, rng.randrange(4)).values()))
        its["memory_gib"] = (needed + int(num_bytes)) / 2**30  # exact, by a power of two
    return its


def terms_of(its: Setup, level: int) -> dict[str, float]:
    """What one rank holds at a level, by the calculator."""
    recipe = calc.Recipe(
        name="",
        parameter_bytes=its["parameter_bytes"],
        gradient_bytes=its["gradient_bytes"],
        moment_bytes=(its["optimizer_bytes"],),
    )
    states = calc.model_state_bytes(its["num_params"], recipe, level, its["dp"])
    return {
        "optimizer": float(states["moments"]),
        "gradients": float(states["gradients"]),
        "parameters": float(states["parameters"]),
        "activations": its["activation_bytes"],
        "reserve": its["reserve_gb"] * 1e9,
    }


def memory_of(its: Setup) -> float:
    """Bytes of one GPU."""
    return its["memory_gib"] * 2**30


def largest_of(terms: Mapping[str, float], level: int) -> str:
    """The largest term; of equal terms the first."""
    return max(TERMS, key=terms.__getitem__)


def answer(
    terms: Callable[[Setup, int], Mapping[str, float]] = terms_of,
    memory: Callable[[Setup], float] = memory_of,
    largest: Callable[[Mapping[str, float], int], str] = largest_of,
    order: tuple[int, ...] = (0, 1, 2, 3),
    otherwise: int | None = None,
    names_the_last: bool = False,
) -> Callable[[Setup], tuple[int | None, list[str]]]:
    """A formula that does one thing in another way; right as it stands."""

    def formula(its: Setup) -> tuple[int | None, list[str]]:
        names = []
        for level in order:
            held = terms(its, level)
            fits = sum(held.values()) <= memory(its)
            if not fits or names_the_last:
                names.append(largest(held, level))
            if fits:
                return level, names
        return otherwise, names

    return formula


right = answer()


def instead(**terms: Callable[[Setup, int], float]) -> Any:
    """The formula with other terms."""
    return answer(
        lambda its, level: {**terms_of(its, level), **{t: terms[t](its, level) for t in terms}}
    )


def sharded(shard: Callable[[int, int], float] = lambda n, d: -(-n // d), **levels: int) -> Any:
    """The formula with other shards, or other levels from which on a term is sharded."""

    def terms(its: Setup, level: int) -> dict[str, float]:
        n, held = its["num_params"], terms_of(its, level)
        for term, first in {**STATES, **levels}.items():
            size = its[f"{term.removesuffix('s')}_bytes"]
            held[term] = size * (shard(n, its["dp"]) if level >= first else n)
        return held

    return answer(terms)


def over_ranks(first: int) -> Any:
    """The formula that divides activations by dp, from this level on."""
    return instead(
        activations=lambda its, level: (
            its["activation_bytes"] / (its["dp"] if level >= first else 1)
        )
    )


def is_exact(s: Observed) -> bool:
    """Whether the level is wrong where the right one needs the whole memory."""
    its, level = s.xs, s.right[0][0]
    return level != s.y[0] and sum(terms_of(its, level).values()) == memory_of(its)


OPTIMIZER, GRADIENTS = "shard if level >= 1", "shard if level >= 2"
ACTIVATIONS, MEMORY = 'setup["activation_bytes"]', 'setup["memory_gib"] * 2**30'
FITS = "        if sum(terms.values()) <= " + MEMORY + ":\n            return level, largest\n"
LARGEST = "max(terms, key=terms.__getitem__)"

MISTAKES = [
    Mistake(
        "forgets the activations",
        "Model states are not all. What a rank keeps from forward to backward must fit too.",
        formula=instead(activations=lambda its, level: 0),
        made_by=patch(ACTIVATIONS, "0"),
    ),
    Mistake(
        "forgets the reserve",
        "CUDA's context, communication buffers and fragmentation take memory too.",
        formula=instead(reserve=lambda its, level: 0),
        made_by=patch('setup["reserve_gb"]', "0"),
    ),
    Mistake(
        "mixes up GB and GiB",
        "The reserve is in GB of 1e9 bytes, the memory in GiB of 2**30 bytes: 7% more.",
        hint=3,
        formula=[
            answer(memory=lambda its: its["memory_gib"] * 1e9),
            instead(reserve=lambda its, level: its["reserve_gb"] * 2**30),
            answer(memory=lambda its: its["memory_gib"] * 2**30 / 1e9 * 2**30),
        ],
        made_by=patch(MEMORY, 'setup["memory_gib"] * 1e9'),
    ),
    Mistake(
        "shards the activations",
        "ZeRO shards model states only. Each rank has its own microbatch and keeps all of its "
        "activations, at every level.",
        formula=[over_ranks(level) for level in range(4)],
        made_by=patch(ACTIVATIONS, ACTIVATIONS + ' / setup["dp"]'),
    ),
    Mistake(
        "takes the memory of all GPUs together",
        "Each rank must fit into its own GPU.",
        formula=answer(memory=lambda its: memory_of(its) * its["dp"]),
        made_by=patch(MEMORY, MEMORY + ' * setup["dp"]'),
    ),
    Mistake(
        "does not begin with level 0",
        "Level 0, which shards nothing, is a level too: it is the answer where all fits.",
        formula=answer(order=(1, 2, 3)),
        made_by=patch("range(4)", "range(1, 4)"),
    ),
    Mistake(
        "takes the highest level that fits",
        "Level 3 sends half as much again as the others. The contract asks for the lowest level.",
        formula=[
            answer(order=(3, 2, 1, 0)),
            lambda its: (3, right(its)[1]) if right(its)[0] is not None else right(its),
        ],
        made_by=patch("for level in range(4)", "for level in range(3, -1, -1)"),
    ),
    Mistake(
        "gives a level where none fits",
        "Activations, reserve and a shard can be too much for level 3 as well. The level is then "
        "None.",
        hint=3,
        formula=[answer(otherwise=level) for level in (3, 4, -1)],
        made_by=patch("return None, largest", "return 3, largest"),
    ),
    Mistake(
        "rounds the shard another way",
        "Shards differ by at most one parameter. The largest has num_params / dp parameters, "
        "rounded up: -(-num_params // dp).",
        hint=3,
        formula=[
            sharded(lambda n, d: n // d),
            sharded(lambda n, d: n / d),
            sharded(lambda n, d: n // d + 1),
            sharded(lambda n, d: n // d + n % d),
        ],
        made_by=patch(
            '-(-setup["num_params"] // setup["dp"])', 'setup["num_params"] // setup["dp"]'
        ),
    ),
    Mistake(
        "shards at another level than ZeRO",
        "Level 1 shards what the optimizer keeps. Level 2 also shards gradients, level 3 also "
        "parameters.",
        hint=2,
        formula=[
            sharded(gradients=1, parameters=1),
            sharded(gradients=1),
            sharded(parameters=2),
            sharded(optimizer=0, gradients=1, parameters=2),
            sharded(optimizer=2, gradients=3, parameters=4),
            sharded(optimizer=3, parameters=1),
        ],
        made_by=patch(GRADIENTS, OPTIMIZER),
    ),
    Mistake(
        "decides wrongly where it fits to the byte",
        "A level fits if the sum is at most the memory: <=, not <. Add up and compare bytes, since "
        "quotients such as bytes / 1e9 are rounded.",
        hint=3,
        seen=is_exact,
        made_by=patch("<= setup", "< setup"),
    ),
    Mistake(
        "names what the next level shards",
        "The level is right. The largest term may be another one, such as the activations, about "
        "which the next level does nothing.",
        hint=2,
        formula=answer(largest=lambda terms, level: TERMS[level]),
        made_by=patch(LARGEST, '["optimizer", "gradients", "parameters", "activations"][level]'),
    ),
    Mistake(
        "compares only model states for the largest term",
        "The level is right. Activations and reserve are terms of the sum too.",
        hint=3,
        formula=[
            answer(largest=lambda terms, level: max(STATES, key=terms.__getitem__)),
            answer(largest=lambda terms, level: max(TERMS[:4], key=terms.__getitem__)),
        ],
        made_by=patch(LARGEST, "max(list(terms)[:3], key=terms.__getitem__)"),
    ),
    Mistake(
        "names another of equal terms",
        "The level is right. Of equal terms take the first in the order of the contract.",
        hint=3,
        formula=[
            answer(largest=lambda terms, level: max(TERMS[::-1], key=terms.__getitem__)),
            answer(largest=lambda terms, level: max(sorted(TERMS), key=terms.__getitem__)),
            answer(largest=lambda terms, level: max(ORDER, key=terms.__getitem__)),
        ],
        made_by=patch(LARGEST, "max(reversed(terms), key=terms.__getitem__)"),
    ),
    Mistake(
        "names a term of the level that fits",
        "The level is right. The list has names only for levels that do not fit.",
        hint=3,
        formula=answer(names_the_last=True),
        made_by=patch(FITS, "", LARGEST + ")", LARGEST + ")\n" + FITS[:-1]),
    ),
]

GRADER = Questions(
    name="which_stage_fits",
    cases=cases,
    right=right,
    mistakes=MISTAKES,
    closed=("labkit.calc",),
    shown="you find the lowest level that fits, to the byte, or that none does, and you know the "
    "largest term of each level below it",
)
