"""Measure adapters on ranks: what they hold and send; torch's FSDP beside the lab's ZeRO-3.

Each function returns one number. GPTs are small, in float32, and have no padding.
"""

from __future__ import annotations

import contextlib
import warnings
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

from labkit import Group, Run
from labkit.collectives import ring_all_reduce
from labkit.data import Batch
from labkit.data_parallel import NaiveDDP
from labkit.interview.real_run import real_run, run, sent_bytes_in
from labkit.lora import (
    AdapterJobs,
    adapter_parameters,
    add_adapter,
    lora_layers,
    measure_methods,
    prepare,
    shard_linears,
    use_adapters,
)
from labkit.memory import Meter
from labkit.model import GPT, GPTConfig
from labkit.optimizer import AdamW
from labkit.train import loss
from labkit.zero import FullyShardedModule

_FEATURES, _LORA_RANK = 256, 4
_CONFIG = GPTConfig(vocab=64, context=16, num_layers=2, hidden=128, num_heads=4)


@real_run
def adapter_sent_bytes(world_size: int, frozen: bool) -> int:
    """Return the bytes of gradients that rank 0 sends in a step of NaiveDDP, by rings.

    One 256 x 256 matrix with an adapter of rank 4 beside it, float32; frozen: the matrix is.
    """
    return run(_adapted_step, world_size, (frozen,)).traffic[0].by_operation["send"].sent_bytes


def _adapted_step(world: Group, frozen: bool) -> None:
    module = nn.Sequential()
    module.add_module("matrix", nn.Linear(_FEATURES, _FEATURES, bias=False))
    add_adapter(module, "job", _LORA_RANK, targets=["matrix"])
    if not frozen:
        module.requires_grad_(True)
    model = NaiveDDP(module, world, all_reduce=ring_all_reduce)
    model(torch.ones(2, _FEATURES)).square().mean().backward()
    model.reduce_gradients()


def _batch(seed: int = 0, num_sequences: int = 4) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    windows = torch.randint(
        _CONFIG.vocab, (num_sequences, _CONFIG.context + 1), generator=generator
    )
    return Batch(windows[:, :-1], windows[:, 1:])


@real_run
def held_bytes(method: str, kind: str) -> int:
    """Return the bytes that a rank of 2 holds after a step of AdamW under DDP.

    method: one of labkit.lora.METHODS, with rank 4 on queries and values. kind: of labkit.memory,
    "weights" for parameters and buffers, or "kept for backward" for the most activations.
    """
    usage = _methods().values[0][method]
    if kind == "kept for backward":
        return usage.peak_of("activations")
    kinds = ("parameters", "buffers") if kind == "weights" else (kind,)
    return sum(usage.at_end[each] for each in kinds)


@real_run
def sent_by_method(method: str) -> int:
    """Return the bytes that a rank of 2 sends in a step under DDP; method as in `held_bytes`."""
    return sent_bytes_in(_methods().timeline[0], f"{method}, step 1")


@real_run
def _methods() -> Run:
    """Run all methods in one launch."""
    return run(measure_methods, 2, (_CONFIG, _batch()))


@real_run
def broadcast_of_codes() -> int:
    """Return the bytes that a forward pass of DDP on 2 ranks broadcasts of an int4 base.

    Its codes and scales are buffers, and broadcast_buffers has its default, True.
    """
    result = run(_quantised_forward, 2)
    return sent_bytes_in(result.timeline[0], "forward")


def _quantised_forward(world: Group) -> None:
    model = NaiveDDP(prepare(GPT(_CONFIG), "LoRA, int4 base"), world)
    with world.region("forward"):
        model(_batch().inputs_BT)


WAYS = ("FSDP", "FSDP, adapters apart", "FSDP2", "the lab's ZeRO-3")


@real_run
def gradient_ratio(way: str) -> float:
    """Return the gradients that a rank of 2 holds after backward, over those of its adapters.

    The blocks are units. Each has a frozen base and an adapter of rank 1 on the query. way: "FSDP"
    (use_orig_params=True, both in one unit), "FSDP, adapters apart" (units of their own within the
    block), "FSDP2" (fully_shard) or "the lab's ZeRO-3".
    """
    held, needed = run(_sharded_backward, 2, (way,)).values[0]
    return held / needed


