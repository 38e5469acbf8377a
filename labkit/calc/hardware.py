"""Hardware for training: GPUs by their data sheets, and clusters of equal nodes of them.

        node 0                      node 1
    GPU 0  1  ...  7           GPU 8  9  ...  15
      |    |  fast |             |    |  fast |       NVLink: every GPU has its own
      +----+--slow-+-------------+----+--slow-+       network: an equal share for each GPU

A bandwidth counts one direction of one GPU, which can receive as much at the same time. NVLink's
data sheet prints twice that, because it adds both directions. GPUs are numbered node by node.

calc.GPUS["h100"].flops_per_s        989e12, dense bfloat16: twice as many with sparsity, as printed

Peaks are dense and of bfloat16 (float16 on V100). Programs achieve less: the shares beside them.
Peaks and bandwidths are from data sheets: NVIDIA's V100 SXM2, A100 SXM, H100, H200 and GH200, HGX
B200 and B300, GB200 NVL72, L40S, and the Ada architecture's for the RTX 4090; AMD's Instinct MI300X
and MI355X; Jouppi et al., arXiv:2304.01433, table 4 (TPU v4). Memory is what a program sees, which
is less than is sold; comments say where a number is from. H200 and B200: what CUDA shows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
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
    fp8_flops_per_s: float = 0.0
    """Peak in 8-bit floating point; 0: it has none."""
    matmul_share: float = 0.68
    """Share of the peak that large matrix products reach in training. Fitted for A100 and H100; the
    others have the H100's, which no row has tested."""
    attention_share: float = 0.48
    """Share that attention with flash reaches over long sequences."""
    attention_ramp: float = 3072
    """Tokens of a sequence over which attention reaches half of that share."""

    def __post_init__(self) -> None:
        for name in ("memory_bytes", "flops_per_s", "memory_bytes_per_s"):
            arguments.number(name, getattr(self, name), "see the data sheet", above=0)
        for name in ("matmul_share", "attention_share"):
            arguments.number(name, getattr(self, name), "give a share, up to 1", above=0)
            if getattr(self, name) > 1:
                raise ValueError(f"{name}={getattr(self, name)!r:.60}: give a share, up to 1")
        for name in ("fp8_flops_per_s", "attention_ramp"):
            arguments.number(name, getattr(self, name), "0 or more", least=0)


_GIB = 2**30

_a100 = partial(GPU, flops_per_s=312e12, matmul_share=0.755, attention_share=0.42,
                attention_ramp=512)  # fmt: skip
_hopper = partial(GPU, flops_per_s=989.4e12, fp8_flops_per_s=1978.9e12)

GPUS: Mapping[str, GPU] = MappingProxyType(
    {
        each.name: each
        for each in (
            # torch's total on a V100-SXM2-32GB: 31.74 GiB (Megatron-LM issue 525).
            GPU(name="v100-32g", memory_bytes=31.74 * _GIB, flops_per_s=125e12,
                memory_bytes_per_s=900e9),
            # torch's totals as its out-of-memory errors print them: 39.39 and 79.15 GiB.
            _a100(name="a100-40g", memory_bytes=39.39 * _GIB, memory_bytes_per_s=1555e9),
            _a100(name="a100-80g", memory_bytes=79.15 * _GIB, memory_bytes_per_s=2039e9),
            # vLLM PR 10511's log: total_gpu_memory 79.22 GiB.
            _hopper(name="h100", memory_bytes=79.2 * _GIB, memory_bytes_per_s=3350e9),
            # The H100 with links of 400 GB/s in both directions.
            _hopper(name="h800", memory_bytes=79.2 * _GIB, memory_bytes_per_s=3350e9),
            _hopper(name="h200", memory_bytes=139.8 * _GIB, memory_bytes_per_s=4800e9),
            # GH200 with HBM3: torch's total is 94.88 GiB (litgpt issue 1892).
            _hopper(name="gh200", memory_bytes=94.88 * _GIB, memory_bytes_per_s=4000e9),
            GPU(name="b200", memory_bytes=178.35 * _GIB, flops_per_s=2250e12,
                memory_bytes_per_s=7700e9, fp8_flops_per_s=4500e12),
            # NVL72: 2,500 TFLOP/s. torch's totals in out-of-memory errors: 184.31 GiB, and 267.69
            # of an HGX B300. Data sheets write 186 and 270 GB for these GiB.
            GPU(name="gb200", memory_bytes=184.31 * _GIB, flops_per_s=2500e12,
                memory_bytes_per_s=8000e9, fp8_flops_per_s=5000e12),
            GPU(name="b300", memory_bytes=267.69 * _GIB, flops_per_s=2250e12,
                memory_bytes_per_s=8000e9, fp8_flops_per_s=4500e12),
            # AMD's data sheets, 192 and 288 GB, taken as GiB less a little for the driver: a guess.
            GPU(name="mi300x", memory_bytes=191.7 * _GIB, flops_per_s=1307.4e12,
                memory_bytes_per_s=5300e9, fp8_flops_per_s=2614.9e12),
            GPU(name="mi355x", memory_bytes=287.5 * _GIB, flops_per_s=2516.6e12,
                memory_bytes_per_s=8000e9, fp8_flops_per_s=5033.2e12),
            # torch's totals in out-of-memory errors: 44.40 GiB of an L40 (Qwen3-VL issue 2097),
            # and 23.65 GiB.
            GPU(name="l40s", memory_bytes=44.4 * _GIB, flops_per_s=362.1e12,
                memory_bytes_per_s=864e9, fp8_flops_per_s=733e12),
            GPU(name="rtx-4090", memory_bytes=23.65 * _GIB, flops_per_s=165.2e12,
                memory_bytes_per_s=1008e9, fp8_flops_per_s=330.3e12),
            GPU(name="tpu-v4", memory_bytes=32 * _GIB, flops_per_s=275e12,
                memory_bytes_per_s=1200e9),
        )
    }
)  # fmt: skip
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
            "give hours, 1e12 for a cluster without interruptions",
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


