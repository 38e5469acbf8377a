"""Drills on model states: bytes by recipe, by ZeRO level, and what fits."""

import math
from dataclasses import replace

from labkit import calc
from labkit.interview.drills.drill import Shown, drill
from labkit.interview.drills.numbers import MODEL_SIZES, RANKS, amounts, billions
from labkit.interview.drills.question import Solution, Trap

_MEMORY, _ZERO = "05_where_memory_goes", "06_zero_and_fsdp"
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
_MIXED = "bf16 parameters and gradients, float32 master copy, Adam's two moments in float32"


def _states(params: float, recipe: calc.Recipe | str, zero: int = 0, dp: int = 1) -> float:
    return float(calc.model_state_bytes(params, recipe, zero, dp))


def _without_master(recipe: str) -> calc.Recipe:
    return replace(calc.RECIPES[recipe], master_bytes=0)


def _as_gib(nbytes: float) -> float:
    """What somebody means who writes the number of GiB and calls it GB."""
    return nbytes / calc.GiB * calc.GB


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
            f"{each.bytes_per_parameter:g} B x {params:.4g} = {states}.",
        ],
        [
            Trap(
                "forgot the float32 master copy",
                _states(params, _without_master(recipe)),
                "The optimizer updates a float32 copy, 4 bytes a parameter, besides the bf16 one.",
            ),
            Trap(
                "the other precision of gradients",
                _states(params, _OTHER[recipe]),
                "Gradients have 2 bytes in bf16 and 4 in float32: 16 or 18 bytes a parameter.",
            ),
            Trap(
                "parameters alone",
                states["parameters"],
                "Gradients, master copy and moments are several times the parameters.",
            ),
            Trap(
                "GiB for GB",
                _as_gib(float(states)),
                "A GB is 10^9 bytes; divided by 2^30 it is GiB.",
            ),
        ],
    )


@drill(
    "ze-1",
    "States of one rank under ZeRO",
    difficulty=1,
    notebook=_ZERO,
    prompt=f"ZeRO-{{level}} trains {{params}} parameters over {{dp}} GPUs: {_MIXED}. How many "
    "bytes of model states does each GPU hold?",
    draws={"level": (1, 2), "params": MODEL_SIZES, "dp": (4, 8, 16, 32, 64)},
    unit="GB",
    digits=3,
    between=("2 GB", "2 TB"),
)
def zero_states(level: int, params: float, dp: int) -> Solution:
    """What is sharded over d, and what is not."""
    states = calc.model_state_bytes(params, "zero_paper", level, dp)
    other = 3 - level
    return Solution(
        states,
        [
            f"Formula: {states.formula}.",
            *(f"{name}: {part.substitution} = {part}." for name, part in states.parts.items()),
            f"Together {states}.",
        ],
        [
            Trap(
                "the other of ZeRO-1 and ZeRO-2",
                _states(params, "zero_paper", other, dp),
                "ZeRO-1 shards the optimizer's states, ZeRO-2 the gradients too.",
            ),
            Trap(
                "as ZeRO-3",
                _states(params, "zero_paper", 3, dp),
                "Only ZeRO-3 shards the parameters as well.",
            ),
            Trap(
                "the limit for many ranks",
                _states(params, _kept(level)),
                "With this many ranks the sharded part is still there: divide it, don't drop it.",
            ),
            Trap(
                "forgot the float32 master copy",
                _states(params, _without_master("zero_paper"), level, dp),
                "The master copy is 4 of the optimizer's 12 bytes a parameter.",
            ),
        ],
    )


def _kept(level: int) -> calc.Recipe:
    """What a level leaves whole."""
    return calc.Recipe(name="whole", parameter_bytes=2, gradient_bytes=2 if level == 1 else 0)


@drill(
    "ze-1",
    "States of one rank under ZeRO-3",
    difficulty=1,
    notebook=_ZERO,
    prompt=f"ZeRO-3 trains {{params}} parameters over {{dp}} GPUs: {_MIXED}. How many bytes of "
    "model states does each GPU hold, what is gathered for a moment left out?",
    draws={"params": MODEL_SIZES, "dp": RANKS},
    unit="GB",
    digits=3,
    between=("0.2 GB", "800 GB"),
)
def zero3_states(params: float, dp: int) -> Solution:
    """All 16 bytes over d."""
    states = calc.model_state_bytes(params, "zero_paper", 3, dp)
    return Solution(
        states,
        [
            f"Everything is sharded: {calc.RECIPES['zero_paper'].bytes_per_parameter:g} B x "
            f"{params:.4g} / {dp}.",
            *(f"{name}: {part.substitution} = {part}." for name, part in states.parts.items()),
            f"Together {states}.",
        ],
        [
            Trap(
                "as ZeRO-2",
                _states(params, "zero_paper", 2, dp),
                "ZeRO-2 keeps the parameters whole; ZeRO-3 shards them too.",
            ),
            Trap(
                "forgot the float32 master copy",
                _states(params, _without_master("zero_paper"), 3, dp),
                "The master copy is 4 of the 16 bytes.",
            ),
            Trap(
                "parameters alone",
                states["parameters"],
                "Gradients, master copy and moments are sharded, but they are there.",
            ),
            Trap(
                "GiB for GB",
                _as_gib(float(states)),
                "A GB is 10^9 bytes; divided by 2^30 it is GiB.",
            ),
        ],
    )


