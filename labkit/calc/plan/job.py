"""The planner's input: a model, its training, a cluster, and assumptions.

    Job("llama3-405b", "megatron_bf16", "h100", global_batch=2048, tokens=15.6e12)

It has nothing of a layout: the planner looks for dp, tp, pp and the other sizes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from labkit import arguments
from labkit.calc.hardware import GPU, Cluster, cluster
from labkit.calc.layout import Layout
from labkit.calc.memory.loss import checked_loss
from labkit.calc.memory.model_state import Recipe, recipe_of
from labkit.calc.models import ModelConfig, model, sequence_length

_GIB = 2**30
BUBBLES = ("1f1b", "zb_h1", "dualpipe")


@dataclass(frozen=True, kw_only=True)
class Assumptions:
    """Numbers that no data sheet has. estimation.py says which are fitted, and to what.

    ValueError or TypeError for shares beyond 0 to 1, and negative seconds and bytes.
    """

    product_edge: float = 100
    """Features by which each side of a weight is longer, in time."""
    memory_share: float = 0.85
    """Share of the memory's bandwidth that operations reach which only move bytes."""
    link_share: float = 0.8
    """Share of a link's bandwidth that a collective reaches: nccl-tests shows 360 of an H100's 450
    GB/s over NVLink."""
    overlap: float = 0.8
    """Share of the collectives over dp that can run beside computing: buckets go one behind the
    other, and the last has nothing to hide behind. A guess."""
    tp_overlap: float = 0.0
    """Share of tp's collectives that runs beside the products they feed, as in Transformer Engine
    and asynchronous tensor parallelism."""
    expert_overlap: float = 0.0
    """Share of ep's all-to-alls that runs beside another microbatch's computing."""
    sending_cores: float = 20 / 132
    """Share of the GPU's multiprocessors that all-to-alls take while they overlap: 20 of an H800's
    132 for DeepSeek-V3 (arXiv:2412.19437, section 3.2.1)."""
    expert_nodes: int | None = None
    """Most nodes that hold a token's experts. A token is sent to each of them once, and goes on
    over fast links. None: a token is sent to each of its experts."""
    schedule: str = "1f1b"
    """The pipeline's bubble, and not its memory: "1f1b", interleaved if there are virtual stages;
    "zb_h1", with weight gradients in a third of it; "dualpipe", with microbatches from both
    ends. planned_step.py has their shares of 1F1B's bubble."""
    attention_share: float | None = None
    """Share of the peak that attention reaches with flash. None: the GPU's own, which rises with
    the sequence. Triton's kernels of 2023 reach 0.32 of an A100's and 0.18 of an H100's."""
    reserve_bytes: float = 4 * _GIB
    """GPU memory reserved for CUDA, the communication library and fragmentation. A guess."""
    checkpoint_write_s: float = 60.0
    """Seconds that training is idle at each checkpoint."""
    restart_s: float = 300.0
    """Seconds from an interruption to the first step after it."""
    flash: bool = True
    """Attention never writes its scores down, and computes no masked half."""
    fused: bool = True
    """True: a gated MLP keeps gate, up and their product, and recomputes the activated gate."""
    loss: str = "fused"
    """How logits become a loss, as calc.logits_bytes has it: "unfused", "freed", "fused" or
    "chunked"."""
    gathered_inputs: bool = False
    """Inputs that sequence parallelism gathers are kept whole, as torch's DTensor does."""
    stage_buffers: bool = False
    """Stages have buffers for every microbatch, as torch.distributed.pipelining has."""
    context: str = "ring"
    """How ranks of cp get others' keys and values: "ring", step by step, or "gather", all of
    them before attention begins, as Llama 3 was trained."""

    def __post_init__(self) -> None:
        for name in ("memory_share", "link_share"):
            arguments.number(
                name, getattr(self, name), "give a share, above 0 and up to 1", above=0
            )
        shares = ("sending_cores", "overlap", "tp_overlap", "expert_overlap")
        for name in (*shares, "product_edge", "reserve_bytes", "restart_s"):
            arguments.number(name, getattr(self, name), "0 or more", least=0)
        arguments.number(
            "checkpoint_write_s", self.checkpoint_write_s, "writing takes time", above=0
        )
        for name in ("memory_share", "link_share", *shares):
            if getattr(self, name) > 1:
                raise ValueError(f"{name}={getattr(self, name)!r:.60}: give a share, up to 1")
        for name in ("expert_nodes", "attention_share"):
            if (value := getattr(self, name)) is not None:
                arguments.number(name, value, "above 0", above=0)
        if self.sending_cores == 1:
            raise ValueError("sending_cores=1: none would be left that compute; give less")
        if self.schedule not in BUBBLES:
            raise ValueError(f"schedule={self.schedule!r:.60}: give one of {', '.join(BUBBLES)}")
        checked_loss(self.loss)
        if self.context not in ("ring", "gather"):
            raise ValueError(f"context={self.context!r:.60}: give 'ring' or 'gather'")


