"""Measure ZeRO on four ranks: what one holds, and what it sends; each function returns one number.

PyTorch's own FSDP2 runs over gloo, and fsdp2_sent_volume() counts which collectives its switches
leave of a step. Each unit is one linear layer, and all are equal. So a collective of each unit is
one time the parameters: an all-gather before it is used, a reduce-scatter of its gradient.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils._python_dispatch import TorchDispatchMode

from labkit import Group, Run
from labkit.compiled import (
    CountCollectives,
    collectives,
    compiled_step,
    simple_fsdp,
)
from labkit.data_parallel import DDP
from labkit.interview.real_run import real_run, run
from labkit.memory import Meter
from labkit.model import GPT, GPTConfig
from labkit.optimizer import SGD, AdamW
from labkit.zero import FullyShardedModule, Zero1Optimizer, Zero2Optimizer, on_disk

# Multiples of four: nothing is padded.
_CONFIG = GPTConfig(context=16, num_layers=1, hidden=32, num_heads=2)
_HELD_BYTES = {"parameters": 4, "gradients": 4, "optimizer states": 8}  # per parameter, float32
_N = 4
_NUM_RANKS, _UNITS, _WIDTH = 4, 3, 16
_KINDS = {"_allgather_base_": "all_gather", "_reduce_scatter_base_": "reduce_scatter"}
Counts = dict[tuple[str, int], float]
"""Calls per unit, by kind of collective and by the number of ranks that shard the tensor."""


def _ddp(world: Group, module: GPT, optimizer: Callable, **how: Any) -> tuple:
    return DDP(module, world), optimizer(module.parameters(), **how)


def _zero1(world: Group, module: GPT, optimizer: Callable, **how: Any) -> tuple:
    return module, Zero1Optimizer(module.parameters(), optimizer, world, **how)


def _zero2(world: Group, module: GPT, optimizer: Callable, **how: Any) -> tuple:
    sharded = Zero2Optimizer(module.parameters(), optimizer, world, bucket_bytes=2**14, **how)
    return module, sharded


def _zero3(world: Group, module: GPT, optimizer: Callable, **how: Any) -> tuple:
    model = FullyShardedModule(module, world)
    return model, optimizer(model.parameters(), **how)


def _no_reshard(world: Group, module: GPT, optimizer: Callable, **how: Any) -> tuple:
    """Use reshard_after_forward=False: units stay whole from forward to backward."""
    model = FullyShardedModule(module, world, reshard_after_forward=False)
    return model, optimizer(model.parameters(), **how)


_RUNGS = {
    "ddp": _ddp,
    "zero1": _zero1,
    "zero2": _zero2,
    "zero3": _zero3,
    "zero3, kept": _no_reshard,
}


def _value_of(model: Callable[..., torch.Tensor]) -> torch.Tensor:
    tokens = torch.arange(16).reshape(1, 16)
    return nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())


@real_run
def held(strategy: str, kind: str) -> float:
    """Return the share that a rank of 4 holds of "parameters", "gradients" or "optimizer
    states"."""
    most = max(of_rank[strategy][kind] for of_rank in _all_metered())
    return most / (_HELD_BYTES[kind] * GPT(_CONFIG).num_parameters)


@real_run
def held_bytes_per_parameter(strategy: str) -> float:
    """Return the bytes per parameter of all three kinds on a rank of 4, in float32 with AdamW."""
    return sum(nbytes * held(strategy, kind) for kind, nbytes in _HELD_BYTES.items())


@real_run
def _all_metered() -> list[dict[str, dict[str, float]]]:
    """Run all strategies in one launch; return the bytes held by rank, strategy and kind."""
    return run(_metered, _N).values


def _metered(world: Group) -> dict[str, dict[str, float]]:
    return {strategy: _held_by(world, strategy) for strategy in ("ddp", "zero1", "zero2", "zero3")}


def _held_by(world: Group, strategy: str) -> dict[str, float]:
    model, optimizer = _RUNGS[strategy](world, GPT(_CONFIG), AdamW, learning_rate=1e-3)
    meter = Meter(model, optimizer)
    for _ in range(2):  # the first step creates the optimizer's states
        with meter:
            _value_of(model).backward()
            gradients = meter.usage.at_end["gradients"]
            optimizer.step()
            optimizer.zero_grad()
    return {**meter.usage.at_end, "gradients": gradients}


