"""Hardware for training: GPUs by their data sheets, and clusters of equal nodes of them.

        node 0                      node 1
    GPU 0  1  ...  7           GPU 8  9  ...  15
      |    |  fast |             |    |  fast |       NVLink: every GPU has its own
      +----+--slow-+-------------+----+--slow-+       network: an equal share for each GPU

A bandwidth counts one direction of one GPU, which can receive as much at the same time. NVLink's
data sheet prints twice that, because it adds both directions. GPUs are numbered node by node.

calc.GPUS["h100"].flops_per_s        989e12, dense bfloat16: twice as many with sparsity, as printed

Peaks are dense and of bfloat16 (float16 on V100). Programs achieve less, see the planner. Sources:
NVIDIA's data sheets (V100 SXM2, A100, H100 and H200 SXM, HGX B200), except the memory of H200 and
B200, which is what CUDA shows and less than the data sheet says; Jouppi et al., arXiv:2304.01433,
table 4 (TPU v4).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from labkit import arguments


@dataclass(frozen=True, kw_only=True)
class GPU:
    """An accelerator. ValueError or TypeError unless its numbers are positive."""

    name: str
    memory_bytes: float
    """Memory that a program sees. The driver and the communication library take some of it."""
    flops_per_s: float
    """Peak of dense matrix products in 16-bit numbers."""
    memory_bytes_per_s: float
    """Bandwidth to and from its own memory."""

    def __post_init__(self) -> None:
        for name in ("memory_bytes", "flops_per_s", "memory_bytes_per_s"):
            arguments.number(name, getattr(self, name), "see the data sheet", above=0)


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
    """Return an accelerator, given itself or by its name in GPUS. ValueError lists the names."""
    return arguments.named(which, GPU, GPUS)


@dataclass(frozen=True)
class Tier:
    """Links of one kind: a message of m bytes takes latency_s + m / bandwidth_bytes_per_s."""

    bandwidth_bytes_per_s: float
    """Bandwidth of one GPU in each direction."""
    latency_s: float = 0.0

    def __post_init__(self) -> None:
        """Raise ValueError or TypeError for a bandwidth or a latency that no link has."""
        arguments.number(
            "bandwidth_bytes_per_s", self.bandwidth_bytes_per_s, "a link carries bytes", above=0
        )
        arguments.number("latency_s", self.latency_s, "0 or more", least=0)

    @property
    def alpha(self) -> float:
        """Seconds of a message without bytes."""
        return self.latency_s

    @property
    def beta(self) -> float:
        """Seconds per byte."""
        return 1 / self.bandwidth_bytes_per_s


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """A cluster of equal nodes. ValueError if its GPUs do not fill whole nodes.

    replace(calc.CLUSTERS["h100"], num_gpus=512), or `cluster("h100", 512)`, for another size.
    """

    gpu: GPU | str
    num_gpus: int
    gpus_per_node: int = 8
    fast: Tier
    """Inside a node."""
    slow: Tier
    """Between nodes."""
    gpu_hours_between_interruptions: float = 50_000.0
    """Hours of one GPU between interruptions of any kind. Llama 3 had 419 unexpected
    ones in 54 days on 16,384 GPUs, one in 50,700 GPU-hours (arXiv:2407.21783, table 5)."""
    dollars_per_gpu_hour: float = 2.5
    """An assumption: prices change by the month. Give your own."""

    def __post_init__(self) -> None:
        gpu(self.gpu)
        for name in ("num_gpus", "gpus_per_node"):
            object.__setattr__(self, name, arguments.counted(name, getattr(self, name)))
        for name in ("fast", "slow"):
            if not isinstance(getattr(self, name), Tier):
                raise TypeError(
                    f"{name}={getattr(self, name)!r}: give a Tier, such as Tier(50e9, 5e-6)"
                )
        if self.num_gpus > self.gpus_per_node and self.num_gpus % self.gpus_per_node:
            less = self.num_gpus - self.num_gpus % self.gpus_per_node
            raise ValueError(
                f"num_gpus={self.num_gpus} fill no whole number of nodes of {self.gpus_per_node}; "
                f"give {less} or {less + self.gpus_per_node}"
            )
        arguments.number(
            "gpu_hours_between_interruptions",
            self.gpu_hours_between_interruptions,
            "everything stops some day; float('inf') is not given here, but 1e12",
            above=0,
        )
        arguments.number("dollars_per_gpu_hour", self.dollars_per_gpu_hour, "0 or more", least=0)

    @property
    def device(self) -> GPU:
        """The model of its GPUs."""
        return gpu(self.gpu)

    @property
    def num_nodes(self) -> int:
        """Number of nodes, rounded up."""
        return -(-self.num_gpus // self.gpus_per_node)

    @property
    def mtbf_s(self) -> float:
        """Mean seconds between interruptions of a job on all of it."""
        return 3600 * self.gpu_hours_between_interruptions / self.num_gpus

    def tier(self, *, crosses_nodes: bool) -> Tier:
        """Return the links that messages inside a node, or between nodes, take."""
        return self.slow if crosses_nodes else self.fast


CLUSTERS: Mapping[str, Cluster] = MappingProxyType(
    {
        # DGX-2 with NVSwitch: eight 100 Gbit/s adapters for sixteen GPUs.
        "v100": Cluster(
            gpu="v100-32g", num_gpus=1024, gpus_per_node=16,
            fast=Tier(150e9, 3e-6), slow=Tier(6.25e9, 10e-6), dollars_per_gpu_hour=1.0,
        ),
        # Selene, on which Megatron-LM's 175B and 1T ran: eight 200 Gbit/s adapters in a node.
        "a100": Cluster(
            gpu="a100-80g", num_gpus=3072, fast=Tier(300e9, 3e-6), slow=Tier(25e9, 8e-6),
            dollars_per_gpu_hour=1.8,
        ),
        # Llama 3's: 400 Gbit/s for each GPU.
        "h100": Cluster(
            gpu="h100", num_gpus=16384, fast=Tier(450e9, 3e-6), slow=Tier(50e9, 8e-6),
        ),
        "b200": Cluster(
            gpu="b200", num_gpus=16384, fast=Tier(900e9, 3e-6), slow=Tier(50e9, 8e-6),
            dollars_per_gpu_hour=5.0,
        ),
    }
)  # fmt: skip
"""By name, in lower case. Latencies are rounded from published measurements."""


def cluster(which: Cluster | str, num_gpus: int | None = None) -> Cluster:
    """Return a cluster, given itself or by its name in CLUSTERS, resized if a size is given.

    ValueError lists the names.
    """
    found = arguments.named(which, Cluster, CLUSTERS)
    return found if num_gpus is None else replace(found, num_gpus=num_gpus)
