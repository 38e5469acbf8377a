"""Bytes of model states, as the drills on memory ask for them."""

from dataclasses import replace

from labkit import calc

MIXED = "bf16 parameters and gradients, float32 master copy, Adam's two moments in float32"


def states_of(params: float, recipe: calc.Recipe | str, zero: int = 0, dp: int = 1) -> float:
    """Bytes of one rank."""
    return float(calc.model_state_bytes(params, recipe, zero, dp))


def without_master(recipe: str) -> calc.Recipe:
    """The same without its float32 copy of the parameters."""
    return replace(calc.RECIPES[recipe], master_bytes=0)


def as_gib(nbytes: float) -> float:
    """What somebody means who writes the number of GiB and calls it GB."""
    return nbytes / calc.units.GiB * calc.units.GB


def left_whole(level: int) -> calc.Recipe:
    """What a level leaves whole."""
    return calc.Recipe(name="whole", parameter_bytes=2, gradient_bytes=2 if level == 1 else 0)
