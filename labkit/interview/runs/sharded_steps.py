"""What a data-parallel step sends and holds: DDP and the three levels of ZeRO on four real ranks.

The model is a GPT whose sizes are multiples of four, in float32, trained by AdamW: 4 + 4 + 8 bytes
per parameter. A step is measured after one that is not, since states come with the first.
"""

from contextlib import nullcontext
from functools import partial

import torch
from torch import nn

from labkit import Group
from labkit.data_parallel import DDP
from labkit.interview.runs.journals_of_runs import sent_bytes_in
from labkit.interview.runs.real_run import real_run, run
from labkit.memory import Meter
from labkit.model import GPT, GPTConfig
from labkit.optimizer import AdamW, Optimizer
from labkit.zero import FullyShardedModule, ShardedGradients, ShardedOptimizer

CONFIG = GPTConfig(context=16, num_layers=1, hidden=32, num_heads=2)
RANKS = 4
MICROBATCHES = (1, 4)
STRATEGIES = ("ddp", "zero1", "zero2", "zero3", "zero3, kept")
"""The last keeps what it has gathered until backward has finished: torch's SHARD_GRAD_OP."""


def times_the_parameters(strategy: str, num_microbatches: int = 1) -> float:
    """Bytes that rank 0 sends in a step, over (n-1)/n of the bytes of all parameters."""
    _known(strategy)
    if num_microbatches not in MICROBATCHES:
        raise ValueError(f"num_microbatches={num_microbatches}: give one of {MICROBATCHES}")
    sent = steps()[0][strategy, num_microbatches]
    return sent / (4 * GPT(CONFIG).num_parameters * (RANKS - 1) / RANKS)


def held_bytes(strategy: str) -> float:
    """Bytes per parameter of parameters, gradients and states, where a backward pass has ended."""
    _known(strategy)
    return steps()[1][strategy] / GPT(CONFIG).num_parameters


@real_run
def steps() -> tuple[dict[tuple[str, int], int], dict[str, int]]:
    """(strategy, k) -> bytes that rank 0 sends; strategy -> bytes that the fullest rank holds."""
    result = run(_all, RANKS, timeout=120)
    sent = {
        (strategy, k): sent_bytes_in(result.timeline[0], f"{strategy}, {k}")
        for strategy in STRATEGIES
        for k in MICROBATCHES
    }
    held = {each: max(of_rank[each] for of_rank in result.values) for each in STRATEGIES}
    return sent, held


def _known(strategy: str) -> None:
    if strategy not in STRATEGIES:
        raise ValueError(f"strategy={strategy!r}: give one of {', '.join(STRATEGIES)}")


def _made(strategy: str, module: GPT, world: Group) -> tuple[nn.Module, Optimizer]:
    make = partial(AdamW, learning_rate=1e-3)
    parameters = module.parameters()
    if strategy == "ddp":
        return DDP(module, world), make(parameters)
    if strategy == "zero1":
        return module, ShardedOptimizer(parameters, AdamW, world, learning_rate=1e-3)
    if strategy == "zero2":
        optimizer = ShardedGradients(
            parameters, AdamW, world, bucket_bytes=2**14, learning_rate=1e-3
        )
        return module, optimizer
    reshard = strategy != "zero3, kept"
    model = FullyShardedModule(module, world, reshard_after_forward=reshard)
    return model, make(model.parameters())


def _all(world: Group) -> dict[str, int]:
    return {strategy: _steps_of(strategy, world) for strategy in STRATEGIES}


def _steps_of(strategy: str, world: Group) -> int:
    """A step of each number of microbatches; the bytes held after a backward pass."""
    model, optimizer = _made(strategy, GPT(CONFIG), world)
    tokens = torch.arange(16).reshape(1, 16)
    meter = Meter(model, optimizer)

    def backward(k: int) -> None:
        logits = model(tokens).flatten(0, 1)
        (nn.functional.cross_entropy(logits, tokens.flatten()) / k).backward()

    with meter:
        backward(1)
        optimizer.step()  # the first makes states, and DDP then agrees on the order of its buckets
        optimizer.zero_grad()
    quiet = getattr(model, "no_sync", nullcontext) if strategy == "ddp" else nullcontext
    usage: dict[str, int] = {}
    for k in MICROBATCHES:
        world.barrier()
        with world.region(f"{strategy}, {k}"), meter if not usage else nullcontext():
            for microbatch in range(k):
                with nullcontext() if microbatch == k - 1 else quiet():
                    backward(k)
            usage = usage or meter.usage.at_end
            optimizer.step()
            optimizer.zero_grad()
    return sum(usage[kind] for kind in ("parameters", "gradients", "optimizer states"))
