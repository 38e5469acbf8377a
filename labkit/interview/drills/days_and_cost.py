"""Drills on how long training takes, and what it costs."""

from labkit import calc
from labkit.interview.drills.drill import drill
from labkit.interview.drills.numbers import MODEL_SIZES, PEAKS, amounts, billions
from labkit.interview.drills.question import Solution, Trap

_NOTEBOOK = "11_combining_and_planning"


_SIZES = billions(1.3, 7, 8, 13, 34, 70, 175)


_TRAINING = {
    "params": _SIZES,
    "tokens": amounts("0.3 trillion", "1 trillion", "2 trillion", "5 trillion", "15 trillion"),
    "gpus": (128, 256, 512, 1024, 2048, 4096),
    "gpu peak": PEAKS,
    "percent": (30, 35, 38, 40, 45, 50),
}


_TRAINING_PROMPT = (
    "{params} parameters train on {tokens} tokens with {gpus} {gpu} GPUs of {peak} TFLOP/s dense "
    "bf16 peak at an MFU of {percent}%, by 6 N a token. "
)


@drill(
    "hy-4",
    "Days of a training",
    difficulty=1,
    notebook=_NOTEBOOK,
    prompt=_TRAINING_PROMPT + "How long does it take without interruptions?",
    draws=_TRAINING,
    unit="days",
    between=("2 days", "400 days"),
)
def days_of_training(params: float, tokens: float, gpus: int, peak: int, percent: int) -> Solution:
    """6 T P / (n X)."""
    achieved = percent / 100 * peak * 1e12
    span = calc.training_days(tokens, params, gpus, achieved)
    work = calc.training_flops(params, tokens)
    return Solution(
        span,
        [
            f"6 N D = 6 x {params / 1e9:g}B x {tokens / 1e12:g}T = {work}.",
            f"A GPU achieves {percent}% of {peak} TFLOP/s, {achieved:.4g} a second; {gpus} of them "
            f"{gpus * achieved:.4g}.",
            f"{float(span):.4g} s = {span.to('days'):.4g} days.",
        ],
        [
            Trap(
                "at the peak",
                calc.training_days(tokens, params, gpus, peak * 1e12),
                "The MFU is the share of the peak that is achieved.",
            ),
            Trap(
                "forward alone",
                float(span) / 3,
                "2 N a token is a forward pass; training takes 6 N.",
            ),
            Trap(
                "recomputation counted",
                calc.training_days(tokens, params, gpus, achieved, "full"),
                "An MFU does not count what is computed again: it is in the MFU already.",
            ),
            Trap("hours taken for days", float(span) * 24, "A day has 24 hours."),
        ],
    )


@drill(
    "hy-4",
    "Cost of a training",
    difficulty=2,
    notebook=_NOTEBOOK,
    prompt=_TRAINING_PROMPT + "A GPU-hour costs {price} dollars. How many dollars is it?",
    draws={**_TRAINING, "price": (1.8, 2.0, 2.5, 3.0, 4.5)},
    unit="million",
    between=("0.05 million", "200 million"),
)
def cost_of_training(
    params: float, tokens: float, gpus: int, peak: int, percent: int, price: float
) -> Solution:
    """GPU-hours times the price of one."""
    span = calc.training_days(tokens, params, gpus, percent / 100 * peak * 1e12)
    hours = gpus * span.to("h")
    return Solution(
        hours * price,
        [
            f"It takes {span.to('h'):,.1f} hours.",
            f"{gpus} GPUs: {hours:,.0f} GPU-hours.",
            f"Times {price:g} dollars: {hours * price / 1e6:.4g} million dollars.",
        ],
        [
            Trap("at the peak", hours * price * percent / 100, "The MFU makes it take longer."),
            Trap(
                "forward alone",
                hours * price / 3,
                "2 N a token is a forward pass; training takes 6 N.",
            ),
            Trap("GPU-hours, not dollars", hours, "Each of them has a price."),
            Trap(
                "days for hours",
                hours * price / 24,
                "The price is that of an hour, and a day has 24.",
            ),
        ],
    )


@drill(
    "hy-4",
    "Operations of a training",
    difficulty=1,
    notebook=_NOTEBOOK,
    prompt="A dense model of {params} parameters trains on {tokens} tokens, nothing recomputed, "
    "attention's scores left out. How many floating-point operations is that?",
    draws={
        "params": MODEL_SIZES,
        "tokens": amounts(
            *(f"{tokens} trillion" for tokens in (0.3, 0.5, 1, 1.4, 2, 3, 5, 8, 15)),
        ),
    },
    unit="FLOP",
    between=("1e21 FLOP", "1e26 FLOP"),
)
def operations_of_training(params: float, tokens: float) -> Solution:
    """6 N D."""
    work = calc.training_flops(params, tokens)
    return Solution(
        work,
        [
            "Each weight takes 2 operations a token forward and 4 backward.",
            f"{work.formula} = {work.substitution} = {float(work):.4g}.",
        ],
        [
            Trap("forward alone", float(work) / 3, "Backward takes twice as many as forward."),
            Trap(
                "with recomputation",
                calc.training_flops(params, tokens, "full"),
                "8 N D has a second forward pass in it; here nothing is recomputed.",
            ),
            Trap(
                "an operation for each weight",
                float(work) / 2,
                "A multiplication and an addition are two operations.",
            ),
        ],
    )
