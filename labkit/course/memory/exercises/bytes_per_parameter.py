"""Grade bytes_per_parameter: well-known recipes, and others drawn at random."""

from typing import Any

import torch

from labkit.grade import grader as g

FUNCTIONS = ("bytes_per_parameter", "sharded_from")


def cases(draw: g.Draw) -> list[g.Case]:
    """Return each recipe, first for the total and then for the levels."""
    pick = draw.rng.choice
    full, half, small = "float32", pick(("bfloat16", "float16")), ("float8_e4m3fn", "int8")
    recipes = {
        "mixed precision and Adam, as in the ZeRO paper": (half, half, full, [full, full]),
        "mixed precision and Adam, as in Megatron-LM": (half, full, full, [full, full]),
        "autocast and Adam": (full, full, None, [full, full], half),
        "SGD with momentum": (half, half, full, [full]),
        "plain SGD in 16 bits with a master copy": (half, half, full, []),
        "8-bit moments": (half, full, None, [*small]),
    }
    for number in range(1, 7):
        moments = [pick((full, half, *small)) for _ in range(draw.rng.randrange(4))]
        drawn = pick((half, small[0])), pick((full, half)), pick((full, half, None)), moments
        recipes[f"recipe {number} of those drawn"] = drawn
    keys, found = ("parameters", "gradients", "master", "moments", "casts"), []
    for function in FUNCTIONS:
        for label, dtypes in recipes.items():
            its = dict(zip(keys, (*dtypes, None)))
            found.append(g.Case(f"{label}: {its}", its, function=function, known=function))
    return found


def right(recipe: dict[str, Any], known: str) -> int | dict[int, int]:
    """Return the answer of the function `known`, with torch's sizes."""
    dtypes = recipe["parameters"], recipe["gradients"], recipe["master"], *recipe["moments"]
    parameters, gradients, *optimizer = (getattr(torch, d).itemsize if d else 0 for d in dtypes)
    if known == "sharded_from":
        return {1: sum(optimizer), 2: gradients, 3: parameters}
    return parameters + gradients + sum(optimizer)


MASTER = 'recipe["master"]'
PARAMETERS, GRADIENTS = 'itemsize[recipe["parameters"]]', 'itemsize[recipe["gradients"]]'
STATES = "sum(itemsize[dtype] for dtype in optimizer)"
MISTAKES = [
    g.Mistake(
        "gives the same number for every recipe",
        "12, 16, 18 and 20 are sums for certain recipes. Add up what this recipe stores.",
        g.patches("return sum(sharded_from(recipe).values())", "return 16", "return 18"),
    ),
    g.Mistake(
        "forgets the master copy",
        "A small update can vanish when it is added to a 16-bit parameter. Some optimizers, plain "
        "SGD too, therefore update a master copy. In float32 it takes 4 bytes: 16 instead of 12.",
        g.patch(MASTER, "None"),
    ),
    g.Mistake(
        "adds a master copy that does not exist",
        "master is None where the optimizer updates the parameters themselves: no second copy.",
        g.patch(MASTER, f'{MASTER} or "float32"'),
        hint=3,
    ),
    g.Mistake(
        "counts other moments than the recipe's",
        "The recipe lists the dtype of each moment of its own optimizer: two for Adam, one for "
        "momentum, none for plain SGD. They need not be float32, and may differ from each other "
        "and from the parameters. Add up the bytes of every entry.",
        g.patches(
            '*recipe["moments"]]',
            '"float32", "float32"]',
            '*["float32" for _ in recipe["moments"]]]',
            '*recipe["moments"][:1]]',
            "]",
        ),
        hint=3,
    ),
    g.Mistake(
        "gives gradients another dtype",
        "The ZeRO paper stores gradients in the parameters' 16 bits: 16 bytes in all. Megatron-LM "
        "stores them in float32: 18 bytes. The recipe says which dtype it is.",
        g.patches(GRADIENTS, PARAMETERS, "4"),
        hint=3,
    ),
    g.Mistake(
        "takes an 8-bit number for more than one byte",
        "float8_e4m3fn and int8 have 8 bits, so one byte per number. In the name of a float8, e4m3 "
        "tells how the 8 bits are divided: 4 for the exponent and 3 for the mantissa.",
        g.patches(
            '"float8_e4m3fn": 1, "int8": 1',
            '"float8_e4m3fn": 2, "int8": 2',
            '"float8_e4m3fn": 105, "int8": 1',
        ),
        hint=3,
    ),
    g.Mistake(
        "counts the copies of autocast",
        "Autocast makes and frees its copies within one step. They are not kept from step to step.",
        g.patch(PARAMETERS, f'{PARAMETERS} + itemsize[recipe["casts"]]'),
    ),
    g.Mistake(
        "shards at another level than ZeRO",
        "Level 1 shards what only the optimizer's step needs: the moments, and the master copy "
        "with them. Level 2 adds gradients, level 3 parameters, which are needed all the time.",
        [
            g.patch("1: sum", "3: sum", "3: itemsize", "1: itemsize"),
            g.patch(MASTER, "None", PARAMETERS, f"{PARAMETERS} + itemsize[{MASTER}]"),
            g.patch(MASTER, f'{MASTER}, recipe["gradients"]', GRADIENTS, "0"),
        ],
        hint=2,
    ),
    g.Mistake(
        "adds the levels up",
        "Each byte is asked for once, at the level that first shards it. Level 2 adds only "
        "gradients, and level 3 only parameters.",
        g.patch("2: item", f"2: {STATES} + item", "3: item", f"3: {STATES} + {GRADIENTS} + item"),
        hint=2,
    ),
]

GRADER = g.Questions(
    functions=FUNCTIONS,
    cases=cases,
    right=right,
    mistakes=MISTAKES,
    closed=("labkit.calc",),
    shown="you count what each recipe stores, 16 bytes for the ZeRO paper's and 18 for "
    "Megatron-LM's, and you know from which level on ZeRO shards each byte",
)
