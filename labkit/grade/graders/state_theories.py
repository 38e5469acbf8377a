"""Wrong ideas of what ZeRO shards, and the bytes that they lead to."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

from labkit.calc import Recipe
from labkit.grade.by_theory import Theory
from labkit.grade.graders.state_questions import Asked, right

Shard = Callable[[int, int], int | Fraction]
"""From a number of things and the ranks to the share of one."""

_NEVER = 4
_FROM = {"parameters": 3, "gradients": 2, "master": 1, "moments": 1}


def _up(number: int, dp: int) -> int:
    return -(-number // dp)


def _by_kind(recipe: Recipe) -> dict[str, int]:
    """Bytes per parameter, which are whole in this exercise."""
    return {
        "parameters": int(recipe.parameter_bytes),
        "gradients": int(recipe.gradient_bytes),
        "master": int(recipe.master_bytes),
        "moments": int(sum(recipe.moment_bytes)),
    }


def _bytes(
    asked: Asked, shard: Shard = _up, levels: Mapping[str, int] | None = None
) -> int | Fraction:
    """With other shards, or other levels from which on a kind is sharded. Exact."""
    levels = {**_FROM, **(levels or {})}
    total: int | Fraction = 0
    for kind, size in _by_kind(asked.recipe).items():
        is_sharded = asked.zero >= levels[kind]
        total += size * (shard(asked.num_params, asked.dp) if is_sharded else asked.num_params)
    return total


def _rounded_in_bytes(asked: Asked) -> int:
    """Each kind's bytes rounded up, master and moments together."""
    each = _by_kind(asked.recipe)
    sizes = {1: each["master"] + each["moments"], 2: each["gradients"], 3: each["parameters"]}
    return sum(
        _up(asked.num_params * size, asked.dp if asked.zero >= level else 1)
        for level, size in sizes.items()
    )


def _with_recipe(asked: Asked, **others: Any) -> int | Fraction:
    return _bytes(replace(asked, recipe=replace(asked.recipe, **others)))


_BY_LEVEL: tuple[tuple[str, str, dict[str, int]], ...] = (
    (
        "shards everything from level 1 on",
        "that is level 3. Level 1 shards what the optimizer keeps; gradients and parameters are "
        "whole on every rank, 4 bytes of the ZeRO paper's 16, however many ranks there are",
        dict.fromkeys(_FROM, 1),
    ),
    (
        "shards parameters at level 2",
        "with levels 1 and 2 every rank has all parameters, and forward and backward need no "
        "communication for them; sharding them is level 3",
        {"parameters": 2},
    ),
    (
        "shards gradients at level 1",
        "at level 1 every rank has all gradients when backward ends, and uses a part of them; "
        "freeing the others is level 2",
        {"gradients": 1},
    ),
    (
        "leaves the master copy whole",
        "the optimizer updates the master, each rank its own shard of it: it is sharded with the "
        "moments, from level 1 on",
        {"master": _NEVER},
    ),
    (
        "leaves the moments whole",
        "the moments are what level 1 is for: each rank keeps those of its own shard",
        {"moments": _NEVER},
    ),
    (
        "never shards the parameters",
        "level 3 shards parameters as well, and gathers each unit of them when it is needed",
        {"parameters": _NEVER},
    ),
    (
        "one level late",
        "level 0 is without ZeRO. Level 1 shards the optimizer's states already, 2 gradients, 3 "
        "parameters",
        {kind: level + 1 for kind, level in _FROM.items()},
    ),
    (
        "shards nothing",
        "level 1 and above give each rank a part: ceil(num_params / dp) of what is sharded",
        dict.fromkeys(_FROM, _NEVER),
    ),
)

_ROUNDS = (
    "forgets to round the shard up",
    "where the ranks do not divide the parameters, some rank holds one more than the others, or "
    "padding: the largest shard has ceil(num_params / dp) parameters",
)


def _by_level(levels: dict[str, int]) -> Callable[[Asked], Any]:
    return lambda asked: _bytes(asked, levels=levels)


