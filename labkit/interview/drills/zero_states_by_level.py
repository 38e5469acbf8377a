"""Drills on ZeRO: what a rank holds by level, and what offloading moves."""

from labkit import calc
from labkit.interview.drills.drill import drill
from labkit.interview.drills.numbers import MODEL_SIZES, RANKS, amounts, billions
from labkit.interview.drills.question import Solution, Trap
from labkit.interview.drills.recipes import MIXED, as_gib, left_whole, states_of, without_master

_ZERO = "06_zero_and_fsdp"


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
    """All 16 bytes over d."""
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
    """16 bytes over what is left of them."""
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
