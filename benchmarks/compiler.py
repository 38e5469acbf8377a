"""FSDP that a compiler sees: what tracing gives, what buckets give, what another order gives.

    eager, lab's hooks         FullyShardedModule, a unit per block
    eager, fully_shard         FSDP2, a unit per block
    eager, gather per read     simple_fsdp without a compiler
    traced                     simple_fsdp in one graph, in the order of the program
    bucketed                   and collectives joined up to BUCKET_BYTES
    overlapped                 and gathers one bucket ahead, waits later
    torch's pass, bucketed     the traced graph, joined by torch/_inductor/fx_passes/bucketing.py

One model, one run, alternating; medians of the slowest rank and the middle half of the rounds. The
gradients of each are compared with those of a single process, and the numbers of collectives with
labkit.calc. Collectives are counted by torch's dispatcher, which the lab's hooks do not go through
("-"); their journal has them. Then a small GPT trains with gathers of 8 bits, whose bytes are
compared with calc. Exit status 1 where one of these is not so. Times decide nothing.

    python benchmarks/compiler.py           about two minutes
    python benchmarks/compiler.py --quick   a smaller model, two rounds
"""

import copy
import statistics
import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from measure import alternate_in_rounds, command_line, machine
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.fx import GraphModule
from torch.nn import functional as F

import labkit
from labkit import calc
from labkit.compiled import (
    CompiledStep,
    CountCollectives,
    collectives,
    compiled_step,
    full_parameters,
    simple_fsdp,
)
from labkit.data import Corpus
from labkit.memory import Meter
from labkit.model import GPT, GPTConfig
from labkit.optimizer import AdamW
from labkit.zero import FullyShardedModule

FULL = GPTConfig(vocab=255, context=64, num_layers=4, hidden=250, num_heads=5, ffn=1001)
QUICK = GPTConfig(vocab=31, context=32, num_layers=1, hidden=60, num_heads=3, ffn=241)
BUCKET_BYTES = 2**22
Step = Callable[[], torch.Tensor]


def loss(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())


def torchs(module: GPT, world: labkit.Group) -> GPT:
    mesh = init_device_mesh("cpu", (world.size,))
    for block in module.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(module, mesh=mesh)


class TorchsPass(CompiledStep):
    """The traced graph, changed by inductor's pass instead of ours."""

    def change(self, module: GraphModule) -> None:
        from torch._inductor.fx_passes.bucketing import bucket_all_gather, bucket_reduce_scatter
        from torch._inductor.pattern_matcher import stable_topological_sort

        mib = BUCKET_BYTES / 2**20
        bucket_all_gather(module, lambda _: mib)
        bucket_reduce_scatter(module, lambda _: mib)
        stable_topological_sort(module.graph)


OPTIONS: dict[str, dict[str, Any]] = {
    "traced": {"bucket_bytes": None, "ahead": 0},
    "bucketed": {"bucket_bytes": BUCKET_BYTES, "ahead": 0},
    "overlapped": {"bucket_bytes": BUCKET_BYTES, "ahead": 1},
    "overlapped, all at once": {"bucket_bytes": BUCKET_BYTES, "ahead": None},
    "overlapped, kept": {
        "bucket_bytes": BUCKET_BYTES,
        "ahead": 1,
        "reshard_after_forward": False,
    },
}


QUICK_OPTIONS = ("traced", "bucketed", "overlapped")


def made(
    world: labkit.Group, module: GPT, is_quick: bool
) -> dict[str, tuple[torch.nn.Module, Any]]:
    """By name: the module whose parameters are shards, and what is called."""
    found: dict[str, tuple[torch.nn.Module, Any]] = {}
    hooks = FullyShardedModule(copy.deepcopy(module), world)
    fsdp2 = torchs(copy.deepcopy(module), world)
    reads = simple_fsdp(copy.deepcopy(module), world)
    found["eager, lab's hooks"] = hooks, hooks
    found["eager, fully_shard"] = fsdp2, fsdp2
    found["eager, gather per read"] = reads, reads
    for name, options in OPTIONS.items():
        if is_quick and name not in QUICK_OPTIONS:
            continue
        model = simple_fsdp(copy.deepcopy(module), world)
        found[name] = model, compiled_step(model, world, **options)
    if is_quick:
        return found
    model = simple_fsdp(copy.deepcopy(module), world)
    theirs = TorchsPass(model, world, True, None, 0, fullgraph=True)
    found["torch's pass, bucketed"] = model, theirs
    return found


