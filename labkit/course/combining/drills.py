"""Drills on a whole training: utilisation, operations, days and cost."""

from itertools import product

from labkit import calc
from labkit.interview.drills.drill import MODEL_SIZES, PEAKS, Shown, amounts, billions, drill
from labkit.interview.drills.question import Solution, Trap

_NOTEBOOK = "18_combining_and_planning"
_SIZES = billions(1.3, 7, 8, 13, 34, 70, 175)
_RUN = (
    "{gpus} {gpu} GPUs, {peak} TFLOP/s dense bf16 peak each, train {params} parameters at {rate} "
    "tokens per second, all together"
)
_ROW = "params gpu peak gpus rate"
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


def _rates(times: int, shares: tuple[float, ...]) -> list[tuple[Shown, str, int, int, int]]:
    """Rows of parameters, GPU, peak TFLOP/s, GPUs and tokens/s, of runs that could have been.

    times: operations of a parameter and a token that the shares count, 6 or 8.
    """
    rows = []
    for params, (gpu, peak), gpus, share in product(_SIZES, PEAKS, (64, 256, 512, 1024), shares):
        whole = calc.mfu(1.0, times * params.value, gpus, peak * 1e12)
        rows.append((params, gpu, peak, gpus, int(float(f"{share / float(whole):.2e}"))))
    return rows


@drill(
    "hy-4",
    "MFU from tokens per second",
    difficulty=1,
    notebook=_NOTEBOOK,
    prompt=_RUN + ". What is the MFU, by 6 N a token, without attention's scores?",
    draws={_ROW: _rates(6, (0.23, 0.31, 0.35, 0.38, 0.42, 0.47, 0.52))},
    unit="%",
    between=("5%", "70%"),
)
def mfu_from_tokens(params: float, peak: int, gpus: int, rate: int) -> Solution:
    """6 N tokens/s over all peaks."""
    share = calc.mfu(rate, 6 * params, gpus, peak * 1e12)
    return Solution(
        share,
        [
            f"A token takes 6 x {params / 1e9:g}B = {6 * params:.4g} operations, "
            "forward and backward.",
            f"{rate:,} tokens/s: {6 * params * rate:.4g} a second.",
            f"All GPUs could do {gpus} x {peak} TFLOP/s = {gpus * peak * 1e12:.4g}.",
            f"{share.formula}: {share}.",
        ],
        [
            Trap(
                "forward alone",
                calc.mfu(rate, 2 * params, gpus, peak * 1e12),
                "2 N is a forward pass; backward takes twice as much, 6 N together.",
            ),
            Trap(
                "recomputation counted",
                float(share) * 8 / 6,
                "8 N a token is HFU with full recomputation; MFU counts the model's own 6 N.",
            ),
            Trap(
                "the peak with sparsity",
                calc.mfu(rate, 6 * params, gpus, 2 * peak * 1e12),
                "Data sheets print twice the dense peak for sparse matrices.",
            ),
        ],
    )


@drill(
    "hy-4",
    "HFU with full recomputation",
    difficulty=2,
    notebook=_NOTEBOOK,
    prompt=_RUN + ", with full activation recomputation. What is the HFU, attention's scores left "
    "out?",
    draws={_ROW: _rates(8, (0.28, 0.36, 0.41, 0.47, 0.52, 0.58))},
    unit="%",
    between=("5%", "80%"),
)
def hfu_from_tokens(params: float, peak: int, gpus: int, rate: int) -> Solution:
    """8 N tokens/s over all peaks."""
    factor = calc.training_flops(params, 1, "full")
    hfu = calc.mfu(rate, factor, gpus, peak * 1e12)
    mfu = calc.mfu(rate, calc.training_flops(params, 1), gpus, peak * 1e12)
    return Solution(
        hfu,
        [
            f"Forward twice and backward: 8 N = {factor} a token.",
            f"{rate:,} tokens/s: {float(factor) * rate:.4g} operations a second.",
            f"Over {gpus} x {peak} TFLOP/s: {100 * float(hfu):.3g}%; the MFU is {mfu}.",
        ],
        [
            Trap(
                "MFU",
                mfu,
                "MFU leaves out what is computed again; HFU counts all that the hardware did.",
            ),
            Trap(
                "two extra passes",
                float(mfu) * 10 / 6,
                "Recomputation is one more forward pass: 2 N more, not 4 N.",
            ),
            Trap("the peak with sparsity", float(hfu) / 2, "The given peak is the dense one."),
        ],
    )


