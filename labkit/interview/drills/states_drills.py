"""Drills on model states: bytes by recipe, by ZeRO level, and what fits."""

import math

from labkit import calc
from labkit.interview.drills.drill import Shown, drill
from labkit.interview.drills.numbers import MODEL_SIZES, amounts
from labkit.interview.drills.question import Solution, Trap
from labkit.interview.drills.recipes import MIXED, as_gib, left_whole, states_of, without_master

_MEMORY = "05_where_memory_goes"
_ZERO = "06_zero_and_fsdp"
_RECIPES = (
    Shown(
        "zero_paper",
        "bf16 parameters and gradients, a float32 master copy, and Adam's two moments in float32",
    ),
    Shown(
        "megatron_bf16",
        "bf16 parameters, float32 gradients, a float32 master copy, and Adam's two moments in "
        "float32",
    ),
)
_OTHER = {"zero_paper": "megatron_bf16", "megatron_bf16": "zero_paper"}


@drill(
    "me-1",
    "Model states by recipe",
    difficulty=1,
    notebook=_MEMORY,
    prompt="{params} parameters train on one GPU, nothing sharded: {recipe}. How many bytes are "
    "the model states, without activations?",
    draws={"params": MODEL_SIZES, "recipe": _RECIPES},
    unit="GB",
    digits=3,
    between=("10 GB", "5 TB"),
)
def training_states(params: float, recipe: str) -> Solution:
    """16 or 18 bytes a parameter."""
    each = calc.RECIPES[recipe]
    states = calc.model_state_bytes(params, recipe)
    return Solution(
        states,
        [
            *(
                f"{name}: {float(part) / params:g} B a parameter, {part}."
                for name, part in states.parts.items()
            ),
            f"{each.bytes_per_parameter:g} B x {params / 1e9:g}B = {states}.",
        ],
        [
            Trap(
                "forgot the float32 master copy",
                states_of(params, without_master(recipe)),
                "The optimizer updates a float32 copy, 4 bytes a parameter, besides the bf16 one.",
            ),
            Trap(
                "the other precision of gradients",
                states_of(params, _OTHER[recipe]),
                "Gradients have 2 bytes in bf16 and 4 in float32: 16 or 18 bytes a parameter.",
            ),
            Trap(
                "parameters alone",
                states["parameters"],
                "Gradients, master copy and moments are several times the parameters.",
            ),
            Trap(
                "GiB for GB",
                as_gib(float(states)),
                "A GB is 10^9 bytes; divided by 2^30 it is GiB.",
            ),
        ],
    )


@drill(
    "ze-3",
    "GPUs that ZeRO-3 needs",
    difficulty=2,
    notebook=_ZERO,
    prompt=f"{{params}} parameters: {MIXED}. Model states may take {{room}} of each GPU (10^9 "
    "bytes a GB), the rest is for activations. Over how many GPUs, at least, must ZeRO-3 shard?",
    draws={
        "params": MODEL_SIZES,
        "room": amounts("12 GB", "18 GB", "22 GB", "26 GB", "30 GB", "38 GB", "44 GB", "52 GB"),
    },
    unit="",
    digits=None,
    between=("3", "400"),
)
def ranks_to_fit(params: float, room: float) -> Solution:
    """The least d for which 16 N/d fits."""
    least = _least_ranks(params, "zero_paper", room)
    whole = states_of(params, "zero_paper")
    return Solution(
        least,
        [
            f"All states: {calc.bytes_text(whole)}.",
            f"{calc.bytes_text(whole)} / {calc.bytes_text(room)} = {whole / room:.3f}, rounded up: "
            f"{least}.",
            f"Over {least} GPUs each holds "
            f"{calc.bytes_text(states_of(params, 'zero_paper', 3, least))}.",
        ],
        [
            Trap("rounded down", least - 1, "Then the states are larger than the room for them."),
            Trap(
                "forgot the float32 master copy",
                _least_ranks(params, without_master("zero_paper"), room),
                "The master copy is 4 of the 16 bytes a parameter.",
            ),
            Trap(
                "parameters alone",
                math.ceil(states_of(params, left_whole(2)) / room),
                "Gradients and the optimizer's states need room, too.",
            ),
        ],
    )


def _least_ranks(params: float, recipe: calc.Recipe | str, room: float) -> int:
    """By trying: near all states over the room, and what shards are rounded up to decides."""
    dp = max(1, int(states_of(params, recipe) / room) - 1)
    while states_of(params, recipe, 3, dp) > room:
        dp += 1
    return dp


@drill(
    "me-1",
    "The largest model that fits",
    difficulty=2,
    notebook=_MEMORY,
    prompt="One GPU has {room} left for model states, nothing is sharded: {recipe}. How many "
    "parameters can it train?",
    draws={
        "room": amounts(
            *(f"{room} GB" for room in (18, 20, 22, 24, 28, 30, 36, 40, 44, 50, 54, 60, 64, 70)),
            *(f"{room} GB" for room in (72, 76, 90, 110, 120, 130, 150, 160)),
        ),
        "recipe": _RECIPES,
    },
    unit="billion",
    digits=3,
    between=("1 billion", "12 billion"),
)
def largest_model(room: float, recipe: str) -> Solution:
    """The room over the bytes of a parameter."""
    each = calc.RECIPES[recipe]
    num = room / each.bytes_per_parameter
    return Solution(
        num,
        [
            f"A parameter takes {each.bytes_per_parameter:g} B: {each.parameter_bytes:g} itself, "
            f"{each.gradient_bytes:g} its gradient, {each.optimizer_bytes:g} the optimizer's.",
            f"{calc.bytes_text(room)} / {each.bytes_per_parameter:g} B = {calc.count_text(num)}.",
            f"Back again: {calc.model_state_bytes(num, recipe)}.",
        ],
        [
            Trap(
                "forgot the float32 master copy",
                room / without_master(recipe).bytes_per_parameter,
                "The optimizer keeps a float32 copy, 4 bytes a parameter.",
            ),
            Trap(
                "parameters alone",
                room / each.parameter_bytes,
                "That is what one could load, not train.",
            ),
            Trap(
                "the other precision of gradients",
                room / calc.RECIPES[_OTHER[recipe]].bytes_per_parameter,
                "Gradients have 2 bytes in bf16 and 4 in float32.",
            ),
            Trap(
                "GiB for GB",
                room * calc.units.GiB / calc.units.GB / each.bytes_per_parameter,
                "The room is given in GB, 10^9 bytes.",
            ),
        ],
    )