def compare(world: labkit.Group, config: GPTConfig, repetitions: int) -> dict[str, Any]:
    """Return by name rounds of seconds, peak bytes, collectives, and the largest difference."""
    torch.set_num_threads(1)
    module = GPT(config)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(config.vocab, (world.size, config.context), generator=generator)
    alone = copy.deepcopy(module)
    loss(alone, tokens).backward()
    expected = torch.cat([p.grad.flatten() for p in alone.parameters()])  # type: ignore[union-attr]

    candidates = made(world, module, config == QUICK)

    def step(name: str) -> None:
        model, called = candidates[name]
        model.zero_grad()
        loss(called, tokens[world.rank : world.rank + 1]).backward()

    found: dict[str, Any] = {}
    for name, (model, called) in candidates.items():
        step(name)
        found[name] = {"off": largest_difference(world, model, expected, alone)}
        meter, counted = Meter(model), CountCollectives()
        if isinstance(called, CompiledStep):
            called.watch = meter
            step(name)
            called.watch = counted
            step(name)
            called.watch = nullcontext()
            found[name]["graphs"] = {
                kind: len(collectives(graph)) for kind, graph in called.changed.items()
            }
        else:
            with meter:
                step(name)
            with counted:
                step(name)
        found[name].update(peak=meter.usage.peak_bytes, calls=dict(counted.calls))
    steps = {name: (lambda name=name: step(name)) for name in candidates}
    rounds = alternate_in_rounds(world, steps, repetitions)
    for name, times in rounds.items():
        found[name]["seconds"] = times
    return found


def largest_difference(
    world: labkit.Group, model: Any, expected: torch.Tensor, alone: GPT
) -> float:
    """Compare the gradients of all ranks' shards with those of one process."""
    if any(hasattr(p, "full_tensor") for p in model.parameters()):
        whole = {name: p.grad.full_tensor() for name, p in model.named_parameters()}
    else:  # gathered like parameters, which they replace for a moment
        before = [p.data.clone() for p in model.parameters()]
        for p in model.parameters():
            if p.grad is not None:
                p.data.copy_(p.grad)
        is_hooked = isinstance(model, FullyShardedModule)
        whole = model.full_parameters() if is_hooked else full_parameters(model)
        for p, value in zip(model.parameters(), before, strict=True):
            p.data.copy_(value)
    flat = torch.cat([whole[name].flatten() for name, _ in alone.named_parameters()])
    return float((flat - expected).abs().max())


