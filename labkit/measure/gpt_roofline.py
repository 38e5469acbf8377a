"""Roofline of this machine: the limit of an operation's speed, and the speed of a GPT's operations.

    FLOP/s |         peak of matrix products
           |          __________________________      attainable = min(peak, bandwidth x intensity)
           |        /             o MLP
           |      /   bandwidth                       left of the ridge: bound by memory
           |    / o layer norm                        right of it: bound by computing
           +---------|--------------------------
                   ridge          FLOP per byte

An operation must at least read its inputs and weights once and write its outputs once. Its
intensity is the FLOP for each of these bytes. A point far below the roof loses time to traffic of
intermediate results, new memory, launches, or shapes that do not fill a core. A point above the
slope found its bytes in a cache.

Paper: Williams, Waterman, Patterson, "Roofline: an insightful visual performance model for
multicore architectures", CACM 52(4), 2009.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from labkit.calc.units import bytes_text, quantity_text, seconds_text
from labkit.gpt_config import GPTConfig
from labkit.measure.measured import aligned
from labkit.model import Block, Embedding, attend
from labkit.optimizer import AdamW

if TYPE_CHECKING:
    from labkit.viz.picture import Picture

_SAMPLES, _SAMPLE_S, _MOST_S = 8, 5e-3, 0.5
# Matrices and copies that fill the device, and are larger than its caches.
_SIDE = {"cpu": 1024, "cuda": 8192}
_COPIED = {"cpu": 2**27, "cuda": 2**30}
_MODEL = {
    "cpu": GPTConfig(vocab=2048, context=1024, hidden=256, num_heads=4),
    "cuda": GPTConfig(vocab=32768, context=1024, hidden=2048, num_heads=16),
}


@dataclass(frozen=True)
class Operation:
    """A forward operation."""

    name: str
    flops: float
    nbytes: float
    """Inputs, weights and outputs, each once."""
    seconds: float

    @property
    def intensity(self) -> float:
        """FLOP per byte."""
        return self.flops / self.nbytes

    @property
    def flops_per_s(self) -> float:
        """Measured FLOP/s."""
        return self.flops / self.seconds


@dataclass(frozen=True)
class Roofline:
    """Limits of a device, and the operations measured on it."""

    device: str
    flops_per_s: float
    """FLOP/s of a product of large matrices."""
    bytes_per_s: float
    """Bytes per second of a copy of a large tensor: bytes read and bytes written."""
    operations: tuple[Operation, ...]

    @property
    def ridge(self) -> float:
        """FLOP per byte from which on computing is the limit."""
        return self.flops_per_s / self.bytes_per_s

    def attainable(self, intensity: float) -> float:
        """Return the height of the roof, in FLOP/s."""
        return min(self.flops_per_s, self.bytes_per_s * intensity)

    def share(self, operation: Operation) -> float:
        """Return the share of the roof that an operation reaches. Above 1: it reads from a
        cache."""
        return operation.flops_per_s / self.attainable(operation.intensity)

    def table(self) -> str:
        """Write a row per operation, as aligned plain text."""
        rows = [["", "GFLOP", "bytes", "FLOP/B", "time", "GFLOP/s", "of the roof", "bound by"]]
        for each in self.operations:
            rows.append(
                [
                    each.name,
                    f"{each.flops / 1e9:.3g}",
                    bytes_text(each.nbytes),
                    f"{each.intensity:.3g}",
                    seconds_text(each.seconds),
                    f"{each.flops_per_s / 1e9:.3g}",
                    f"{self.share(each):.0%}",
                    "memory" if each.intensity < self.ridge else "computing",
                ]
            )
        return (
            f"{self.device}: {quantity_text(self.flops_per_s, 'FLOP/s')}, "
            f"{quantity_text(self.bytes_per_s, 'bytes/s')}, ridge at {self.ridge:.3g} FLOP per byte"
            f"\n\n{aligned(rows, left=1)}"
        )

    def draw(self, title: str | None = None) -> Picture:
        """Return the roof with a point for each operation."""
        from labkit.viz.performance import roofline as drawn  # viz loads matplotlib

        points = {each.name: (each.intensity, each.flops_per_s) for each in self.operations}
        title = title or f"roofline of {self.device}"
        return drawn(points, self.flops_per_s, self.bytes_per_s, title=title)

    def show(self) -> None:
        """Show the picture: in the notebook, or, outside of one, as a file."""
        self.draw().show()


def roofline(
    device: str | None = None,
    *,
    config: GPTConfig | None = None,
    batch: int = 16,
    dtype: torch.dtype | None = None,
) -> Roofline:
    """Measure the roof of this machine, and the operations of a GPT's step under it.

    device: "cpu" or "cuda"; None: a GPU where there is one. config: of the model; None: one whose
    tensors are larger than the device's caches. batch: sequences. dtype: None: float32 on a CPU,
    bfloat16 on a GPU. Nothing is distributed: it runs in this process, with torch's threads.

    The time of an operation is that of the fastest of some samples of several calls. The peak is
    the speed of the fastest operation: usually of a large matrix product, which runs as well.
    Raises ValueError for another device or no batch, TypeError for anything but a GPTConfig.
    """
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if device not in _MODEL:
        raise ValueError(f"device={device!r}: measure 'cpu' or 'cuda'")
    config = config or _MODEL[device]
    dtype = dtype or (torch.bfloat16 if device == "cuda" else torch.float32)
    with torch.no_grad():
        flops_per_s, bytes_per_s = _peaks(device, dtype)
        found = [
            Operation(name, flops, nbytes, _seconds(call, device))
            for name, flops, nbytes, call in _operations(config, batch, device, dtype)
        ]
        flops_per_s = max(flops_per_s, *(each.flops / each.seconds for each in found))
    where = f"cpu, {torch.get_num_threads()} threads"
    if device == "cuda":
        where = torch.cuda.get_device_name()
    name = f"{where}, {str(dtype).removeprefix('torch.')}"
    return Roofline(name, flops_per_s, bytes_per_s, tuple(found))


def _peaks(device: str, dtype: torch.dtype) -> tuple[float, float]:
    """Return FLOP/s of a large product, and bytes per second of a copy."""
    side = _SIDE[device]
    a, b = torch.randn(2, side, side, device=device, dtype=dtype)
    x, y = torch.zeros(2, _COPIED[device] // 4, device=device)
    product_s, copy_s = _seconds(lambda: a @ b, device), _seconds(lambda: y.copy_(x), device)
    return 2 * side**3 / product_s, 2 * x.nbytes / copy_s


def _operations(
    config: GPTConfig, batch: int, device: str, dtype: torch.dtype
) -> list[tuple[str, float, float, Callable[[], object]]]:
    """Return (name, FLOP, bytes, call) of each operation; element-wise FLOP are counted roughly."""
    D, F, V, T = config.hidden, config.ffn_hidden, config.vocab, config.context
    KV, N = config.kv_heads * config.head_dim, batch * T
    block, embedding = Block(config).to(device, dtype), Embedding(config).to(device, dtype)
    attention, size = block.attention, dtype.itemsize
    tokens_BT = torch.randint(V, (batch, T), device=device)
    x_BTD, k_BTD, v_BTD = (
        torch.randn(batch, T, features, device=device, dtype=dtype) for features in (D, KV, KV)
    )
    logits_NV = torch.randn(N, V, device=device, dtype=dtype)
    optimizer, num = _optimizer(block), sum(each.numel() for each in block.parameters())

    def project() -> tuple[Tensor, ...]:
        return attention.query(x_BTD), attention.key(x_BTD), attention.value(x_BTD)

    return [
        ("embedding", N * D, size * (2 * N + T) * D, lambda: embedding(tokens_BT)),
        # mean 1, variance 3, normalize 2, scale 1
        ("layer norm", 7 * N * D, size * 2 * N * D, lambda: block.mlp_norm(x_BTD)),
        (
            "QKV projection",
            2 * N * D * (D + 2 * KV),
            size * (N * D + (N + D) * (D + 2 * KV)),
            project,
        ),
        # Two products with half of the T x T pairs, which never reach memory.
        (
            "attention",
            2 * N * T * D,
            size * 2 * N * (D + KV),
            lambda: attend(x_BTD, k_BTD, v_BTD, config.head_dim),
        ),
        ("MLP", 4 * N * D * F, size * 2 * (N * D + D * F), lambda: block.mlp(x_BTD)),
        # maximum, difference, exp, sum, quotient
        ("softmax", 5 * N * V, size * 2 * N * V, lambda: logits_NV.softmax(-1)),
        # Reads w, g, m, v and writes w, m, v.
        ("optimizer step", 15 * num, size * 7 * num, optimizer.step),
    ]


def _optimizer(block: Block) -> AdamW:
    parameters = list(block.parameters())
    for each in parameters:
        each.grad = torch.zeros_like(each)
    return AdamW(parameters, learning_rate=0.0)


def _seconds(call: Callable[[], object], device: str) -> float:
    """Return seconds of one call: the fastest of some samples, each long enough for the clock."""

    def sample(calls: int) -> float:
        began_s = time.perf_counter()
        for _ in range(calls):
            call()
        if device == "cuda":
            torch.cuda.synchronize()
        return (time.perf_counter() - began_s) / calls

    sample(1)  # warms up
    once_s = sample(1)
    calls = math.ceil(_SAMPLE_S / once_s)
    num = max(2, min(_SAMPLES, int(_MOST_S / (calls * once_s))))
    return min(sample(calls) for _ in range(num))