@real_run
def sent_volume(strategy: str, microbatches: int = 1) -> float:
    """Return the bytes that rank 0 of 4 sends in a step, in units of (n - 1)/n of the parameters.

    strategy: "ddp" (no_sync until the last microbatch), "zero1", "zero2", "zero3" or "zero3, kept"
    (reshard_after_forward=False).
    """
    whole = 4 * GPT(_CONFIG).num_parameters * (_N - 1) / _N
    region = f"{strategy}, {microbatches} microbatches"
    return _sent_in(_all_accumulated(microbatches).timeline[0], region) / whole


@real_run
def _all_accumulated(microbatches: int) -> Run:
    """Run all strategies in one launch."""
    return run(_accumulated, _N, args=(microbatches,))


def _sent_in(timeline: Any, name: str) -> float:
    return sum(each.sent_bytes for each in timeline.within(name))


def _accumulated(world: Group, microbatches: int) -> None:
    for strategy in _RUNGS:
        model, optimizer = _RUNGS[strategy](world, GPT(_CONFIG), SGD, learning_rate=0.1)
        _value_of(model).backward()  # DDP rebuilds its buckets once, before the measured region
        optimizer.zero_grad()
        no_sync = getattr(model, "no_sync", nullcontext)  # only ddp has it, or needs it
        world.barrier()
        with world.region(f"{strategy}, {microbatches} microbatches"):
            for microbatch in range(microbatches):
                with nullcontext() if microbatch == microbatches - 1 else no_sync():
                    (_value_of(model) / microbatches).backward()
            optimizer.step()


@real_run
def disk_bytes_per_parameter() -> float:
    """Return the bytes per parameter that a step of one rank moves with AdamW's moments on disk."""
    return run(_on_disk, 1).values[0]


def _on_disk(world: Group) -> float:
    with tempfile.TemporaryDirectory() as folder:
        module = GPT(_CONFIG)
        optimizer = on_disk(AdamW, folder)(module.parameters(), learning_rate=1e-3)
        moved = []
        for _ in range(2):
            _value_of(module).backward()
            optimizer.step()
            optimizer.zero_grad()
            moved.append(optimizer.num_bytes_moved)
    return (moved[1] - moved[0]) / module.num_parameters


@real_run
def leaves_a_host(how: str) -> float:
    """Return the bytes that leave host 0 in a pass, as a multiple of the parameters' bytes.

    There are two hosts of two ranks. how: "flat", shards over all four; "hybrid", shards within a
    host and replicas across.
    """
    result = run(_one_pass, _N, args=(how,))
    return sum(map(_leaving, result.timeline[:2])) / (4 * GPT(_CONFIG).num_parameters)