@drill(
    "ze-1",
    "How many times ZeRO saves",
    difficulty=2,
    notebook=_ZERO,
    prompt=f"Training has {_MIXED}. How many times less of these states does a GPU hold with "
    "ZeRO-{level} over {dp} GPUs than with plain data parallelism?",
    draws={
        "level": (1, 2),
        "dp": (3, 4, 5, 6, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 72, 80, 96),
    },
    unit="x",
    digits=3,
    between=("1", "8"),
)
def zero_saving(level: int, dp: int) -> Solution:
    """16 bytes over what is left of them."""
    num = dp * 1e6  # any number of parameters that the ranks divide
    whole, left = _states(num, "zero_paper"), _states(num, "zero_paper", level, dp)
    sharded = 12 if level == 1 else 14
    return Solution(
        whole / left,
        [
            f"Whole: {whole / num:g} B a parameter.",
            f"ZeRO-{level}: {16 - sharded} + {sharded}/{dp} = {left / num:.4g} B.",
            f"{whole / num:g} / {left / num:.4g} = {whole / left:.4g}.",
        ],
        [
            Trap(
                "the limit for many ranks",
                whole / _states(num, _kept(level)),
                "4 and 8 times are what infinitely many ranks save.",
            ),
            Trap(
                "the other of ZeRO-1 and ZeRO-2",
                whole / _states(num, "zero_paper", 3 - level, dp),
                "ZeRO-1 shards 12 of the 16 bytes, ZeRO-2 shards 14.",
            ),
            Trap(
                "the number of ranks",
                dp,
                "Only ZeRO-3 divides everything by the number of ranks.",
            ),
        ],
    )


@drill(
    "ze-3",
    "GPUs that ZeRO-3 needs",
    difficulty=2,
    notebook=_ZERO,
    prompt=f"{{params}} parameters: {_MIXED}. Model states may take {{room}} of each GPU (10^9 "
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
    whole = _states(params, "zero_paper")
    return Solution(
        least,
        [
            f"All states: {calc.bytes_text(whole)}.",
            f"{calc.bytes_text(whole)} / {calc.bytes_text(room)} = {whole / room:.3f}, rounded up: "
            f"{least}.",
            f"Over {least} GPUs each holds "
            f"{calc.bytes_text(_states(params, 'zero_paper', 3, least))}.",
        ],
        [
            Trap("rounded down", least - 1, "Then the states are larger than the room for them."),
            Trap(
                "forgot the float32 master copy",
                _least_ranks(params, _without_master("zero_paper"), room),
                "The master copy is 4 of the 16 bytes a parameter.",
            ),
            Trap(
                "parameters alone",
                math.ceil(_states(params, _kept(2)) / room),
                "Gradients and the optimizer's states need room, too.",
            ),
        ],
    )


def _least_ranks(params: float, recipe: calc.Recipe | str, room: float) -> int:
    """By trying: near all states over the room, and what shards are rounded up to decides."""
    dp = max(1, int(_states(params, recipe) / room) - 1)
    while _states(params, recipe, 3, dp) > room:
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
                room / _without_master(recipe).bytes_per_parameter,
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
                room * calc.GiB / calc.GB / each.bytes_per_parameter,
                "The room is given in GB, 10^9 bytes.",
            ),
        ],
    )


@drill(
    "ze-5",
    "Bandwidth for optimizer states on the CPU",
    difficulty=3,
    notebook=_ZERO,
    prompt=f"{{params}} parameters over {{dp}} GPUs, {_MIXED}. ZeRO-Offload keeps each rank's "
    "share of the optimizer's states in CPU memory: in every step its gradients go down, its "
    "updated parameters come up. The step lasts {step}. How many bytes per second, both ways "
    "together, hide that behind it?",
    draws={
        "params": billions(7, 8, 13, 34, 70),
        "dp": (2, 4, 8),
        "step": amounts("0.8 s", "1.2 s", "2.5 s", "4 s"),
    },
    unit="GB/s",
    between=("0.5 GB/s", "200 GB/s"),
)
def offload_bandwidth(params: float, dp: int, step: float) -> Solution:
    """(K_g + K_p) N/d over the step."""
    rate = calc.offload_bandwidth(params, "zero_paper", step, dp=dp)
    moved = calc.offload_traffic_bytes(params, "zero_paper", dp=dp)
    on_disk = calc.offload_bandwidth(params, "zero_paper", step, to="disk", dp=dp)
    return Solution(
        rate,
        [
            *(f"{name}: {part.substitution} = {part}." for name, part in moved.parts.items()),
            f"{moved} in {calc.seconds_text(step)} is {rate}.",
        ],
        [
            Trap(
                "one way only",
                float(rate) / 2,
                "Gradients go down and parameters come back up.",
            ),
            Trap(
                "not divided among the ranks",
                float(rate) * dp,
                "Each rank moves its own share only.",
            ),
            Trap(
                "the optimizer's states travel",
                on_disk,
                "On the CPU they stay where they are, and the CPU updates them; from disk they "
                "would have to be read and written.",
            ),
            Trap("bits for bytes", float(rate) * 8, "GB/s are bytes per second."),
        ],
    )
