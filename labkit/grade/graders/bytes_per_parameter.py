"""Grade bytes_per_parameter: the recipes behind 12, 16, 18 and 20, and others drawn at random."""

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import torch

from labkit import calc
from labkit.grade.grader import Case, Draw, Mistake, Questions, patch

Recipe = Mapping[str, Any]
Levels = dict[int, float]
FULL, HALVES, SMALL = "float32", ("bfloat16", "float16"), ("float8_e4m3fn", "int8")


def cases(draw: Draw) -> list[Case]:
    """Each recipe, first for the total and then for the levels."""
    rng = draw.rng
    half = rng.choice(HALVES)
    recipes = {
        "mixed precision and Adam, as in the ZeRO paper": recipe(half, half, FULL, FULL, FULL),
        "mixed precision and Adam, as in Megatron-LM": recipe(half, FULL, FULL, FULL, FULL),
        "float32 and Adam": recipe(FULL, FULL, None, FULL, FULL),
        "autocast and Adam": recipe(FULL, FULL, None, FULL, FULL, casts=half),
        "Adam in 16 bits throughout": recipe(half, half, None, half, half),
        "SGD with momentum": recipe(half, half, FULL, FULL),
        "plain SGD": recipe(FULL, FULL, None),
        "plain SGD in 16 bits with a master copy": recipe(half, half, FULL),
        "8-bit moments": recipe(half, half, None, *2 * [rng.choice(SMALL)]),
        "float8 parameters": recipe(SMALL[0], half, half, FULL, SMALL[1]),
    }
    for _ in range(6):
        moments = [rng.choice((FULL, half, *SMALL)) for _ in range(rng.randrange(4))]
        gradients, master = rng.choice((FULL, half)), rng.choice((FULL, half, None))
        drawn = recipe(rng.choice((half, SMALL[0])), gradients, master, *moments)
        recipes[f"drawn at random: {drawn}"] = drawn
    return [
        Case(label, its, function=function, known=function)
        for function in ("bytes_per_parameter", "sharded_from")
        for label, its in recipes.items()
    ]


def recipe(
    parameters: str, gradients: str, master: str | None, *moments: str, casts: str | None = None
) -> Recipe:
    """A recipe as the functions under test get it."""
    return {
        "parameters": parameters,
        "gradients": gradients,
        "master": master,
        "moments": list(moments),
        "casts": casts,
    }


def size(dtype: str | None) -> int:
    """Bytes per element, as torch says."""
    return 0 if dtype is None else getattr(torch, dtype).itemsize


def right(its: Recipe, known: str) -> Any:
    """The answer of the function `known`, by the calculator."""
    by_calc = calc.Recipe(
        name="drawn",
        parameter_bytes=size(its["parameters"]),
        gradient_bytes=size(its["gradients"]),
        master_bytes=size(its["master"]),
        moment_bytes=tuple(map(size, its["moments"])),
    )
    if known == "bytes_per_parameter":
        return by_calc.bytes_per_parameter
    return {1: by_calc.optimizer_bytes, 2: by_calc.gradient_bytes, 3: by_calc.parameter_bytes}


def levels(its: Recipe) -> Levels:
    """The right split."""
    return right(its, "sharded_from")


def both(split: Callable[[Recipe], Levels]) -> list[Callable[[Recipe], Any]]:
    """Formulas of both functions, for a learner who splits the bytes like this."""
    return [split, lambda its: sum(split(its).values())]


def instead(other: Callable[[Recipe], Recipe]) -> list[Callable[[Recipe], Any]]:
    """Formulas of both functions, for a learner who takes entries of the recipe for others."""
    return both(lambda its: levels({**its, **other(its)}))


GRADIENTS, PARAMETERS = 'itemsize[recipe["gradients"]]', 'itemsize[recipe["parameters"]],'
OPTIMIZER, MOMENTS = '[recipe["master"], *', '*recipe["moments"]]'
TOTAL = "return sum(sharded_from(recipe).values())"

