"""Tensor parallelism beside torch's own: seconds of forward and backward through a stack of blocks.

    fused             column_linear and row_linear: what backward sends travels while it computes
    fused, shards     the same with sequence-sharded features (sequence parallelism)
    beside            torch's parallelize_module with ColwiseParallel and RowwiseParallel
      torch           as in its documentation: query, key and value each sum x's gradient
      torch, x once   x is a DTensor before the three, so that they sum it together
      torch, shards   with SequenceParallel norms

With shards, neither has added up the gradients of norms when it is done: one small all-reduce more.
gloo has no reduce-scatter, and torch's performs whole all-reduces in its place; the lab's ring does
not. Part of the ratio of shards is that, though the ring hides nothing. Shared memory is the lab's
own, within one host.

One model, one run, alternating, medians of the slowest rank. `python benchmarks/tensor_parallel.py`
"""

import copy
from collections.abc import Callable

import torch
from measure import alternate, chosen_names, command_line, machine
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

import labkit
from labkit.model import GPT, GPTConfig
from labkit.tensor_parallel import SHARED_MEMORY, CollectiveBackend, Replicated, SequenceSharded
from labkit.tensor_parallel.gpt_tp import ParallelBlock

CONFIG = GPTConfig(context=128, num_layers=4, hidden=512, num_heads=8)
NUM_SEQUENCES = 2
REPETITIONS = 15
YARDSTICK = {
    "fused": "torch, x once",
    "fused, shared memory": "torch, x once",
    "fused, shards": "torch, shards",
    "fused, shards, shared memory": "torch, shards",
}
Step = Callable[[], Tensor]
Make = Callable[[nn.ModuleList], Step]
COLUMNS = ("attention.query", "attention.key", "attention.value", "mlp.up")
ROWS = ("attention.out", "mlp.down")


def step_of(forward: Callable[[Tensor], Tensor], parameters: list[nn.Parameter], x: Tensor) -> Step:
    """Forward and backward; returns x's gradient: blocks are rarely the first of a model."""

    def step() -> Tensor:
        for parameter in parameters:
            parameter.grad = None
        fresh = x.detach().requires_grad_()
        forward(fresh).square().mean().backward()
        return fresh.grad

    return step


def torchs(blocks: nn.ModuleList, x_BTD: Tensor, shards: bool, once: bool = True) -> Step:
    """parallelize_module, in the forms that torch's tutorial has."""
    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    plan = {name: ColwiseParallel() for name in COLUMNS} | {
        name: RowwiseParallel() for name in ROWS
    }
    whole = {"input_layouts": (Replicate(),), "desired_input_layouts": (Replicate(),)}
    if shards:
        whole["input_layouts"] = (Shard(1),)
        plan |= {name: RowwiseParallel(output_layouts=Shard(1)) for name in ROWS}
        plan |= {name: SequenceParallel() for name in ("attention_norm", "mlp_norm")}
    if once:
        plan |= {name: PrepareModuleInput(**whole) for name in ("attention", "mlp")}
    for block in blocks:
        parallelize_module(block, mesh, plan)
    rank, size = mesh.get_local_rank(), mesh.size()
    x = x_BTD.tensor_split(size, 1)[rank].contiguous() if shards else x_BTD
    return step_of(nn.Sequential(*blocks), list(blocks.parameters()), x)


def ours(
    world: labkit.Group,
    blocks: nn.ModuleList,
    x_BTD: Tensor,
    shards: bool,
    backend: CollectiveBackend | None = None,
) -> Step:
    """Return the lab's."""
    parallel = nn.ModuleList(ParallelBlock(block, world) for block in blocks)
    layout = (
        SequenceSharded(world, *x_BTD.shape[:2], backend) if shards else Replicated(world, backend)
    )

    def forward(x: Tensor) -> Tensor:
        for block in parallel:
            x = block(x, block.attention_norm.weight, block.mlp_norm.weight, layout)
        return x

    x = x_BTD.flatten(0, 1)[layout.rows.start : layout.rows.stop] if shards else x_BTD
    return step_of(forward, list(parallel.parameters()), x)


def makers(world: labkit.Group | None, x_BTD: Tensor | None) -> dict[str, Make]:
    """By name, what makes a step of blocks."""
    return {
        "torch": lambda b: torchs(b, x_BTD, False, once=False),
        "torch, x once": lambda b: torchs(b, x_BTD, False),
        "fused": lambda b: ours(world, b, x_BTD, False),
        "fused, shared memory": lambda b: ours(world, b, x_BTD, False, SHARED_MEMORY),
        "torch, shards": lambda b: torchs(b, x_BTD, True),
        "fused, shards": lambda b: ours(world, b, x_BTD, True),
        "fused, shards, shared memory": lambda b: ours(world, b, x_BTD, True, SHARED_MEMORY),
    }


def compare(world: labkit.Group, chosen: list[str]) -> dict[str, float]:
    """By name: median seconds of forward and backward."""
    torch.manual_seed(0)
    blocks = GPT(CONFIG).blocks
    x_BTD = torch.randn(NUM_SEQUENCES, CONFIG.context, CONFIG.hidden)
    steps = {
        name: make(copy.deepcopy(blocks))
        for name, make in makers(world, x_BTD).items()
        if not chosen or name in chosen
    }
    for shards in (False, True):
        require_equal(world, {n: each for n, each in steps.items() if ("shards" in n) == shards})
    return alternate(world, steps, repetitions=REPETITIONS)


def require_equal(world: labkit.Group, steps: dict[str, Step]) -> None:
    """Check that all compute the same: the norms of x's gradient over all ranks are equal."""
    norms = {name: world.all_reduce(step().square().sum()).item() for name, step in steps.items()}
    if norms and max(norms.values()) > 1.0001 * min(norms.values()):
        raise RuntimeError(f"these do not compute the same: {norms}")


def main() -> None:
    """Print seconds, and ratios to torch's."""
    chosen = chosen_names(command_line(__doc__), list(makers(None, None)))
    print(f"Medians of forward and backward. {machine()}")
    for world_size in (2, 4):
        seconds = labkit.run(compare, world_size, (chosen,), timeout=600).values[0]
        numbers = sum(p.numel() for p in GPT(CONFIG).blocks.parameters()) / 1e6
        print(f"{world_size} ranks, {numbers:.1f} M, {NUM_SEQUENCES} x {CONFIG.context} tokens")
        for name, median in seconds.items():
            line = f"  {name:<30} {median * 1e3:>8.1f} ms"
            if (beside := YARDSTICK.get(name)) in seconds:
                line += f"   {median / seconds[beside]:.2f}"
            print(line)


if __name__ == "__main__":
    main()
