"""ZeRO beside torch's own: seconds of a training step, and the most memory that a rank holds.

    zero1    beside ZeroRedundancyOptimizer with DistributedDataParallel
    zero2    beside the same
    zero3    beside fully_shard, both gathering the root unit once for forward and backward

On gloo two of torch's send more than they would on nccl: ZeroRedundancyOptimizer broadcasts segment
by segment, and fully_shard's reduce-scatter is an all-reduce there, so that it sends 4 times the
parameters, and zero3's ring 3 times. Part of each ratio is that.

One model, one run, alternating, medians of the slowest rank. `python benchmarks/zero.py`. Memory is
that of tensors, followed by labkit.memory.Meter in a step of its own. Not seen are workspaces
within an operation, what a thread in the background allocates (zero2, zero3: two blocks of 2 MiB of
the ring), and what only torch's C++ refers to; DDP's buckets, which live as long as the model, are
counted, since a reference to the gradients in them is held meanwhile.
"""

import copy
from collections.abc import Callable

import torch
from measure import alternate, chosen_names, command_line, machine
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

import labkit
from labkit.memory import Meter
from labkit.model import GPT, GPTConfig
from labkit.zero import (
    SHARED_MEMORY,
    FullyShardedModule,
    Zero1Optimizer,
    Zero2Optimizer,
)

CONFIG = GPTConfig(context=64, num_layers=5, hidden=416, num_heads=8)
NUM_SEQUENCES = 1  # on each rank
REPETITIONS = 15
ADAM = torch.optim.AdamW
YARDSTICK = {
    "zero1": "torch, ZeroRedundancyOptimizer",
    "zero1, shared memory": "torch, ZeroRedundancyOptimizer",
    "zero2": "torch, ZeroRedundancyOptimizer",
    "zero3": "torch, fully_shard",
    "zero3, shared memory": "torch, fully_shard",
}
Trained = tuple[torch.nn.Module, torch.optim.Optimizer]


def torchs_zero(module: GPT) -> Trained:
    """Gradients averaged by DDP, states sharded by whole parameters."""
    model = DistributedDataParallel(module, gradient_as_bucket_view=True)
    return model, ZeroRedundancyOptimizer(model.parameters(), ADAM, lr=1e-3)


def torchs_fully_shard(module: GPT) -> Trained:
    """FSDP 2, by block."""
    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    for block in module.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(module, mesh=mesh)
    return module, ADAM(module.parameters(), lr=1e-3)


def candidates(world: labkit.Group | None) -> dict[str, Callable[[GPT], Trained]]:
    """By name, what makes a model and its optimizer of a module."""

    def zero3(module: GPT, **options: object) -> Trained:
        model = FullyShardedModule(module, world, reshard_after_forward=module.blocks, **options)
        return model, ADAM(model.parameters(), lr=1e-3)

    def states(make: Callable[..., torch.optim.Optimizer], **options: object) -> object:
        return lambda m: (m, make(m.parameters(), ADAM, world, lr=1e-3, **options))

    return {
        "torch, ZeroRedundancyOptimizer": torchs_zero,
        "zero1": states(Zero1Optimizer),
        "zero2": states(Zero2Optimizer),
        "zero1, shared memory": states(Zero1Optimizer, backend=SHARED_MEMORY),
        "torch, fully_shard": torchs_fully_shard,
        "zero3": zero3,
        "zero3, shared memory": lambda m: zero3(m, backend=SHARED_MEMORY),
    }


def kept_by_torchs(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Return states of the optimizer within ZeroRedundancyOptimizer, which it shows to nobody."""
    within = getattr(optimizer, "optim", None)
    return [] if within is None else [x for s in within.state.values() for x in s.values()]


def compare(world: labkit.Group, chosen: list[str]) -> tuple[dict[str, float], dict[str, int]]:
    """By name: median seconds of a step, and this rank's peak bytes."""
    module = GPT(CONFIG)
    tokens = torch.randint(CONFIG.vocab, (NUM_SEQUENCES, CONFIG.context))
    made = {
        name: make(copy.deepcopy(module))
        for name, make in candidates(world).items()
        if not chosen or name in chosen
    }

    def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        model(tokens).float().square().mean().backward()
        optimizer.step()

    steps = {name: lambda pair=pair: step(*pair) for name, pair in made.items()}
    seconds = alternate(world, steps, repetitions=REPETITIONS)
    peaks = {}
    for name, pair in made.items():
        is_ddp = isinstance(pair[0], DistributedDataParallel)
        in_buckets = [p.grad for p in pair[0].parameters() if is_ddp]
        with Meter(*pair) as meter:
            meter.mark(in_buckets, "gradients")
            meter.mark(kept_by_torchs(pair[1]), "optimizer states")
            step(*pair)
        peaks[name] = meter.usage.peak_bytes
    return seconds, peaks


def main() -> None:
    """Print seconds, peak bytes, and both as ratios to torch's."""
    chosen = chosen_names(command_line(__doc__), list(candidates(None)))
    print(f"Medians of a step. {machine()}")
    for world_size in (2, 4):
        by_rank = labkit.run(compare, world_size, (chosen,), timeout=600).values
        seconds = by_rank[0][0]  # already the slowest rank's
        peaks = {name: max(rank_peaks[name] for _, rank_peaks in by_rank) for name in seconds}
        print(f"{world_size} ranks, {sum(p.numel() for p in GPT(CONFIG).parameters()) / 1e6:.1f} M")
        for name in seconds:
            line = f"  {name:<32} {seconds[name] * 1e3:>8.1f} ms {peaks[name] / 2**20:>8.1f} MiB"
            if (beside := YARDSTICK.get(name)) in seconds:
                ratios = seconds[name] / seconds[beside], peaks[name] / peaks[beside]
                line += "   {:.2f} {:.2f}".format(*ratios)
            print(line)


if __name__ == "__main__":
    main()