THEORIES: tuple[Theory[Asked], ...] = (
    *(Theory(name, why, _by_level(levels)) for name, why, levels in _BY_LEVEL),
    Theory(*_ROUNDS, lambda asked: _bytes(asked, lambda n, d: n // d), 3),
    Theory(*_ROUNDS, lambda asked: float(_bytes(asked, Fraction)), 3),
    Theory(*_ROUNDS, lambda asked: int(_bytes(asked, Fraction)), 3),
    Theory(*_ROUNDS, lambda asked: round(_bytes(asked, Fraction)), 3),
    Theory(*_ROUNDS, lambda asked: _bytes(asked, lambda n, d: round(Fraction(n, d))), 3),
    Theory(
        "one parameter too many where nothing is left over",
        "n // dp + 1 is rounded up only where there is a remainder; -(-n // dp) always",
        lambda asked: _bytes(asked, lambda n, d: n // d + 1),
        3,
    ),
    Theory(
        "gives one rank all that is left over",
        "n // dp + n % dp is the shard of a rank that takes the whole remainder: shards differ by "
        "one parameter at most, and the largest has ceil(num_params / dp)",
        lambda asked: _bytes(asked, lambda n, d: n // d + n % d),
        3,
    ),
    Theory(
        "rounds bytes and not parameters",
        "a parameter is on one rank with all of its bytes: ceil(num_params / dp) parameters, each "
        "times its bytes, and not bytes / dp rounded up",
        _rounded_in_bytes,
        3,
    ),
    Theory(
        "rounds bytes and not parameters",
        "a parameter is on one rank with all of its bytes: ceil(num_params / dp) parameters, each "
        "times its bytes, and not bytes / dp rounded up",
        lambda asked: math.ceil(_bytes(asked, Fraction)),
        3,
    ),
    Theory(
        "divides by the ranks twice",
        "a shard is num_params / dp, once; what is in the shard is not shared again",
        lambda asked: _bytes(asked, lambda n, d: _up(n, d * d)),
    ),
    Theory(
        "takes the limit of many ranks",
        "4x and 8x are what is left when the shards are nearly nothing. With few ranks they are "
        "not: the ZeRO paper's 16 bytes become 4 + 12/dp at level 1, 5.5 on 8 ranks and not 4",
        lambda asked: _bytes(asked, lambda n, d: 0 if d > 1 else n),
    ),
    Theory(
        "adds up all ranks",
        "asked are the bytes of one rank, the one that holds most",
        lambda asked: right(asked) * asked.dp,
    ),
    Theory(
        "adds up all ranks",
        "asked are the bytes of one rank, the one that holds most",
        lambda asked: _bytes(replace(asked, zero=0)) * asked.dp,
    ),
    Theory(
        "takes every optimizer for Adam with a master copy",
        "the 12 in 4 + 12/dp are master and two moments in float32; the recipe says what this "
        "optimizer keeps",
        lambda asked: _with_recipe(asked, master_bytes=4, moment_bytes=(4, 4)),
    ),
    Theory(
        "forgets the master copy",
        "master_bytes are the optimizer's, beside its moments",
        lambda asked: _with_recipe(asked, master_bytes=0),
    ),
    Theory(
        "forgets the master copy of parameters in float32",
        "whether there is one, master_bytes says, and not the size of the parameters",
        lambda asked: _with_recipe(
            asked,
            master_bytes=asked.recipe.master_bytes if asked.recipe.parameter_bytes < 4 else 0,
        ),
    ),
    Theory(
        "counts one moment of several",
        "moment_bytes has an entry for each: Adam keeps two",
        lambda asked: _with_recipe(asked, moment_bytes=asked.recipe.moment_bytes[:1]),
    ),
    Theory(
        "forgets the gradients",
        "they are whole at levels 0 and 1, and sharded from level 2 on",
        lambda asked: _with_recipe(asked, gradient_bytes=0),
    ),
)