def wrong(config: GPTConfig, world_size: int, found: dict[str, Any]) -> list[str]:
    """Return what is not as it must be."""
    reads = 8 * config.num_layers + 4
    faults = [
        f"{name}: gradients differ from one process by {each['off']:.1e}"
        for name, each in found.items()
        if each["off"] > 1e-5
    ]
    if found["traced"]["graphs"] != {"forward": reads, "backward": 2 * reads - 2}:
        faults.append(f"traced: {found['traced']['graphs']} collectives, not {reads} gathers")
    sizes = [4 * world_size * -(-p.numel() // world_size) for p in in_order(GPT(config))]
    predicted = len(calc.bucket_sizes(sizes, BUCKET_BYTES))
    if found["bucketed"]["graphs"]["forward"] != predicted:
        faults.append(f"bucketed: {found['bucketed']['graphs']}, not {predicted} in forward")
    return faults


def in_order(module: GPT) -> list[torch.nn.Parameter]:
    """Return the parameters in the order in which forward reads them; the tied one twice."""
    blocks = [p for block in module.blocks for p in block.parameters()]
    return [*module.embedding.parameters(), *blocks, module.norm.weight, module.head.weight]


def breaks(world: labkit.Group, config: GPTConfig) -> dict[str, int]:
    """Return by strategy into how many graphs torch.compile cuts a forward pass."""
    import torch._dynamo

    def looks_at_values(module: GPT) -> torch.nn.Module:
        model = simple_fsdp(module, world)

        def check(_: object, inputs: tuple[torch.Tensor]) -> None:
            if not inputs[0].isfinite().all():
                raise ValueError("activations that are not finite")

        model.blocks[0].register_forward_pre_hook(check)
        return model

    wraps: dict[str, Callable[[GPT], torch.nn.Module]] = {
        "simple_fsdp": lambda module: simple_fsdp(module, world),
        "simple_fsdp, a check of values": looks_at_values,
        "fully_shard": lambda module: torchs(module, world),
    }
    found = {}
    tokens = torch.zeros(1, config.context, dtype=torch.int64)
    for name, wrap in wraps.items():
        torch._dynamo.reset()
        graphs: list[GraphModule] = []

        def keep(module: GraphModule, _: object, graphs: list[GraphModule] = graphs) -> GraphModule:
            graphs.append(module)
            return module

        torch.compile(wrap(GPT(config)), backend=keep)(tokens)
        found[name] = len(graphs)
    return found


def eight_bits(world: labkit.Group, num_steps: int) -> dict[str, tuple[int, list[float]]]:
    """Return by wire the bytes of a forward's gathers, and the loss of each seed at the end."""
    config = GPTConfig(context=32, num_layers=2, hidden=64, num_heads=2)
    text = Corpus.standard_library().bytes_N
    found = {}
    for wire in ("float32", "float8", "int8"):
        losses = []
        for seed in range(3):
            model = simple_fsdp(GPT(config, seed), world, wire=wire.replace("float32", "whole"))
            optimizer = AdamW(model.parameters(), 3e-3)
            draw = torch.Generator().manual_seed(100 * seed + world.rank)
            last = []
            for _ in range(num_steps):
                optimizer.zero_grad()
                starts = torch.randint(len(text) - 33, (8,), generator=draw).tolist()
                rows = torch.stack([text[start : start + 33] for start in starts]).long()
                with CountCollectives() as counted:
                    logits = model(rows[:, :-1])
                value = F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
                value.backward()
                optimizer.step()
                last.append(value.detach())
            mean = world.all_reduce(torch.stack(last[-10:]).mean()) / world.size
            losses.append(float(mean))
        sent = counted.nbytes["all_gather"] * (world.size - 1) // world.size
        predicted = sum(
            int(calc.gather_bytes(p.numel(), world.size, wire if p.dim() > 1 else "float32"))
            for p in in_order(GPT(config))
        )
        if sent != predicted:
            raise AssertionError(f"{wire}: {sent} bytes gathered, not {predicted}")
        found[wire] = sent, losses
    return found


def main() -> None:
    """Print a table for each world size, and exit with 1 if an exact fact is not so."""
    parser = command_line(__doc__)
    parser.add_argument("--quick", action="store_true", help="a smaller model, two rounds")
    quick = parser.parse_args().quick
    config, sizes, repetitions = (QUICK, (2,), 2) if quick else (FULL, (2, 4), 15)
    print(f"A forward and a backward pass. {machine()}")
    faults: list[str] = []
    for world_size in sizes:
        by_rank = labkit.run(compare, world_size, (config, repetitions), timeout=600).values
        found = by_rank[0]
        num = GPT(config).num_parameters
        print(f"{world_size} ranks, {num / 1e6:.2f} M parameters; collectives by torch's own count")
        for name, each in found.items():
            times = sorted(each["seconds"])
            low, high = times[len(times) // 4], times[-1 - len(times) // 4]
            peak = max(rank[name]["peak"] for rank in by_rank) / 2**20
            calls = each["calls"] or {"all_gather": "-", "reduce_scatter": "-"}
            print(
                f"  {name:<25}{statistics.median(times) * 1e3:>8.1f} ms ({low * 1e3:.1f} to "
                f"{high * 1e3:.1f})  peak {peak:>6.2f} MiB  gathers {calls.get('all_gather', 0):>3}"
                f"  reduce-scatters {calls.get('reduce_scatter', 0):>3}  off {each['off']:.0e}"
            )
        faults += wrong(config, world_size, found)
    print("graphs of a forward pass")
    cut = labkit.run(breaks, 2, (QUICK,), timeout=300).values[0]
    for name, number in cut.items():
        print(f"  {name:<32}{number}")
    if cut["simple_fsdp"] != 1 or cut["simple_fsdp, a check of values"] < 2:
        faults.append(f"graphs: {cut}")
    num_steps = 4 if quick else 60
    print(f"bytes that a rank sends to gather a forward's weights; loss after {num_steps} steps")
    try:
        trained = labkit.run(eight_bits, 2, (num_steps,), timeout=600).values[0]
    except labkit.RankError as error:
        trained = {}
        faults.append(str(error).splitlines()[0])
    for wire, (sent, losses) in trained.items():
        seeds = ", ".join(f"{each:.3f}" for each in losses)
        print(f"  {wire:<10}{sent:>9,} B  {seeds}, by seed")
    for each in faults:
        print(f"not as it must be: {each}", file=sys.stderr)
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