_ib = Tier(50e9, 8e-6)  # 400 Gbit/s for each GPU
_nvlink4, _nvlink5 = Tier(450e9, 3e-6), Tier(900e9, 3e-6)

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
        "a100-40g": Cluster(
            gpu="a100-40g", num_gpus=1024, fast=Tier(300e9, 3e-6), slow=Tier(25e9, 8e-6),
            dollars_per_gpu_hour=1.3,
        ),
        # Llama 3's: 400 Gbit/s for each GPU.
        "h100": Cluster(gpu="h100", num_gpus=16384, fast=_nvlink4, slow=_ib),
        # DeepSeek-V3's (arXiv:2412.19437): NVLink of 160 GB/s, which collectives reach, of 200.
        "h800": Cluster(
            gpu="h800", num_gpus=2048, fast=Tier(200e9, 3e-6), slow=_ib, dollars_per_gpu_hour=2.0,
        ),
        "h200": Cluster(
            gpu="h200", num_gpus=4096, fast=_nvlink4, slow=_ib, dollars_per_gpu_hour=3.0,
        ),
        # NVL32: 32 superchips on NVLink.
        "gh200": Cluster(
            gpu="gh200", num_gpus=1024, gpus_per_node=32, fast=_nvlink4, slow=_ib,
            dollars_per_gpu_hour=3.0,
        ),
        "b200": Cluster(
            gpu="b200", num_gpus=16384, fast=_nvlink5, slow=_ib, dollars_per_gpu_hour=5.0,
        ),
        # 72 GPUs on NVLink: tensor, expert and context parallelism of up to 72 stay on fast links.
        "gb200": Cluster(
            gpu="gb200", num_gpus=9216, gpus_per_node=72, fast=_nvlink5, slow=_ib,
            dollars_per_gpu_hour=6.0,
        ),
        # 800 Gbit/s for each GPU.
        "b300": Cluster(
            gpu="b300", num_gpus=8192, fast=_nvlink5, slow=Tier(100e9, 8e-6),
            dollars_per_gpu_hour=6.0,
        ),
        # AMD Instinct platforms: seven links of 64 (76.8) GB/s each way, one to each other GPU.
        "mi300x": Cluster(
            gpu="mi300x", num_gpus=1024, fast=Tier(448e9, 5e-6), slow=_ib,
            dollars_per_gpu_hour=2.0,
        ),
        "mi355x": Cluster(
            gpu="mi355x", num_gpus=1024, fast=Tier(537e9, 5e-6), slow=_ib,
            dollars_per_gpu_hour=4.0,
        ),
        # PCIe 4.0 x16 between GPUs of a host, one adapter of 100 or 25 Gbit/s for all eight.
        "l40s": Cluster(
            gpu="l40s", num_gpus=64, fast=Tier(25e9, 10e-6), slow=Tier(1.5e9, 20e-6),
            dollars_per_gpu_hour=1.0,
        ),
        "rtx-4090": Cluster(
            gpu="rtx-4090", num_gpus=8, fast=Tier(20e9, 15e-6), slow=Tier(0.4e9, 30e-6),
            dollars_per_gpu_hour=0.4,
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
