"""What drills draw from: model sizes, links, GPUs, as they are in the field."""

from labkit.calc.hardware import GPUS
from labkit.calc.result import Result, amount
from labkit.calc.units import count_text
from labkit.interview.drills.drill import Shown

RANKS = (4, 8, 16, 32, 64, 128)


def num_text(num: int, noun: str) -> str:
    """`1 stage`, `2 stages`, `1,024 tokens`; noun: one whose plural ends in s."""
    return f"{num:,} {noun}{'' if num == 1 else 's'}"


BATCHES = tuple(Shown(num, num_text(num, "sequence")) for num in (1, 2, 4, 8))
"""Sequences in a microbatch; the prompt says the noun, too."""


def billions(*sizes: float) -> tuple[Shown, ...]:
    """Numbers of parameters, as people say them: 7B, 1.3B."""
    return tuple(Shown(size * 1e9, count_text(size * 1e9)) for size in sizes)


def amounts(*texts: str) -> tuple[Result, ...]:
    """Quantities with their units, as the prompt says them: "25 MB", "5 us"."""
    return tuple(amount(text) for text in texts)


MODEL_SIZES = billions(
    *(1.1, 1.3, 1.5, 2.7, 3, 6.7, 7, 8, 9, 12, 13, 14, 20, 22, 27, 30, 32, 34, 40, 65, 70, 72),
    *(104, 123, 145, 175, 180),
)
LATENCIES = amounts("2 us", "3 us", "5 us", "8 us", "10 us", "20 us")
LINKS = amounts("25 GB/s", "50 GB/s", "100 GB/s", "300 GB/s", "450 GB/s")
"""One direction of one GPU: adapters of 200 and 400 Gbit/s, and NVLink."""
# name, peak in TFLOP/s: as calc has them.
PEAKS = tuple(
    (title, round(GPUS[name].flops_per_s / 1e12))
    for name, title in (("a100-80g", "A100"), ("h100", "H100"), ("b200", "B200"))
)
