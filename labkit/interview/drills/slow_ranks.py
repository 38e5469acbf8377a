"""Drills on ranks of unequal speed: waiting for all, or for most."""

from labkit import calc
from labkit.calc.reliability import asynchronous_samples_per_s, synchronous_samples_per_s
from labkit.interview.drills.drill import drill
from labkit.interview.drills.numbers import amounts
from labkit.interview.drills.question import Solution, Trap

_NOTEBOOK = "03_data_parallel"


@drill(
    "dp-9",
    "One slow rank",
    difficulty=1,
    notebook=_NOTEBOOK,
    prompt="{n} ranks train synchronously with {batch} samples each. All need {fast} for a step, "
    "but one needs {slow}. Communication is free. How many samples per second is that?",
    draws={
        "n": (4, 8),
        "batch": (16, 32, 64, 128),
        "fast": amounts("200 ms", "250 ms", "320 ms", "400 ms"),
        "slow": amounts("450 ms", "500 ms", "600 ms", "800 ms"),
    },
    unit="",
    digits=3,
    between=("50", "6000"),
)
def slow_rank(n: int, batch: int, fast: float, slow: float) -> Solution:
    """n B / the slowest time."""
    times = [fast] * (n - 1) + [slow]
    rate = float(synchronous_samples_per_s(times, batch))
    alone = float(synchronous_samples_per_s(times[:-1], batch))
    never = float(asynchronous_samples_per_s(times, batch))
    whole = float(synchronous_samples_per_s([fast] * n, batch))
    return Solution(
        rate,
        [
            "A step ends when the slowest rank has its gradients: everyone waits for "
            f"{calc.seconds_text(slow)}.",
            f"In it {n} x {batch} = {n * batch} samples are done.",
            f"{n * batch} / {slow:g} s = {rate:.4g} samples per second, "
            f"{rate / whole:.0%} of {whole:.4g} without the slow one.",
        ],
        [
            Trap(
                "each at its own pace",
                never,
                "That is asynchronous training; here the fast ranks wait.",
            ),
            Trap(
                "without the slow rank",
                alone,
                "Leaving it out would be faster, but it takes part, and all wait for it.",
            ),
            Trap("as if it were not there", whole, "One slow rank holds up every step."),
            Trap(
                "the mean of the times",
                n * batch * n / sum(times),
                "The step takes as long as its slowest rank, not as the mean.",
            ),
        ],
    )


@drill(
    "dp-7",
    "Waiting for most of the ranks",
    difficulty=2,
    notebook="04_asynchrony_and_compression",
    prompt="{n} ranks with {batch} samples each. {late} of them need {slow} for a step, the others "
    "{fast}. A step takes the first {k} gradients that come, and drops the rest. How many samples "
    "per second count?",
    draws={
        "n late k": ((8, 1, 6), (8, 2, 6), (16, 1, 14), (16, 2, 14), (16, 3, 12), (32, 2, 28)),
        "batch": (16, 32, 64, 128),
        "fast": amounts("200 ms", "250 ms", "320 ms", "400 ms"),
        "slow": amounts("450 ms", "500 ms", "600 ms", "800 ms", "1.2 s"),
    },
    unit="",
    digits=3,
    between=("50", "30000"),
)
def backup_workers(n: int, late: int, k: int, batch: int, fast: float, slow: float) -> Solution:
    """k B / the k-th least time."""
    times = [fast] * (n - late) + [slow] * late
    rate = float(synchronous_samples_per_s(times, batch, wait_for=k))
    return Solution(
        rate,
        [
            f"{n - late} ranks are fast, and {k} gradients are enough: a step takes "
            f"{calc.seconds_text(fast)}.",
            f"{k} x {batch} = {k * batch} samples count in it.",
            f"{k * batch} / {fast:g} s = {rate:.4g} samples per second.",
        ],
        [
            Trap(
                "everyone waits",
                synchronous_samples_per_s(times, batch),
                "A step goes on when enough gradients are there; the slow ranks hold up nobody.",
            ),
            Trap(
                "all samples count",
                n * batch / fast,
                "The gradients that come too late are dropped, so their samples do not count.",
            ),
            Trap(
                "nobody waits",
                asynchronous_samples_per_s(times, batch),
                "That is fully asynchronous; here ranks wait for the first of each step.",
            ),
        ],
    )
