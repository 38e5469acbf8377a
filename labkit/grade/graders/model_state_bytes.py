"""Grade model_state_bytes: bytes on the fullest rank, for drawn models, recipes and levels."""

from collections.abc import Callable, Mapping
from typing import Any

from labkit import calc
from labkit.grade.grader import Case, Draw, Mistake, Questions, patch

LEVELS = {"parameters": 3, "gradients": 2, "master": 1, "moments": 1}
"""The ZeRO level from which on each copy is sharded."""
NEVER = 4


def cases(draw: Draw) -> list[Case]:
    """Every level of each model: sizes that divide and others, one rank, few parameters."""
    rng = draw.rng
    models = [
        (64 * rng.randrange(10**6, 10**8), recipe(2, 2, 4, [4, 4]), 64),
        (1 + 48 * rng.randrange(10**7), recipe(2, 4, 4, [4, 4]), 48),
        (rng.randrange(10**9, 10**11), recipe(4, 4, 0, [4, 4]), rng.choice((7, 24, 1000))),
        (rng.randrange(100, 1000), recipe(4, 4, 0, [4]), rng.randrange(3, 9)),
        (rng.randrange(10**9, 10**11) | 1, recipe(4, 2, 4, [2, 4]), rng.choice((8, 64))),
        (5, recipe(2, 1, 4, [4, 2, 1]), 8),
        (rng.randrange(10**5, 10**6), recipe(1, 2, 2, [4, 4]), 1),
        (10, recipe(2, 2, 4, [4, 1]), 4),
    ]
    return [
        Case(f"{num:,} parameters, {its}, zero {zero}, {dp} ranks", num, its, zero, dp)
        for num, its, dp in models
        for zero in range(4)
    ]


def recipe(parameter: int, gradient: int, master: int, moments: list[int]) -> dict[str, Any]:
    """Bytes per parameter, as the function under test gets them."""
    return {
        "parameter_bytes": parameter,
        "gradient_bytes": gradient,
        "master_bytes": master,
        "moment_bytes": moments,
    }


def right(num: int, its: Mapping[str, Any], zero: int, dp: int) -> int:
    """By the calculator."""
    known = calc.Recipe(name="drawn", **{**its, "moment_bytes": tuple(its["moment_bytes"])})
    return int(calc.model_state_bytes(num, known, zero, dp))