@drill(
    "hy-4",
    "Tokens per second at an MFU",
    difficulty=2,
    notebook=_NOTEBOOK,
    prompt="{gpus} {gpu} GPUs, {peak} TFLOP/s dense bf16 peak each, train {params} parameters with "
    "an MFU of {percent}%, counted as 6 N a token. How many tokens per second is that, all GPUs "
    "together?",
    draws={
        "gpus": (64, 128, 256, 512, 1024, 2048),
        "gpu peak": PEAKS,
        "params": _SIZES,
        "percent": (28, 32, 35, 38, 42, 45, 50),
    },
    unit="thousand",
    between=("5 thousand", "50000 thousand"),
)
def tokens_at_mfu(gpus: int, peak: int, params: float, percent: int) -> Solution:
    """MFU n peak / 6 N."""
    of_one = float(calc.mfu(1.0, 6 * params, gpus, peak * 1e12))
    rate = percent / 100 / of_one
    return Solution(
        rate,
        [
            f"The GPUs do {percent}% of {gpus} x {peak} TFLOP/s = "
            f"{percent / 100 * gpus * peak * 1e12:.4g} operations a second.",
            f"A token takes 6 x {params / 1e9:g}B = {6 * params:.4g}.",
            f"{rate:,.0f} tokens per second.",
        ],
        [
            Trap("at the peak", 1 / of_one, "Only the MFU's share of the peak is model work."),
            Trap("forward alone", 3 * rate, "2 N is a forward pass; training takes 6 N a token."),
            Trap("recomputation counted", rate * 6 / 8, "The MFU counts 6 N a token."),
            Trap("one GPU", rate / gpus, "All GPUs together were asked for."),
        ],
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


@drill(
    "hy-5",
    "Cost of tokens on a mixed fleet",
    difficulty=2,
    notebook="30_unequal_machines",
    prompt="{a} GPUs of one kind process {fast} tokens/s each and cost {high} dollars an hour. "
    "{b} GPUs of another process {slow} tokens/s and cost {low} dollars. All train one model, with "
    "shares in proportion to speed; communication is free. How many dollars do a million tokens "
    "cost?",
    draws={
        "a b": ((32, 32), (32, 64), (64, 32), (16, 48)),
        "fast": (9_000, 10_000, 12_000),
        "slow": (2_500, 3_000, 4_000),
        "high": (2.5, 3.0, 4.0),
        "low": (0.8, 1.2, 1.8),
    },
    unit="",
    between=("0.02", "0.5"),
)
def cost_on_a_mixed_fleet(
    a: int, b: int, fast: int, slow: int, high: float, low: float
) -> Solution:
    """All dollars over all tokens."""
    dollars, tokens = a * high + b * low, 3600 * (a * fast + b * slow)
    alone = high / (3600 * fast) * 1e6
    return Solution(
        dollars / tokens * 1e6,
        [
            f"An hour costs {a} x {high:g} + {b} x {low:g} = {dollars:g} dollars.",
            f"Speeds add up: {a} x {fast:,} + {b} x {slow:,} = {a * fast + b * slow:,} tokens/s, "
            f"{tokens / 1e6:,.0f} million in an hour.",
            f"{dollars:g} / {tokens / 1e6:,.0f} = {dollars / tokens * 1e6:.3g} dollars. The fast "
            f"kind alone: {alone:.3g}.",
        ],
        [
            Trap(
                "equal shares",
                dollars / (3600 * (a + b) * slow) * 1e6,
                "With equal shares every GPU works at the slow one's pace; here shares differ.",
            ),
            Trap(
                "the mean of two prices",
                (alone + low / (3600 * slow) * 1e6) / 2,
                "The kinds process unequal numbers of tokens: divide all dollars by all tokens.",
            ),
            Trap(
                "the fast kind alone",
                alone,
                "The slow GPUs are paid for too, and their tokens cost another price.",
            ),
        ],
    )