def _sharded_backward(world: Group, way: str) -> tuple[int, float]:
    """Return the bytes of gradients on this rank, and an equal share of the adapters' bytes."""
    module = GPT(_CONFIG)
    add_adapter(module, "job", 1, targets=["query"])
    adapters = adapter_parameters(module, "job").values()
    needed = sum(parameter.nbytes for parameter in adapters) / world.size
    model = _sharded(module, world, way)
    with Meter(model) as meter:
        loss(model, _batch(world.rank)).backward()
    return meter.usage.at_end["gradients"], needed


def _sharded(module: GPT, world: Group, way: str) -> nn.Module:
    if way == "the lab's ZeRO-3":
        return FullyShardedModule(module, world)
    if way == "FSDP2":
        mesh = init_device_mesh("cpu", (world.size,))
        for block in module.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(module, mesh=mesh)
        return module
    warnings.simplefilter("ignore")  # FSDP says that FSDP2 replaces it
    cpu = torch.device("cpu")
    wrap: Any = partial(FullyShardedDataParallel, use_orig_params=True, device_id=cpu)
    if way == "FSDP, adapters apart":
        for layer in lora_layers(module).values():
            layer.adapters["job"] = wrap(layer.adapters["job"])
    for number, block in enumerate(module.blocks):
        module.blocks[number] = wrap(block)
    return wrap(module)


@real_run
def all_reduces_in_backward(num_ranks: int, rank: int) -> tuple[int, int]:
    """Return the number of all-reduces of a tensor-parallel backward pass, and their bytes.

    Adapters of this rank on queries and values of two layers; rank 0 of `num_ranks`.
    """
    operations = run(_tensor_parallel_step, num_ranks, (rank,)).timeline[0].within("backward")
    return len(operations), sum(each.sent_bytes for each in operations)


def _tensor_parallel_step(world: Group, rank: int) -> None:
    model = shard_linears(GPT(_CONFIG), world)
    add_adapter(model, "job", rank)
    value = loss(model, _batch())
    with world.region("backward"):
        value.backward()


@real_run
def jobs_differ_from_alone(num_ranks: int) -> int:
    """Return how many parameters of two jobs in one batch differ from those of each job alone.

    Three steps on `num_ranks` ranks in float64, 3 and 2 rows; one job skips a step. A difference
    is one above 1e-10.
    """
    together = run(_jobs, num_ranks, (("p", "c"),)).values[0]
    alone = [run(_jobs, 1, ((name,),)).values[0] for name in ("p", "c")]
    expected = alone[0] | alone[1]
    return sum(
        int(((together[name] - value).abs() > 1e-10).sum()) for name, value in expected.items()
    )


def _jobs(world: Group, names: tuple[str, ...]) -> dict[str, torch.Tensor]:
    model = GPT(_CONFIG, dtype=torch.float64)
    for seed, name in enumerate(("p", "c")):
        add_adapter(model, name, _LORA_RANK, seed=seed)
    jobs = AdapterJobs(NaiveDDP(model, world), partial(AdamW, learning_rate=1e-2))
    for step in range(3):
        batches = {"p": _batch(step, 3), "c": _batch(10 + step, 2)}
        has_rows = [name for name in names if name == "p" or step != 1]
        if has_rows:
            jobs.step({name: batches[name] for name in has_rows})
    parameters = [adapter_parameters(model, name) for name in names]
    return {path: p.detach() for each in parameters for path, p in each.items()}


@real_run
def products_of_a_batch(num_adapters: int) -> tuple[int, int]:
    """Return the products with weights in a forward pass of 8 rows: with the base's, and with A.

    The rows use `num_adapters` adapters in turn, on queries and values of two layers.
    """
    model = GPT(_CONFIG)
    for number in range(num_adapters):
        add_adapter(model, str(number), _LORA_RANK)
    use_adapters(model, [str(row % num_adapters) for row in range(8)])
    base = adapters = 0

    def counted(module: nn.Module, *_: Any) -> None:
        nonlocal base, adapters
        base += isinstance(module, nn.Linear)
        adapters += module.__class__.__name__ == "Adapter"

    with contextlib.ExitStack() as stack, torch.no_grad():
        for module in model.blocks.modules():
            stack.callback(module.register_forward_hook(counted).remove)
        model(_batch(0, 8).inputs_BT)
    return base, adapters