MISTAKES = [
    Mistake(
        "gives the same number for every recipe",
        "12, 16, 18 and 20 are sums for certain recipes. Add up what this recipe stores.",
        formula=[lambda its, total=total: total for total in range(10, 21)],
        made_by=patch(TOTAL, "return 16"),
    ),
    Mistake(
        "gives bits instead of bytes",
        "Every number is 8 times too large. A float32 number takes 4 bytes.",
        hint=3,
        formula=both(lambda its: {level: 8 * size for level, size in levels(its).items()}),
        made_by=patch(TOTAL, TOTAL + " * 8"),
    ),
    Mistake(
        "forgets the master copy",
        "A small update can vanish when it is added to a 16-bit parameter. Some optimizers, plain "
        "SGD too, therefore update a master copy. In float32 it takes 4 bytes: 16 instead of 12.",
        formula=[
            *instead(lambda its: {"master": None}),
            *instead(lambda its: {} if its["moments"] else {"master": None}),
        ],
        made_by=patch(OPTIMIZER, "[*"),
    ),
    Mistake(
        "adds a master copy that does not exist",
        "master is None where the optimizer updates the parameters themselves: no second copy.",
        hint=3,
        formula=[
            *instead(lambda its: {"master": its["master"] or FULL}),
            *instead(lambda its: {"master": FULL}),
        ],
        made_by=patch(OPTIMIZER, OPTIMIZER.replace(",", ' or "float32",')),
    ),
    Mistake(
        "takes every optimizer for Adam",
        "The recipe lists the moments of its own optimizer: one for momentum, none for plain SGD.",
        hint=3,
        formula=instead(lambda its: {"moments": [FULL, FULL]}),
        made_by=patch(MOMENTS, '"float32", "float32"]'),
    ),
    Mistake(
        "does not count every moment",
        "Every entry of the list takes its own bytes. Adam stores two values per parameter.",
        hint=3,
        formula=[
            *instead(lambda its: {"moments": its["moments"][:1]}),
            *instead(lambda its: {"moments": []}),
        ],
        made_by=patch(MOMENTS, '*recipe["moments"][:1]]'),
    ),
    Mistake(
        "gives moments another dtype",
        "Each entry of the list is the dtype of one moment. It need not be float32 or the dtype of "
        "the parameters, and the entries may differ.",
        hint=3,
        formula=[
            *instead(lambda its: {"moments": [FULL for _ in its["moments"]]}),
            *instead(lambda its: {"moments": [its["parameters"] for _ in its["moments"]]}),
            *instead(lambda its: {"moments": [its["moments"][0] for _ in its["moments"]]}),
        ],
        made_by=patch(MOMENTS, '*(recipe["parameters"] for _ in recipe["moments"])]'),
    ),
    Mistake(
        "gives gradients another dtype",
        "The ZeRO paper stores gradients in the parameters' 16 bits: 16 bytes in all. Megatron-LM "
        "stores them in float32: 18 bytes. The recipe says which dtype it is.",
        hint=3,
        formula=[
            *instead(lambda its: {"gradients": its["parameters"]}),
            *instead(lambda its: {"gradients": FULL}),
        ],
        made_by=patch(GRADIENTS, PARAMETERS[:-1]),
    ),
    Mistake(
        "forgets the gradients",
        "Every parameter has a gradient, and all gradients exist when the optimizer's step starts.",
        formula=instead(lambda its: {"gradients": None}),
        made_by=patch(GRADIENTS, "0"),
    ),
    Mistake(
        "counts the copies of autocast",
        "Autocast makes and frees its copies within one step. They are not kept from step to step.",
        formula=both(lambda its: {**levels(its), 3: levels(its)[3] + size(its["casts"])}),
        made_by=patch(PARAMETERS, f'itemsize[recipe["casts"]] + {PARAMETERS}'),
    ),
    Mistake(
        "shards the master copy too late",
        "The master copy belongs to the optimizer. Forward and backward do not read it, so level 1 "
        "shards it together with the moments.",
        hint=2,
        formula=[
            lambda its, level=level: {
                **levels({**its, "master": None}),
                level: levels(its)[level] + size(its["master"]),
            }
            for level in (2, 3)
        ],
        made_by=patch(OPTIMIZER, "[*", PARAMETERS, f'itemsize[recipe["master"]] + {PARAMETERS}'),
    ),
    Mistake(
        "adds the levels up",
        "Each byte is asked for once, at the level that first shards it. Level 2 adds only "
        "gradients, and level 3 only parameters.",
        hint=2,
        formula=lambda its: dict(zip((1, 2, 3), itertools.accumulate(levels(its).values()))),
        made_by=patch(
            TOTAL,
            "return sharded_from(recipe)[3]",
            PARAMETERS,
            f"{PARAMETERS[:-1]} + {GRADIENTS} + sum(map(itemsize.get, optimizer))",
            f"2: {GRADIENTS}",
            f"2: {GRADIENTS} + sum(map(itemsize.get, optimizer))",
        ),
    ),
    Mistake(
        "shards in another order",
        "Level 1 shards optimizer states, which only the optimizer's step needs. Level 2 adds "
        "gradients. Level 3 adds parameters, which are needed all the time.",
        hint=2,
        formula=[
            lambda its, order=order: dict(zip(order, levels(its).values()))
            for order in itertools.permutations((1, 2, 3))
        ],
        made_by=patch("1: sum", "3: sum", "3: itemsize", "1: itemsize"),
    ),
]

GRADER = Questions(
    name="bytes_per_parameter",
    functions=("bytes_per_parameter", "sharded_from"),
    cases=cases,
    right=right,
    mistakes=MISTAKES,
    closed=("labkit.calc",),
    shown="you count what each recipe stores, 16 bytes for the ZeRO paper's and 18 for "
    "Megatron-LM's, and you know from which level on ZeRO shards each byte",
)
