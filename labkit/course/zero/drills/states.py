"""Drills on ZeRO: states by level, traffic, the ranks that a model needs, offload."""

import math

from labkit import calc
from labkit.course.memory.drills import MIXED, as_gib, states_of, without_master
from labkit.interview.drills.drill import MODEL_SIZES, RANKS, amounts, billions, drill
from labkit.interview.drills.question import Solution, Trap

_ZERO = "10_zero_and_fsdp"
_NOTEBOOK = "10_zero_and_fsdp"
_DRAWS = {
    "params": billions(1.3, 2.7, 3, 6.7, 7, 8, 13, 34),
    "n": RANKS,
    "k": (2, 4, 8, 16),
}
_IN_BF16 = "parameters and gradients travel in bf16, on rings"


def left_whole(level: int) -> calc.Recipe:
    """Return a recipe of the parts that a level does not shard."""
    return calc.Recipe(name="whole", parameter_bytes=2, gradient_bytes=2 if level == 1 else 0)


@drill(
    "ze-1",
    "States of one rank under ZeRO",
    difficulty=1,
    notebook=_ZERO,
    prompt=f"ZeRO-{{level}} trains {{params}} parameters over {{dp}} GPUs: {MIXED}. How many "
    "bytes of model states does each GPU hold?",
    draws={"level": (1, 2), "params": MODEL_SIZES, "dp": (4, 8, 16, 32, 64)},
    unit="GB",
    digits=3,
    between=("2 GB", "2 TB"),
)
def zero_states(level: int, params: float, dp: int) -> Solution:
    """Split the states into those that are sharded over d ranks and the others."""
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
                states_of(params, "zero_paper", other, dp),
                "ZeRO-1 shards the optimizer's states, ZeRO-2 the gradients too.",
            ),
            Trap(
                "as ZeRO-3",
                states_of(params, "zero_paper", 3, dp),
                "Only ZeRO-3 shards the parameters as well.",
            ),
            Trap(
                "the limit for many ranks",
                states_of(params, left_whole(level)),
                "With this many ranks the sharded part is still there: divide it, don't drop it.",
            ),
            Trap(
                "forgot the float32 master copy",
                states_of(params, without_master("zero_paper"), level, dp),
                "The master copy is 4 of the optimizer's 12 bytes a parameter.",
            ),
        ],
    )


@drill(
    "ze-1",
    "States of one rank under ZeRO-3",
    difficulty=1,
    notebook=_ZERO,
    prompt=f"ZeRO-3 trains {{params}} parameters over {{dp}} GPUs: {MIXED}. How many bytes of "
    "model states does each GPU hold, what is gathered for a moment left out?",
    draws={"params": MODEL_SIZES, "dp": RANKS},
    unit="GB",
    digits=3,
    between=("0.2 GB", "800 GB"),
)
def zero3_states(params: float, dp: int) -> Solution:
    """Return all 16 bytes over d."""
    states = calc.model_state_bytes(params, "zero_paper", 3, dp)
    return Solution(
        states,
        [
            f"Everything is sharded: {calc.RECIPES['zero_paper'].bytes_per_parameter:g} B x "
            f"{params / 1e9:g}B / {dp}.",
            *(f"{name}: {part.substitution} = {part}." for name, part in states.parts.items()),
            f"Together {states}.",
        ],
        [
            Trap(
                "as ZeRO-2",
                states_of(params, "zero_paper", 2, dp),
                "ZeRO-2 keeps the parameters whole; ZeRO-3 shards them too.",
            ),
            Trap(
                "forgot the float32 master copy",
                states_of(params, without_master("zero_paper"), 3, dp),
                "The master copy is 4 of the 16 bytes.",
            ),
            Trap(
                "parameters alone",
                states["parameters"],
                "Gradients, master copy and moments are sharded, but they are there.",
            ),
            Trap(
                "GiB for GB",
                as_gib(float(states)),
                "A GB is 10^9 bytes; divided by 2^30 it is GiB.",
            ),
        ],
    )


