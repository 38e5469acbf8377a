"""Formulas that predict what a run will measure, imported by no strategy and importing none.

from labkit import calc
calc.ring_all_reduce_sent_bytes(numel=10, itemsize=4, world_size=4, rank=0)   # 56, exactly
calc.all_reduce_seconds(1e9, n=8, alpha=5e-6, beta=1 / 360e9)                  # 4.93 ms, a ring
"""

from labkit.calc.alpha_beta import (
    algbw,
    all_gather_seconds,
    all_reduce_seconds,
    all_to_all_seconds,
    broadcast_seconds,
    busbw,
    gather_seconds,
    reduce_scatter_seconds,
    scatter_seconds,
)
from labkit.calc.traffic import (
    all_to_all_sent_bytes,
    broadcast_sent_bytes,
    gather_sent_bytes,
    ring_all_gather_sent_bytes,
    ring_all_reduce_bytes,
    ring_all_reduce_messages,
    ring_all_reduce_sent_bytes,
    ring_all_reduce_steps,
    ring_reduce_scatter_sent_bytes,
    scatter_sent_bytes,
    segment_numels,
)
from labkit.calc.units import (
    GB,
    KB,
    MB,
    TB,
    GiB,
    KiB,
    MiB,
    Quantity,
    TiB,
    bytes_text,
    number_text,
    parse_quantity,
    quantity_text,
    seconds_text,
)

__all__ = [
    "GB",
    "KB",
    "MB",
    "TB",
    "GiB",
    "KiB",
    "MiB",
    "Quantity",
    "TiB",
    "algbw",
    "all_gather_seconds",
    "all_reduce_seconds",
    "all_to_all_seconds",
    "all_to_all_sent_bytes",
    "broadcast_seconds",
    "broadcast_sent_bytes",
    "busbw",
    "bytes_text",
    "gather_seconds",
    "gather_sent_bytes",
    "number_text",
    "parse_quantity",
    "quantity_text",
    "reduce_scatter_seconds",
    "ring_all_gather_sent_bytes",
    "ring_all_reduce_bytes",
    "ring_all_reduce_messages",
    "ring_all_reduce_sent_bytes",
    "ring_all_reduce_steps",
    "ring_reduce_scatter_sent_bytes",
    "scatter_seconds",
    "scatter_sent_bytes",
    "seconds_text",
    "segment_numels",
]
