"""Drills on all-reduce: bytes, seconds, latencies, trees, two tiers."""

from labkit import calc
from labkit.interview.drills.drill import drill
from labkit.interview.drills.numbers import LATENCIES, LINKS, amounts
from labkit.interview.drills.question import Solution, Trap

_NOTEBOOK = "02_all_reduce_inside_out"


@drill(
    "co-2",
    "Bytes of a ring all-reduce",
    difficulty=1,
    notebook=_NOTEBOOK,
    prompt="{n} ranks all-reduce a tensor of {size} on a ring. How many bytes does each rank send?",
    draws={
        "n": (3, 4, 5, 6, 8, 10, 12, 16, 24),
        "size": amounts(
            *(f"{mb} MB" for mb in (24, 36, 48, 60, 72, 96, 120, 180, 240, 400, 600, 960))
        ),
    },
    unit="MB",
    digits=3,
    between=("1 MB", "2 GB"),
)
def ring_sent_bytes(n: int, size: float) -> Solution:
    """2(n-1)/n D."""
    ring = calc.collective("all_reduce", "ring", n, size)
    sent = ring.sent_bytes
    return Solution(
        sent,
        [
            f"A chunk is {calc.bytes_text(size / n)}, one of {n}.",
            f"Reduce-scatter and all-gather take {n - 1} steps each, "
            f"{ring.steps} together, and each sends one chunk.",
            f"{ring.steps} x {calc.bytes_text(size / n)} = {calc.bytes_text(sent)}.",
        ],
        [
            Trap(
                "one phase instead of two",
                sent / 2,
                "A reduce-scatter alone leaves each rank with one chunk; the all-gather sends "
                "as much again.",
            ),
            Trap(
                "n instead of n - 1",
                sent * n / (n - 1),
                "A rank never sends the chunk that it ends with: n - 1 steps in each phase.",
            ),
            Trap(
                "the whole tensor in each step",
                ring.steps * size,
                "Each step moves one chunk, an nth of the tensor.",
            ),
            Trap("bits for bytes", sent * 8, "The question is in bytes; a byte has 8 bits."),
        ],
    )


@drill(
    "co-2",
    "Seconds of a ring all-reduce",
    difficulty=1,
    notebook=_NOTEBOOK,
    prompt="A ring all-reduce of {size} over {n} ranks. Each link carries {link} in one direction, "
    "and a message costs {alpha} besides its bytes. How long does it take by the alpha-beta model?",
    draws={
        "n": (4, 8, 16, 32, 64),
        "size": amounts("4 MB", "10 MB", "16 MB", "25 MB", "64 MB", "100 MB"),
        "link": LINKS,
        "alpha": LATENCIES,
    },
    unit="ms",
    between=("0.05 ms", "50 ms"),
)
def ring_seconds(n: int, size: float, link: float, alpha: float) -> Solution:
    """2(n-1) (alpha + D/n beta)."""
    seconds = calc.collective("all_reduce", "ring", n, size).seconds(alpha, 1 / link)
    steps = calc.collective("all_reduce", "ring", n).steps
    latency = calc.collective("all_reduce", "ring", n, 0).seconds(alpha, 1 / link)
    return Solution(
        seconds,
        [
            f"2(n - 1) = {steps} steps, each of a chunk of {calc.bytes_text(size / n)}.",
            f"Latency: {steps} x {calc.seconds_text(alpha)} = {calc.seconds_text(latency)}.",
            f"Bytes: {steps} x {calc.bytes_text(size / n)} / ({calc.bytes_text(link)}/s) = "
            f"{calc.seconds_text(seconds - latency)}.",
            f"Together {calc.seconds_text(seconds)}.",
        ],
        [
            Trap(
                "one phase instead of two",
                calc.collective("reduce_scatter", "ring", n, size).seconds(alpha, 1 / link),
                "That is the reduce-scatter; the all-gather takes as long again.",
            ),
            Trap(
                "latency left out",
                seconds - latency,
                "Each of the 2(n - 1) steps also pays the latency of a message.",
            ),
            Trap(
                "the whole tensor in each step",
                latency + (seconds - latency) * n,
                "A step sends one chunk, an nth of the tensor.",
            ),
            Trap(
                "both directions counted as speed",
                latency + (seconds - latency) / 2,
                "A rank sends to the right only, so one direction of the link counts.",
            ),
        ],
    )


@drill(
    "co-8",
    "One tensor or many",
    difficulty=2,
    notebook=_NOTEBOOK,
    prompt="Gradients of {total} in all are all-reduced on a ring of {n} ranks, as {k} tensors of "
    "equal size, one after the other and not fused. A link carries {link} in one direction, a "
    "message costs {alpha} besides. How long do all of them take?",
    draws={
        "n": (8, 16, 32, 64),
        "total": amounts("200 MB", "500 MB", "1 GB", "2 GB"),
        "k": (50, 100, 200, 400),
        "link": LINKS[1:],
        "alpha": LATENCIES[2:],
    },
    unit="ms",
    digits=3,
    between=("1 ms", "2 s"),
)
def many_tensors(n: int, total: float, k: int, link: float, alpha: float) -> Solution:
    """k all-reduces of D/k each."""
    each = calc.collective("all_reduce", "ring", n, total / k).seconds(alpha, 1 / link)
    fused = calc.collective("all_reduce", "ring", n, total).seconds(alpha, 1 / link)
    steps = calc.collective("all_reduce", "ring", n).steps
    return Solution(
        k * each,
        [
            f"Fused into one tensor: {calc.seconds_text(fused)}, {steps} steps.",
            f"One of {k}: {calc.bytes_text(total / k)} in {steps} steps, "
            f"{calc.seconds_text(each)}.",
            f"The bytes are the same; the latencies come {k} times: "
            f"{calc.seconds_text(k * each)} in all.",
        ],
        [
            Trap(
                "as if they were one tensor",
                fused,
                "The bytes cost as much either way, but each tensor pays its own 2(n - 1) "
                "latencies.",
            ),
            Trap(
                "one latency for each tensor",
                fused - steps * alpha + k * alpha,
                "A ring all-reduce has 2(n - 1) steps, and each has a latency.",
            ),
            Trap(
                "latencies only",
                k * steps * alpha,
                "The bytes still have to travel: their term is that of one large tensor.",
            ),
            Trap("one phase instead of two", k * each / 2, "An all-reduce has two phases."),
        ],
    )