def _one_pass(world: Group, how: str) -> None:
    if how == "hybrid":
        host, twins = (world.split(color) for color in (world.rank // 2, world.rank % 2))
        assert isinstance(host, Group) and isinstance(twins, Group)  # every rank is in one
        model = FullyShardedModule(GPT(_CONFIG), host, replicas=twins)
    else:
        model = FullyShardedModule(GPT(_CONFIG), world)
    _value_of(model).backward()
    world.barrier()
    with world.region("pass"):
        _value_of(model).backward()


def _leaving(timeline: Any) -> float:
    """Return the bytes that a rank of host 0 (ranks 0 and 1) sends to ranks 2 and 3 in the pass."""
    sends = [each for each in timeline.within("pass") if each.kind != "recv"]
    return sum(
        each.sent_bytes
        for each in sends
        if max({each.peer} if each.kind == "send" else set(each.group)) > 1
    )


class _Switches(NamedTuple):
    reshard_after_forward: bool | int = True
    reshard_after_backward: bool = True
    gradient_sync: bool = True
    """True: gradients are reduced in every microbatch; False: in the last one only."""


_KEPT = _Switches(False)
_ASKED = {
    "default": _Switches(),
    "kept to backward": _KEPT,
    "kept for the step": _KEPT._replace(reshard_after_backward=False),
    "kept for the step, gradients reduced once": _Switches(False, False, False),
    "gradients reduced once": _Switches(gradient_sync=False),
    "backward over pairs": _Switches(2),
}


@real_run
def fsdp2_sent_volume(switches: str = "default", microbatches: int = 4) -> float:
    """Return the volume of fully_shard's collectives in a step, as a multiple of the parameters.

    switches: "default" (reshard_after_forward=True), "kept to backward" (False), "kept for the
    step" (set_reshard_after_backward(False) as well, but for the last microbatch), "kept for the
    step, gradients reduced once" (and set_requires_gradient_sync(False) in all but the last) or
    "gradients reduced once" (that alone). microbatches: 1 or 4.
    """
    return sum(_counts(microbatches)[switches].values())


@real_run
def ranks_of_gathers(switches: str) -> tuple[int, ...]:
    """Return over how many ranks fully_shard gathers a unit, in forward and in backward.

    switches: "default" or "backward over pairs" (reshard_after_forward=2).
    """
    counts = _counts(1)[switches]
    gathers = {ranks: round(calls) for (kind, ranks), calls in counts.items() if "gather" in kind}
    return tuple(sorted(Counter(gathers).elements(), reverse=True))


def _counts(microbatches: int) -> dict[str, Counts]:
    """Return rank 0's counts by name of the switches."""
    return {switches: counts for (switches, k), counts in _all().items() if k == microbatches}


@real_run
def _all() -> dict[tuple[str, int], Counts]:
    """Run all switches in one launch."""
    return run(_all_counted, _NUM_RANKS).values[0]


def _all_counted(world: Group) -> dict[tuple[str, int], Counts]:
    mesh = init_device_mesh("cpu", (world.size,))
    return {
        (name, k): _counted(switches, mesh, k) for name, switches in _ASKED.items() for k in (1, 4)
    }


def _counted(switches: _Switches, mesh: DeviceMesh, microbatches: int) -> Counts:
    model = _model(mesh=mesh, reshard_after_forward=switches.reshard_after_forward)
    x = torch.ones(2, _WIDTH)
    with _Collectives() as collectives:
        for microbatch in range(microbatches):
            is_last = microbatch == microbatches - 1
            model.set_reshard_after_backward(switches.reshard_after_backward or is_last)
            model.set_requires_gradient_sync(switches.gradient_sync or is_last)
            model(x).sum().backward()
    return {which: calls / _UNITS for which, calls in collectives.calls.items()}


def _model(**options: Any) -> Any:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(_WIDTH, _WIDTH, bias=False) for _ in range(_UNITS)))
    for unit in model:
        fully_shard(unit, **options)
    return fully_shard(model, **options)


