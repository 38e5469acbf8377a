"""Data parallelism beside torch's own DistributedDataParallel: seconds of a training step.

One model, one run, alternating, medians of the slowest rank. `python benchmarks/data_parallel.py`.
"""

import copy
from collections.abc import Callable

import torch
from measure import alternate, chosen_names, command_line, machine
from torch.nn.parallel import DistributedDataParallel

import labkit
from labkit.collectives import ring_all_reduce
from labkit.comm.shared_memory import shared_memory_all_reduce
from labkit.data_parallel import DDP, BackgroundAllReduce, BucketedDDP, NaiveDDP, SymmetricBuckets
from labkit.model import GPT, GPTConfig
from labkit.optimizer import SGD

CONFIG = GPTConfig(context=64, num_layers=5, hidden=416, num_heads=8)
NUM_SEQUENCES = 1  # on each rank
YARDSTICK = "torch"


def wrappers(world: labkit.Group | None) -> dict[str, Callable[[GPT], torch.nn.Module]]:
    """By name, what makes a module data-parallel."""
    return {
        YARDSTICK: lambda m: DistributedDataParallel(m, gradient_as_bucket_view=True),
        "DDP": lambda m: DDP(m, world),
        "torch, its defaults": DistributedDataParallel,
        "DDP, shared memory": lambda m: DDP(m, world, shared_memory_all_reduce),
        "DDP, symmetric buckets": lambda m: DDP(m, world, SymmetricBuckets(world)),
        "BucketedDDP": lambda m: BucketedDDP(m, world),
        "NaiveDDP": lambda m: NaiveDDP(m, world),
        "DDP, ring in background": lambda m: DDP(
            m, world, BackgroundAllReduce(ring_all_reduce, world)
        ),
    }


def compare(world: labkit.Group, chosen: list[str]) -> tuple[int, dict[str, float]]:
    """Number of parameters, and median seconds of a step with each candidate."""
    module = GPT(CONFIG)
    models = {
        name: make(copy.deepcopy(module))
        for name, make in wrappers(world).items()
        if not chosen or name in (YARDSTICK, *chosen)
    }
    tokens = torch.randint(CONFIG.vocab, (NUM_SEQUENCES, CONFIG.context))

    def step(model: torch.nn.Module) -> None:
        model.optimizer.zero_grad()
        model(tokens).float().square().mean().backward()
        if hasattr(model, "reduce_gradients"):
            model.reduce_gradients()
        model.optimizer.step()

    for model in models.values():
        model.optimizer = SGD(model.parameters(), 1e-3)
    steps = {name: lambda model=model: step(model) for name, model in models.items()}
    return sum(p.numel() for p in module.parameters()), alternate(world, steps, repetitions=15)


def main() -> None:
    """Print seconds and ratio to torch's."""
    chosen = chosen_names(command_line(__doc__), list(wrappers(None)))
    print(f"Medians of a step. {machine()}")
    for world_size in (2, 4):
        num_parameters, seconds = labkit.run(compare, world_size, (chosen,), timeout=600).values[0]
        print(f"{world_size} ranks, {num_parameters / 1e6:.1f} M parameters")
        for name, value in seconds.items():
            print(f"  {name:<26} {value * 1e3:>9.1f} ms {value / seconds[YARDSTICK]:>7.2f}")


if __name__ == "__main__":
    main()
