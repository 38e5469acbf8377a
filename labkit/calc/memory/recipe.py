"""What training holds for each parameter: which copies, of how many bytes, and for how long.

                    parameter  gradient  master  moments      B per parameter, sharded over d
    zero_paper          2          2        4     4 + 4       16      2 + 2 + 12/d
    megatron_bf16       2          4        4     4 + 4       18      6 + 12/d
    amp                 4          4        -     4 + 4       16      8 + 8/d, and 2 in a step
    fp32                4          4        -     4 + 4       16      8 + 8/d
    pure_bf16           2          2        -     2 + 2        8      4 + 4/d
    adam_8bit           2          2        -     1 + 1        6.03   4 + 2.03/d
    sgd                 4          4        -     4           12      8 + 4/d
    sgd_plain           4          4        -     -            8      8

Master copy and moments are the optimizer's: zero 1 shards them, zero 2 gradients too, zero 3 all.

Sources: Rajbhandari et al., "ZeRO", arXiv:1910.02054, section 3.1, for zero_paper; Megatron-LM's
docs/dist_optimizer.md for megatron_bf16 and fp32; Dettmers et al., "8-bit optimizers via block-wise
quantization", arXiv:2110.02861; torch.amp keeps float32 parameters and casts them as they are used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType

from labkit.calc.checked_numbers import check_itemsize, check_not_negative, is_whole

_LEAST_ACTIVATION_BYTES = 2


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Bytes per parameter of each copy that lives from step to step, and of casts within one."""

    name: str
    parameter_bytes: float
    gradient_bytes: float
    master_bytes: float = 0
    """Of a copy in higher precision, which the optimizer updates."""
    moment_bytes: tuple[float, ...] = ()
    """Of each of the optimizer's own values: two for Adam, one for momentum."""
    cast_bytes: float = 0
    """Of copies that live within a step only, such as those that autocast keeps until backward."""
    activation_bytes: int | None = None
    """Of a number in an activation; None: of what it computes with, casts or parameters, but 2 or
    more: matrices in 8 bits halve no activation by themselves."""

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name == "moment_bytes":
                if not isinstance(value, tuple):
                    raise TypeError(f"moment_bytes={value!r}: give a tuple, such as (4, 4)")
                for moment in value:
                    check_not_negative(moment, "moment_bytes")
            elif each.name == "activation_bytes":
                if value is not None:
                    check_itemsize(value, each.name)
            elif each.name != "name":
                check_not_negative(value, each.name)

    @property
    def optimizer_bytes(self) -> float:
        """Master copy and moments: K in the ZeRO paper, 12 for mixed precision and Adam."""
        return self.master_bytes + sum(self.moment_bytes)

    @property
    def activation_itemsize(self) -> int:
        """Bytes of a number in an activation. ValueError where that would be a fraction of one."""
        if self.activation_bytes is not None:
            return int(self.activation_bytes)
        name = "cast_bytes" if self.cast_bytes else "parameter_bytes"
        size = getattr(self, name)
        if not is_whole(size):
            raise ValueError(
                f"recipe {self.name!r} has {name}={size!r}, and numbers of an activation have "
                "whole bytes: give the recipe an activation_bytes, such as 2"
            )
        return max(int(size), _LEAST_ACTIVATION_BYTES)

    @property
    def bytes_per_parameter(self) -> float:
        """Of everything that lives from step to step, on one rank alone."""
        return self.parameter_bytes + self.gradient_bytes + self.optimizer_bytes


# Of 8-bit states each block of 256 values, in bitsandbytes, has a float32 scale of its own. (The
# paper has blocks of 2048.)
_QUANTIZED = 1 + 4 / 256

RECIPES: Mapping[str, Recipe] = MappingProxyType(
    {
        recipe.name: recipe
        for recipe in (
            Recipe(
                name="zero_paper",
                parameter_bytes=2,
                gradient_bytes=2,
                master_bytes=4,
                moment_bytes=(4, 4),
            ),
            Recipe(
                name="megatron_bf16",
                parameter_bytes=2,
                gradient_bytes=4,
                master_bytes=4,
                moment_bytes=(4, 4),
            ),
            Recipe(
                name="amp",
                parameter_bytes=4,
                gradient_bytes=4,
                moment_bytes=(4, 4),
                cast_bytes=2,
            ),
            Recipe(name="fp32", parameter_bytes=4, gradient_bytes=4, moment_bytes=(4, 4)),
            Recipe(name="pure_bf16", parameter_bytes=2, gradient_bytes=2, moment_bytes=(2, 2)),
            Recipe(
                name="adam_8bit",
                parameter_bytes=2,
                gradient_bytes=2,
                moment_bytes=(_QUANTIZED, _QUANTIZED),
            ),
            Recipe(name="sgd", parameter_bytes=4, gradient_bytes=4, moment_bytes=(4,)),
            Recipe(name="sgd_plain", parameter_bytes=4, gradient_bytes=4),
        )
    }
)
"""By name; the table above."""


def recipe_of(recipe: Recipe | str) -> Recipe:
    """A recipe, given itself or by its name in RECIPES. ValueError names those there are."""
    if isinstance(recipe, Recipe):
        return recipe
    if isinstance(recipe, str) and recipe in RECIPES:
        return RECIPES[recipe]
    raise ValueError(f"{recipe!r} is no Recipe and none of {', '.join(RECIPES)}")