def check_asked(job: Job, layout: Layout) -> None:
    """Raise TypeError unless these are a Job and a Layout, as all functions of the planner take."""
    if not isinstance(job, Job):
        raise TypeError(f"job={job!r:.60}: give a Job(model, recipe, cluster, global_batch)")
    if not isinstance(layout, Layout):
        raise TypeError(f"layout={layout!r:.60}: give a Layout(world_size=64, tp=8), of all GPUs")


@dataclass(frozen=True, eq=False)  # by identity: it is the key of many caches
class Job:
    """A training to plan. model, recipe, cluster: objects, or names in MODELS, RECIPES, CLUSTERS.

    ValueError and TypeError for unknown ones, and for more tokens than learned positions.
    """

    model: ModelConfig | str
    recipe: Recipe | str
    cluster: Cluster | str
    global_batch: int
    """Sequences in a step, over all ranks."""
    sequence: int | None = None
    """Tokens of each; None: the model's context."""
    tokens: float | None = None
    """Tokens of the whole training; None: no days, no dollars."""
    precision: str = "bf16"
    """Numbers in which linear layers multiply: "bf16", or "fp8" with the GPU's peak for it."""
    assumptions: Assumptions = field(default_factory=Assumptions)
    config: ModelConfig = field(init=False, repr=False)
    kept: Recipe = field(init=False, repr=False)
    machines: Cluster = field(init=False, repr=False)
    length: int = field(init=False, repr=False)
    """Tokens of one sequence."""

    def __post_init__(self) -> None:
        if not isinstance(self.assumptions, Assumptions):
            raise TypeError(f"assumptions={self.assumptions!r:.60}: give Assumptions(...)")
        object.__setattr__(self, "config", model(self.model))
        object.__setattr__(self, "kept", recipe_of(self.recipe))
        object.__setattr__(self, "machines", cluster(self.cluster))
        object.__setattr__(self, "length", sequence_length(self.config, self.sequence))
        object.__setattr__(
            self, "global_batch", arguments.counted("global_batch", self.global_batch)
        )
        kinds = {each for kind in self.config.kinds for each in kind}
        if uncounted := sorted(kinds & {"recurrent", "none"}, reverse=True):
            raise ValueError(
                f"{uncounted[0]!r} layers: the planner has no activations and operations of them, "
                "only of layers that have attention and an MLP or experts; calc.num_parameters and "
                "calc.cache_bytes take such models"
            )
        if self.room_bytes <= 0:
            raise ValueError(
                f"reserve_bytes={self.assumptions.reserve_bytes!r:.60} leave nothing of the "
                f"{self.device.memory_bytes / 1e9:.3g} GB of a {self.device.name}; give fewer"
            )
        peaks = {"bf16": self.device.flops_per_s, "fp8": self.device.fp8_flops_per_s}
        if not peaks.get(self.precision):
            have = [name for name, peak in peaks.items() if peak]
            raise ValueError(
                f"precision={self.precision!r:.60}: a {self.device.name} has {' and '.join(have)}"
            )
        if self.tokens is not None:
            arguments.number("tokens", self.tokens, "training takes tokens", above=0)

    @property
    def device(self) -> GPU:
        """Each GPU of the cluster."""
        return self.machines.device

    @property
    def num_gpus(self) -> int:
        """Number of GPUs of the cluster."""
        return self.machines.num_gpus

    @property
    def room_bytes(self) -> float:
        """GPU memory that training may fill."""
        return self.device.memory_bytes - self.assumptions.reserve_bytes

    @property
    def tokens_per_step(self) -> int:
        """Tokens in a step, over all ranks."""
        return self.global_batch * self.length

    @property
    def title(self) -> str:
        """Describe the job in one line."""
        name = self.model if isinstance(self.model, str) else "a model"
        return (
            f"{name} on {self.num_gpus:,} x {self.device.name}, "
            f"{self.global_batch:,} sequences of {self.length:,} tokens in a step"
        )