@drill(
    "ze-1",
    "How many times ZeRO saves",
    difficulty=2,
    notebook=_ZERO,
    prompt=f"Training has {MIXED}. How many times less of these states does a GPU hold with "
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
    """Divide 16 bytes by the bytes that a rank keeps."""
    num = dp * 1e6  # any number of parameters that the ranks divide
    whole, left = states_of(num, "zero_paper"), states_of(num, "zero_paper", level, dp)
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
                whole / states_of(num, left_whole(level)),
                "4 and 8 times are what infinitely many ranks save.",
            ),
            Trap(
                "the other of ZeRO-1 and ZeRO-2",
                whole / states_of(num, "zero_paper", 3 - level, dp),
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
    "ze-5",
    "Bandwidth for optimizer states on the CPU",
    difficulty=3,
    notebook=_ZERO,
    prompt=f"{{params}} parameters over {{dp}} GPUs, {MIXED}. ZeRO-Offload keeps each rank's "
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
    """Divide (K_g + K_p) N/d by the seconds of the step."""
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
    """Return the least d for which 16 N/d fits."""
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


def _sent(strategy: str, params: float, n: int, k: int = 1) -> float:
    return float(calc.step_traffic_bytes(strategy, params, n, microbatches=k))


def _by_part(strategy: str, params: float, n: int, k: int) -> str:
    sent = calc.step_traffic_bytes(strategy, params, n, microbatches=k)
    return "; ".join(f"{name} {part}" for name, part in sent.parts.items())


@drill(
    "ze-1",
    "Traffic of ZeRO-2 with accumulation",
    difficulty=2,
    notebook=_NOTEBOOK,
    prompt=f"ZeRO-2 trains {{params}} parameters on {{n}} GPUs with {{k}} microbatches to a step; "
    f"{_IN_BF16}. Every microbatch's gradients are reduced, since only shards are kept. How much "
    "does each GPU send in a step?",
    draws=_DRAWS,
    unit="GB",
    between=("2 GB", "3 TB"),
)
def zero2_traffic(params: float, n: int, k: int) -> Solution:
    """k reduce-scatters and an all-gather."""
    sent = _sent("zero2", params, n, k)
    return Solution(
        sent,
        [
            f"Once over all parameters is {n - 1}/{n} x 2 B x {params / 1e9:g}B = "
            f"{calc.bytes_text(sent / (k + 1))}.",
            f"{k} reduce-scatters of gradients and one all-gather of parameters: {k + 1} times.",
            f"{_by_part('zero2', params, n, k)}; {calc.bytes_text(sent)} in all.",
        ],
        [
            Trap(
                "reduced once for all microbatches",
                _sent("zero1", params, n, k),
                "That is ZeRO-1, which adds up whole gradients and reduces once. ZeRO-2 keeps "
                "shards only and reduces for each microbatch.",
            ),
            Trap(
                "parameters gathered for every microbatch",
                2 * k * sent / (k + 1),
                "ZeRO-2 keeps whole parameters through the step, and gathers them once after it.",
            ),
            Trap(
                "as ZeRO-3",
                _sent("zero3", params, n, k),
                "ZeRO-3 also gathers parameters for each forward and backward pass.",
            ),
            Trap(
                "the all-gather left out",
                sent * k / (k + 1),
                "After the step each rank gathers the parameters that others have updated.",
            ),
        ],
    )


@drill(
    "ze-1",
    "Traffic of ZeRO-3 with accumulation",
    difficulty=2,
    notebook=_NOTEBOOK,
    prompt=f"ZeRO-3 trains {{params}} parameters on {{n}} GPUs with {{k}} microbatches to a step, "
    f"gathering for forward and again for backward; {_IN_BF16}. How much does each GPU send in a "
    "step?",
    draws=_DRAWS,
    unit="GB",
    between=("2 GB", "8 TB"),
)
def zero3_traffic(params: float, n: int, k: int) -> Solution:
    """Two all-gathers and a reduce-scatter for each microbatch."""
    sent = _sent("zero3", params, n, k)
    return Solution(
        sent,
        [
            f"Once over all parameters is {n - 1}/{n} x 2 B x {params / 1e9:g}B = "
            f"{calc.bytes_text(sent / (3 * k))}.",
            f"Each of {k} microbatches takes two all-gathers and a reduce-scatter: {3 * k} times.",
            f"{_by_part('zero3', params, n, k)}; {calc.bytes_text(sent)} in all.",
        ],
        [
            Trap(
                "accumulation left out",
                _sent("zero3", params, n),
                "Parameters are freed after use, so every microbatch gathers and reduces again.",
            ),
            Trap(
                "gathered once for each microbatch",
                2 * sent / 3,
                "Parameters are freed after forward and gathered once more for backward.",
            ),
            Trap(
                "as ZeRO-2",
                _sent("zero2", params, n, k),
                "ZeRO-2 keeps the parameters whole and gathers once in a step.",
            ),
            Trap(
                "as DDP",
                _sent("ddp", params, n, k),
                "DDP reduces gradients once and gathers nothing; ZeRO-3 sends 1.5 times that for "
                "each microbatch.",
            ),
        ],
    )
