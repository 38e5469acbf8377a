"""Drills on what data parallelism sends in a step, by strategy."""

from labkit import calc
from labkit.interview.drills.drill import drill
from labkit.interview.drills.numbers import RANKS, billions
from labkit.interview.drills.question import Solution, Trap

_NOTEBOOK = "06_zero_and_fsdp"
_DRAWS = {
    "params": billions(1.3, 2.7, 3, 6.7, 7, 8, 13, 34),
    "n": RANKS,
    "k": (2, 4, 8, 16),
}
_IN_BF16 = "parameters and gradients travel in bf16, on rings"


def _sent(strategy: str, params: float, n: int, k: int = 1) -> float:
    return float(calc.step_traffic_bytes(strategy, params, n, microbatches=k))


def _by_part(strategy: str, params: float, n: int, k: int) -> str:
    sent = calc.step_traffic_bytes(strategy, params, n, microbatches=k)
    return "; ".join(f"{name} {part}" for name, part in sent.parts.items())


@drill(
    "dp-1",
    "Traffic of plain data parallelism",
    difficulty=1,
    notebook="03_data_parallel",
    prompt="DDP trains {params} parameters on {n} GPUs; gradients travel in {bits}-bit numbers, on "
    "a ring. How much does each GPU send in a step?",
    draws={"params": _DRAWS["params"], "n": (4, 6, 8, 12, 16, 24, 32), "bits": (16, 32)},
    unit="GB",
    digits=3,
    between=("1 GB", "300 GB"),
)
def ddp_traffic(params: float, n: int, bits: int) -> Solution:
    """2(n-1)/n of the gradients' bytes."""
    size = bits // 8
    sent = float(calc.step_traffic_bytes("ddp", params, n, itemsize=size))
    return Solution(
        sent,
        [
            f"The gradients are {size} B x {params / 1e9:g}B = {calc.bytes_text(size * params)}.",
            f"A ring all-reduce sends 2 x {n - 1}/{n} of that: {calc.bytes_text(sent)}.",
        ],
        [
            Trap(
                "one phase instead of two",
                sent / 2,
                "An all-reduce is a reduce-scatter and an all-gather.",
            ),
            Trap("bits for bytes", sent * 8, "A byte has 8 bits."),
            Trap(
                "the gradients once",
                size * params,
                "A ring sends 2(n - 1)/n of them.",
            ),
            Trap(
                "a copy for every other rank",
                (n - 1) * size * params,
                "On a ring chunks are added up on their way: about twice the gradients are sent, "
                "however many ranks there are.",
            ),
        ],
    )


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


@drill(
    "dp-5",
    "Forgotten no_sync",
    difficulty=2,
    notebook="03_data_parallel",
    prompt="DDP accumulates {k} microbatches on {n} GPUs, {params} parameters, and nobody has "
    "written no_sync: every backward pass all-reduces the bf16 gradients on a ring. How much more "
    "does each GPU send in a step than it had to?",
    draws=_DRAWS,
    unit="GB",
    between=("1 GB", "3 TB"),
)
def forgotten_no_sync(params: float, n: int, k: int) -> Solution:
    """k - 1 all-reduces too many."""
    once = _sent("ddp", params, n)
    return Solution(
        (k - 1) * once,
        [
            f"One all-reduce sends 2 x {n - 1}/{n} x 2 B x {params / 1e9:g}B = "
            f"{calc.bytes_text(once)}.",
            f"One is needed, {k} are made: {k - 1} too many.",
            f"{k - 1} x {calc.bytes_text(once)} = {calc.bytes_text((k - 1) * once)}.",
        ],
        [
            Trap(
                "all of them, not what is too much",
                k * once,
                "The last all-reduce is needed: it is the others that are too many.",
            ),
            Trap(
                "one phase instead of two",
                (k - 1) * once / 2,
                "An all-reduce is a reduce-scatter and an all-gather.",
            ),
            Trap("what is needed", once, "That is the all-reduce that has to be there."),
        ],
    )