def up(num: int, dp: int) -> int:
    """The largest shard."""
    return -(-num // dp)


def count(shard: Callable[[int, int], float] = up, **levels: int) -> Any:
    """A formula with another shard, or other levels from which on a copy is sharded."""

    def formula(num: int, its: Mapping[str, Any], zero: int, dp: int) -> float:
        sizes = by_copy(its)
        levels_of = {**LEVELS, **levels}
        return sum(
            sizes[copy] * (shard(num, dp) if zero >= levels_of[copy] else num) for copy in sizes
        )

    return formula


def by_copy(its: Mapping[str, Any]) -> dict[str, int]:
    """Bytes per parameter of each copy."""
    return {
        "parameters": its["parameter_bytes"],
        "gradients": its["gradient_bytes"],
        "master": its["master_bytes"],
        "moments": sum(its["moment_bytes"]),
    }


def with_recipe(**others: Any) -> Any:
    """A formula that takes the recipe for another."""
    return lambda num, its, zero, dp: count()(num, {**its, **others}, zero, dp)


def rounded_in_bytes(num: int, its: Mapping[str, Any], zero: int, dp: int) -> int:
    """Bytes divided by the ranks and rounded up, copy by copy; master and moments together."""
    sizes = by_copy(its)
    sizes["moments"] += sizes.pop("master")
    return sum(up(num * sizes[copy], dp if zero >= LEVELS[copy] else 1) for copy in sizes)


SHARD = "shard = -(-num_params // dp)"

MISTAKES = [
    Mistake(
        "shards everything from level 1 on",
        "That is level 3. Level 1 shards what the optimizer keeps; parameters and gradients stay "
        "whole on every rank, 4 bytes of the ZeRO paper's 16.",
        formula=count(**dict.fromkeys(LEVELS, 1)),
        made_by=patch("if zero >= 3", "if zero >= 1", "if zero >= 2", "if zero >= 1"),
    ),
    Mistake(
        "shards parameters at level 2",
        "At levels 1 and 2 every rank has all parameters. Sharding them is level 3.",
        formula=count(parameters=2),
        made_by=patch("if zero >= 3", "if zero >= 2"),
    ),
    Mistake(
        "shards gradients at level 1",
        "At level 1 every rank still has all gradients when backward ends. Freeing those of other "
        "shards is level 2. Level 1 shards what the optimizer keeps.",
        formula=[count(gradients=1), count(gradients=1, master=2, moments=2)],
        made_by=patch("if zero >= 2", "if zero >= 1"),
    ),
    Mistake(
        "one level late",
        "Level 0 shards nothing. Level 1 shards optimizer states, 2 gradients, 3 parameters.",
        formula=count(parameters=NEVER, gradients=3, master=2, moments=2),
        made_by=patch(
            "if zero >= 3",
            "if zero > 3",
            "if zero >= 2",
            "if zero > 2",
            "if zero >= 1",
            "if zero > 1",
        ),
    ),
    Mistake(
        "shards nothing",
        "From level 1 on each rank holds ceil(num_params / dp) parameters of what is sharded.",
        formula=count(**dict.fromkeys(LEVELS, NEVER)),
        made_by=patch("shard = -(-num_params // dp)", "shard = num_params"),
    ),
    Mistake(
        "a level does not shard what the one before it shards",
        "Each level keeps what the one before it shards: level 2 shards optimizer states too, and "
        "level 3 shards all.",
        formula=[
            lambda num, its, zero, dp: (
                right(num, its, zero, dp)
                + (zero == 2)
                * (num - up(num, dp))
                * (its["master_bytes"] + sum(its["moment_bytes"]))
            ),
            lambda num, its, zero, dp: sum(
                size * (up(num, dp) if zero == LEVELS[copy] else num)
                for copy, size in by_copy(its).items()
            ),
        ],
        made_by=patch("if zero >= 1", "if zero in (1, 3)"),
    ),
    Mistake(
        "shards the master copy at another level",
        "The optimizer updates the master copy, each rank its own shard of it. It is sharded with "
        "the moments, from level 1 on.",
        formula=[count(master=level) for level in (2, 3, NEVER)],
        made_by=patch(
            "num_states * optimizer_bytes",
            'num_states * sum(recipe["moment_bytes"]) + num_params * recipe["master_bytes"]',
        ),
    ),
    Mistake(
        "forgets to round the shard up",
        "Where the ranks do not divide the parameters, some rank holds one more than the others: "
        "the largest shard has ceil(num_params / dp) parameters.",
        hint=3,
        formula=[count(lambda n, d: n // d), count(lambda n, d: n / d)],
        made_by=patch(SHARD, "shard = num_params // dp"),
    ),
    Mistake(
        "adds one where nothing is left over",
        "n // dp + 1 is rounded up only where there is a remainder. -(-n // dp) always is.",
        hint=3,
        formula=count(lambda n, d: n // d + 1),
        made_by=patch(SHARD, "shard = num_params // dp + 1"),
    ),
    Mistake(
        "rounds bytes instead of parameters",
        "A parameter is on one rank with all of its bytes: ceil(num_params / dp) parameters, each "
        "times its bytes.",
        hint=3,
        formula=rounded_in_bytes,
        made_by=patch(
            "num_parameters = shard if zero >= 3 else num_params",
            "up = lambda size, level: -(-num_params * size // (dp if zero >= level else 1))\n"
            '    return (up(recipe["parameter_bytes"], 3) + up(recipe["gradient_bytes"], 2)\n'
            "            + up(optimizer_bytes, 1))\n"
            "    num_parameters = num_params",
        ),
    ),
    Mistake(
        "takes the limit of many ranks",
        "4x and 8x are what is left when the shards are nearly nothing. The ZeRO paper's 16 bytes "
        "become 4 + 12/dp at level 1: 5.5 on 8 ranks, not 4.",
        formula=count(lambda n, d: 0 if d > 1 else n),
        made_by=patch(SHARD, "shard = 0 if dp > 1 else num_params"),
    ),
    Mistake(
        "takes every optimizer for Adam with a master copy",
        "The 12 in 4 + 12/dp are a master copy and two moments in float32. The recipe says what "
        "this optimizer keeps.",
        formula=with_recipe(master_bytes=4, moment_bytes=[4, 4]),
        made_by=patch('recipe["master_bytes"] + sum(recipe["moment_bytes"])', "12"),
    ),
    Mistake(
        "forgets the master copy",
        "master_bytes belong to the optimizer, beside its moments.",
        formula=with_recipe(master_bytes=0),
        made_by=patch('recipe["master_bytes"] + sum(', "sum("),
    ),
    Mistake(
        "forgets the moments",
        "moment_bytes has an entry for each value that the optimizer keeps per parameter.",
        formula=with_recipe(moment_bytes=[]),
        made_by=patch(' + sum(recipe["moment_bytes"])', ""),
    ),
    Mistake(
        "adds up all ranks",
        "Asked are the bytes of one rank, the one that holds most.",
        formula=lambda num, its, zero, dp: right(num, its, zero, dp) * dp,
        made_by=patch(
            "+ num_states * optimizer_bytes\n    )", "+ num_states * optimizer_bytes\n    ) * dp"
        ),
    ),
]

GRADER = Questions(
    name="model_state_bytes",
    cases=cases,
    right=right,
    mistakes=MISTAKES,
    closed=("labkit.calc",),
    shown="you know to the byte what the fullest rank holds at every level, for any recipe, also "
    "where the ranks do not divide the parameters",
)