class _Collectives(TorchDispatchMode):
    """Counts torch's own collectives."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[tuple[str, int]] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count a collective under its kind and its number of shards."""
        kind = _KINDS.get(func.overloadpacket.__name__) if func.namespace == "c10d" else None
        if kind is not None:
            sizes = [each.numel() for each in args if isinstance(each, torch.Tensor)]
            self.calls[kind, max(sizes) // min(sizes)] += 1
        return func(*args, **(kwargs or {}))


_TRACED = GPTConfig(context=16, num_layers=3, hidden=32, num_heads=2)
_PASSES: dict[str, dict[str, Any]] = {
    "traced": {"bucket_bytes": None, "ahead": 0},
    "bucketed": {"bucket_bytes": 50_000, "ahead": 0},
    "one ahead": {"bucket_bytes": 50_000, "ahead": 1},
    "all at once": {"bucket_bytes": 50_000, "ahead": None},
    "kept": {"bucket_bytes": 50_000, "ahead": 1, "reshard_after_forward": False},
}


@real_run
def traced_collectives(passes: str, graph: str) -> int:
    """Return the collectives of a GPT's graph with three blocks, on 2 ranks.

    passes: "traced", "bucketed" (50 kB, a block), "one ahead", "all at once" or "kept"
    (reshard_after_forward=False). graph: "forward" or "backward".
    """
    return _all_traced()[passes][graph]


@real_run
def traced_peak(passes: str) -> float:
    """Return the peak memory of a traced step, as a multiple of the parameters' bytes."""
    return _all_traced()[passes]["peak"] / (4 * GPT(_TRACED).num_parameters)


@real_run
def _all_traced() -> dict[str, dict[str, int]]:
    return run(_traced, 2).values[0]


def _traced(world: Group) -> dict[str, dict[str, int]]:
    found = {}
    for name, options in _PASSES.items():
        model = simple_fsdp(GPT(_TRACED), world)
        step = compiled_step(model, world, **options)
        peaks = []
        for _ in range(6):  # gloo's threads may hold a message for a moment longer
            model.zero_grad()
            step.watch = meter = Meter(model)
            _value_of(step).backward()
            peaks.append(meter.usage.peak_bytes)
        counts = {graph: len(collectives(each)) for graph, each in step.changed.items()}
        found[name] = {**counts, "peak": min(peaks[1:])}
    return found


@real_run
def wire_bytes(wire: str) -> float:
    """Return the bytes of a gather of 256 x 256 weights on 2 ranks, per parameter.

    wire: "bfloat16", "float8", "int8", or "cast after": gathered in bfloat16, then cast to float8.
    """
    return _all_wires()[wire][0]


@real_run
def wire_error(wire: str) -> float:
    """Return the root mean square error of the gathered weights, relative to the weights."""
    return _all_wires()[wire][1]


@real_run
def _all_wires() -> dict[str, tuple[float, float]]:
    return run(_wires, 2).values[0]


def _wires(world: Group) -> dict[str, tuple[float, float]]:
    found = {}
    for wire in ("bfloat16", "float8", "int8", "cast after"):
        torch.manual_seed(0)
        module = nn.Linear(256, 256, bias=False)
        with torch.no_grad():
            before = module.weight.normal_(std=0.02).clone()
        is_coded = wire in ("float8", "int8")
        simple_fsdp(module, world, torch.bfloat16, wire=wire if is_coded else "whole")
        with CountCollectives() as counted, torch.no_grad():
            read = module.weight.float()
        if wire == "cast after":
            scale = read.abs().max() / torch.finfo(torch.float8_e4m3fn).max
            read = (read / scale).to(torch.float8_e4m3fn).float() * scale
        error = (read - before).norm() / before.norm()
        found[wire] = counted.nbytes["all_gather"] / before.numel(), float(error)
    return found


@real_run
def accumulated_difference(dtype: str) -> float:
    """Return how far apart the levels' weights are after 4 steps of 4 microbatches, on 4 ranks.

    dtype: "float64", "float32" or "bfloat16", of parameters and gradients. The largest difference
    between two of ddp, zero1, zero2 and zero3, relative to the largest weight.
    """
    return run(_levels, _N, args=(dtype,)).values[0]


def _levels(world: Group, dtype: str) -> float:
    weights = []
    for strategy in ("ddp", "zero1", "zero2", "zero3"):
        module = GPT(_CONFIG, dtype=getattr(torch, dtype))
        model, optimizer = _RUNGS[strategy](world, module, SGD, learning_rate=0.1)
        for _ in range(4):
            optimizer.zero_grad()
            for microbatch in range(4):
                no_sync = getattr(model, "no_sync", nullcontext)
                with nullcontext() if microbatch == 3 else no_sync():
                    draw = torch.Generator().manual_seed(10 * microbatch + world.rank)
                    tokens = torch.randint(256, (1, 16), generator=draw)
                    logits = model(tokens).flatten(0, 1)
                    (nn.functional.cross_entropy(logits, tokens.flatten()) / 4).backward()
            optimizer.step()
        is_sharded = strategy == "zero3"
        whole = model.full_parameters() if is_sharded else dict(module.named_parameters())
        in_order = [whole[name].detach().double().flatten() for name in sorted(whole)]
        weights.append(torch.cat(in_order))
    stacked = torch.stack(weights)
    return float((stacked.amax(0) - stacked.amin(0)).max() / stacked.abs().max())


@real_run
def graphs_of_forward(how: str) -> int:
    """Return into how many graphs torch.compile cuts a forward pass with one block.

    how: "simple_fsdp", "a check of values" (a hook of the block that looks at its input), or
    "fully_shard".
    """
    return _all_cut()[how]


@real_run
def _all_cut() -> dict[str, int]:
    return run(_cut, 2).values[0]


def _cut(world: Group) -> dict[str, int]:
    import torch._dynamo  # takes seconds

    def check(_: nn.Module, inputs: Any) -> None:
        if not inputs[0].isfinite().all():
            raise ValueError("activations that are not finite")

    found = {}
    for how in ("simple_fsdp", "a check of values", "fully_shard"):
        torch._dynamo.reset()
        model: Any = GPT(_CONFIG)
        if how == "fully_shard":
            mesh = init_device_mesh("cpu", (world.size,))
            for unit in (*model.blocks, model):
                fully_shard(unit, mesh=mesh)
        else:
            model = simple_fsdp(model, world)
        if how == "a check of values":
            model.blocks[0].register_forward_pre_hook(check)
        graphs: list[object] = []

        def keep(module: Any, _: object, graphs: list[object] = graphs) -> Any:
            graphs.append(module)
            return module

        torch.compile(model, backend=keep)(torch.zeros(1, 16, dtype=torch.int64))
        found[how] = len(graphs)
    return found
