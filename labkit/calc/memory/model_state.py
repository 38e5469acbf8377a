"""Model states of one rank: parameters, gradients, and what the optimizer keeps.

    zero 0   (K_p + K_g + K_o) N            every rank holds all
    zero 1   (K_p + K_g) N + K_o N/d        optimizer states sharded over d ranks
    zero 2   K_p N + (K_g + K_o) N/d        gradients too
    zero 3   (K_p + K_g + K_o) N/d          parameters too

N parameters, K bytes each by kind (recipe.py). What a step needs besides is not in it: activations,
units that zero 3 has gathered (whole_units.py), buckets, casts.
Paper: Rajbhandari et al., "ZeRO: memory optimizations toward training trillion parameter models",
arXiv:1910.02054, figure 1 and table 1.
"""

from __future__ import annotations

from labkit.calc.checked_numbers import check_not_negative, check_ranks, shown
from labkit.calc.memory.recipe import Recipe, recipe_of
from labkit.calc.result import Result, number_of, total
from labkit.calc.units import number_text

# From which level on a kind is sharded.
_SHARDED_FROM = {"parameters": 3, "gradients": 2, "master": 1, "moments": 1}
_LEVELS = (0, 1, 2, 3)


def model_state_bytes(
    num_params: float | Result, recipe: Recipe | str, zero: int = 0, dp: int = 1
) -> Result:
    """Bytes of one rank, by part: parameters, gradients, master, moments.

    num_params: of the model, or of the share of it that tensor and pipeline parallelism leave here.
    dp: ranks over which zero shards; the largest shard counts, which has N/d rounded up.
    model_state_bytes(7.5e9, "zero_paper", zero=1, dp=64).to("GB") == 31.40625
    ValueError for a level that is none and for numbers that cannot be.
    """
    recipe, num = recipe_of(recipe), count_of(num_params)
    dp = check_ranks(dp, "dp")
    if type(zero) is not int or zero not in _LEVELS:
        raise ValueError(f"zero={shown(zero)}: give 0, 1, 2 or 3")
    each = {
        "parameters": recipe.parameter_bytes,
        "gradients": recipe.gradient_bytes,
        "master": recipe.master_bytes,
        "moments": sum(recipe.moment_bytes),
    }
    parts = {
        kind: _part(kind, size, num, dp if zero >= _SHARDED_FROM[kind] else 1)
        for kind, size in each.items()
        if size or kind == "parameters"
    }
    return total(
        f"model states of one rank, zero {zero}",
        parts,
        formula=_FORMULAS[zero],
        convention=f"{recipe.name}: {number_text(recipe.bytes_per_parameter)} B per parameter; "
        "activations, buckets and gathered units are not in it" + _casts(recipe),
        source="Rajbhandari et al., ZeRO, arXiv:1910.02054",
    )


_FORMULAS = (
    "(K_p + K_g + K_o) N",
    "(K_p + K_g) N + K_o N/d",
    "K_p N + (K_g + K_o) N/d",
    "(K_p + K_g + K_o) N/d",
)


def _casts(recipe: Recipe) -> str:
    """What a step needs besides; for a moment only, so it is in no sum of what stays."""
    size = recipe.cast_bytes
    return f", nor casts, {number_text(size)} B per parameter within a step" if size else ""


def _part(kind: str, size: float, num: int, ranks: int) -> Result:
    shard = -(-num // ranks)
    how = f"{number_text(size)} B * {num:,}" + (f" / {ranks}" if ranks > 1 else "")
    return Result(size * shard, "bytes", kind, substitution=how)


def count_of(num_params: float | Result) -> int:
    """A number of parameters, whole. TypeError and ValueError for what is none."""
    num = number_of(num_params, "num_params", "parameters")
    check_not_negative(num, "num_params")
    return round(num)
