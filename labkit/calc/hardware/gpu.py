"""Accelerators: what one holds and computes, by its data sheet.

calc.GPUS["h100"].flops_per_s        989e12, dense bfloat16: twice as many with sparsity, as printed

Peaks are dense and of bfloat16 (float16 on V100). What is achieved is less, see the planner.
Sources: NVIDIA's data sheets (V100 SXM2, A100, H100 and H200 SXM, HGX B200), but for H200 and B200
the memory that CUDA shows, less than is sold; Jouppi et al., arXiv:2304.01433, table 4 (TPU v4).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from labkit.calc.checked_numbers import check_above_zero


@dataclass(frozen=True, kw_only=True)
class GPU:
    """One accelerator. ValueError or TypeError for what is no positive number."""

    name: str
    memory_bytes: float
    """As the program sees it; some of it the driver and the communication library take."""
    flops_per_s: float
    """Peak of dense products of matrices of 16-bit numbers."""
    memory_bytes_per_s: float
    """To and from its own memory."""

    def __post_init__(self) -> None:
        for name in ("memory_bytes", "flops_per_s", "memory_bytes_per_s"):
            check_above_zero(getattr(self, name), name, "see the data sheet")


_GIB = 2**30

GPUS: Mapping[str, GPU] = MappingProxyType(
    {
        each.name: each
        for each in (
            GPU(
                name="v100-32g",
                memory_bytes=32 * _GIB,
                flops_per_s=125e12,
                memory_bytes_per_s=900e9,
            ),
            GPU(
                name="a100-40g",
                memory_bytes=40 * _GIB,
                flops_per_s=312e12,
                memory_bytes_per_s=1555e9,
            ),
            GPU(
                name="a100-80g",
                memory_bytes=80 * _GIB,
                flops_per_s=312e12,
                memory_bytes_per_s=2039e9,
            ),
            GPU(
                name="h100",
                memory_bytes=80 * _GIB,
                flops_per_s=989.4e12,
                memory_bytes_per_s=3350e9,
            ),
            GPU(
                name="h200",
                memory_bytes=139.8 * _GIB,
                flops_per_s=989.4e12,
                memory_bytes_per_s=4800e9,
            ),
            GPU(
                name="b200",
                memory_bytes=178.35 * _GIB,
                flops_per_s=2250e12,
                memory_bytes_per_s=7700e9,
            ),
            GPU(
                name="tpu-v4",
                memory_bytes=32 * _GIB,
                flops_per_s=275e12,
                memory_bytes_per_s=1200e9,
            ),
        )
    }
)
"""By name, in lower case."""


def gpu(which: GPU | str) -> GPU:
    """An accelerator, given itself or by its name in GPUS. ValueError names those there are."""
    if isinstance(which, GPU):
        return which
    if isinstance(which, str) and which in GPUS:
        return GPUS[which]
    raise ValueError(f"{which!r} is no GPU and none of {', '.join(GPUS)}")
