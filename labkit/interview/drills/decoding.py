"""A drill on the time of a token: weights are read once for each."""

from labkit import calc
from labkit.interview.drills.drill import Shown, drill
from labkit.interview.drills.numbers import billions
from labkit.interview.drills.question import Solution, Trap

# As the data sheets have them, and calc: name, bytes per second.
_MEMORIES = [
    (title, Shown(each.memory_bytes_per_s, f"{each.memory_bytes_per_s / 1e12:g} TB/s"))
    for title, each in (
        ("A100", calc.GPUS["a100-80g"]),
        ("H100", calc.GPUS["h100"]),
        ("H200", calc.GPUS["h200"]),
        ("B200", calc.GPUS["b200"]),
    )
]


@drill(
    "in-1",
    "The fastest token of a batch of one",
    difficulty=2,
    notebook="16_one_request_and_its_cache",
    prompt="{params} parameters in {itemsize} are split evenly over {tp} {gpu} GPUs, whose memory "
    "gives {bandwidth} each. With one request at a time every weight is read once for each token. "
    "How long does a token take at the least, communication and KV cache left out?",
    draws={
        "params": billions(7, 8, 13, 34, 70, 175),
        "itemsize": (Shown(2, "bf16"), Shown(1, "fp8")),
        "tp": (2, 4, 8),
        "gpu bandwidth": _MEMORIES,
    },
    unit="ms",
    between=("0.1 ms", "200 ms"),
)
def fastest_token(params: float, itemsize: int, tp: int, bandwidth: float) -> Solution:
    """The weights' bytes over all GPUs' memory bandwidth."""
    weights = calc.Recipe(name="weights", parameter_bytes=itemsize, gradient_bytes=0)
    share = float(calc.model_state_bytes(params, weights, zero=3, dp=tp))
    seconds = share / bandwidth
    return Solution(
        seconds,
        [
            f"Weights: {itemsize} B x {params / 1e9:g}B, over {tp} GPUs "
            f"{calc.bytes_text(share)} each.",
            f"{calc.bytes_text(share)} / ({calc.bytes_text(bandwidth)}/s) = "
            f"{calc.seconds_text(seconds)}.",
            f"So at most {1 / seconds:.3g} tokens per second for one request.",
        ],
        [
            Trap(
                "one GPU reads all",
                seconds * tp,
                "Each GPU reads its own part, all at the same time.",
            ),
            Trap(
                "the other precision",
                seconds * (3 - itemsize) / itemsize,
                "bf16 has 2 bytes, fp8 has 1.",
            ),
            Trap("bits for bytes", seconds * 8, "Memory bandwidth is in bytes per second."),
            Trap("float32 weights", seconds * 4 / itemsize, "The weights are kept in fewer bytes."),
        ],
    )
