"""What the journal and the comparison with the other ranks cost, on a small all_reduce.

The targets: the journal under 5%, with the comparison under 10%. Groups with both, with the journal
only and with neither alternate in blocks on the same ranks, and so do blocks of torch's own
dist.all_reduce, compared (comm/calls) and as torch has it. What one has more than the other is the
median over rounds of such blocks, with the interval that holds it with 95%. torch's Flight Recorder
cannot be switched within a process: runs with it and without alternate.
The calls stand in loops, over numbers and over tensors, which takes a look at their variables, or
mention a parameter, which is looked for in the text around the call and then in the model.
Run it with `python benchmarks/journal.py`.
"""

import os
import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from measure import added, alternate_in_rounds, machine

import labkit
from labkit.comm.calls.compared import of_this_process
from labkit.comm.calls.torch_functions import _enter_collective, binder
from labkit.comm.flight_recorder import NUM_COLLECTIVES
from labkit.comm.no_journal import NoJournal
from labkit.comm.wire_bytes import WireBytes

CALLS_PER_BLOCK = 20
BLOCKS = 300
CALLS_RECORDED = 400
TORCHS = "torch's"
KEPT = str(NUM_COLLECTIVES)


def compare(world: labkit.Group) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Seconds of each block of all_reduces, and of a rank's CPU that a call by itself takes."""
    group, ranks, device = world._process_group, world.ranks, world.device
    groups = {
        "both": world,
        "journal": labkit.Group(group, ranks, device, world._journal, "journal only"),
        "neither": labkit.Group(group, ranks, device, NoJournal(), "neither"),
    }
    x = torch.ones(16)

    def block(group: labkit.Group) -> None:
        for _ in range(CALLS_PER_BLOCK):
            group.all_reduce(x, out=x)

    def torchs_block(all_reduce: Callable[[torch.Tensor], object]) -> None:
        for _ in range(CALLS_PER_BLOCK):
            all_reduce(x)

    blocks = {name: lambda group=group: block(group) for name, group in groups.items()}
    blocks[f"{TORCHS}, compared"] = lambda: torchs_block(dist.all_reduce)
    blocks[TORCHS] = lambda: as_torch_has_it(torchs_block)
    rounds = alternate_in_rounds(world, blocks, BLOCKS)
    seconds = {
        "in a loop over numbers": seconds_per_call(world, x),
        "in one over tensors": seconds_per_element(world),
        "popped from a list": seconds_per_popped(world),
        "of a parameter's gradient": seconds_per_gradient(world),
        "of what is made of one": seconds_per_made_of_a_gradient(world),
        "past the groups": seconds_per_torch_call(x),
    }
    return rounds, seconds


def as_torch_has_it(block: Callable[[Callable[[torch.Tensor], object]], None]) -> None:
    """A block of dist.all_reduce without our wrappers, also that of the method it ends in."""
    seen = dist.ProcessGroup.allreduce
    dist.ProcessGroup.allreduce = lambda *arguments: seen.__wrapped__(*arguments)
    try:
        block(dist.all_reduce.__wrapped__)
    finally:
        dist.ProcessGroup.allreduce = seen


def seconds_per_call(world: labkit.Group, x: torch.Tensor) -> float:
    """An entry in the journal, declared and compared, as one blocking all_reduce makes it."""
    began = time.thread_time()
    for _ in range(10_000):
        record = world._post("all_reduce", x, WireBytes(0, 0), True, reduce="sum")
        world._journal.done(record)
    return (time.thread_time() - began) / 10_000


def seconds_per_element(world: labkit.Group) -> float:
    """The same in a loop over tensors, whose names are looked for."""
    tensors = {f"layer {n}": torch.ones(16) for n in range(100)}
    began = time.thread_time()
    for _ in range(100):
        for x in tensors.values():
            record = world._post("all_reduce", x, WireBytes(0, 0), True, reduce="sum")
            world._journal.done(record)
    return (time.thread_time() - began) / 10_000


def seconds_per_popped(world: labkit.Group) -> float:
    """The same of tensors that are taken out of a list."""
    began = time.thread_time()
    for _ in range(100):
        tensors = [torch.ones(16) for _ in range(100)]
        while tensors:
            x = tensors.pop()
            record = world._post("all_reduce", x, WireBytes(0, 0), True, reduce="sum")
            world._journal.done(record)
    return (time.thread_time() - began) / 10_000


def model_with_gradients() -> torch.nn.Module:
    """Forty parameters, in a model of two levels."""
    layers = [torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)) for _ in range(10)]
    model = torch.nn.Sequential(*layers)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    return model


def seconds_per_gradient(world: labkit.Group) -> float:
    """The same of gradients, with no loop over them: as a hook or an index has them."""
    model = model_with_gradients()
    began = time.thread_time()
    for turn in range(10_000):
        i = turn % 10
        x = model[i][0].weight.grad
        record = world._post("all_reduce", x, WireBytes(0, 0), True, reduce="sum")
        world._journal.done(record)
    return (time.thread_time() - began) / 10_000


def seconds_per_made_of_a_gradient(world: labkit.Group) -> float:
    """The same of a tensor that was made of a gradient; less what making it takes."""
    model = model_with_gradients()
    began = time.thread_time()
    for turn in range(10_000):
        i = turn % 10
        x = model[i][0].weight.grad / 2
        record = world._post("all_reduce", x, WireBytes(0, 0), True, reduce="sum")
        world._journal.done(record)
    entered_s = time.thread_time() - began
    began = time.thread_time()
    for turn in range(10_000):
        i = turn % 10
        x = model[i][0].weight.grad / 2
    return (entered_s - (time.thread_time() - began)) / 10_000


def seconds_per_torch_call(x: torch.Tensor) -> float:
    """What stands before torch's own all_reduce: its arguments bound, entered and compared."""
    arguments_of, calls = binder(dist.all_reduce.__wrapped__), of_this_process()
    assert calls is not None
    began = time.thread_time()
    for _ in range(10_000):
        _enter_collective("all_reduce", calls, arguments_of((x,), {}))
    return (time.thread_time() - began) / 10_000


def recorded(world: labkit.Group) -> float:
    """Seconds per small all_reduce of a whole run."""
    x = torch.ones(16)
    world.barrier()
    began = time.perf_counter()
    for _ in range(CALLS_RECORDED):
        world.all_reduce(x, out=x)
    return (time.perf_counter() - began) / CALLS_RECORDED


def flight_recorder_share(world_size: int) -> float:
    """What the Flight Recorder adds, as a share."""
    seconds: dict[str, list[float]] = {"0": [], KEPT: []}
    for _ in range(7):
        for size, values in seconds.items():
            os.environ["TORCH_FR_BUFFER_SIZE"] = size
            values.append(labkit.run(recorded, world_size, timeout=120).values[0])
    del os.environ["TORCH_FR_BUFFER_SIZE"]
    return statistics.median(seconds[KEPT]) / statistics.median(seconds["0"]) - 1


def main() -> None:
    """Print the shares per world size."""
    print(f"all_reduce of 16 float32 over gloo, medians. {machine()}")
    for world_size in (2, 4):
        rounds, call_s = labkit.run(compare, world_size, timeout=540).values[0]
        us = {
            name: statistics.median(times) / CALLS_PER_BLOCK * 1e6 for name, times in rounds.items()
        }
        print(
            f"  {world_size} ranks: {us['neither']:.0f} us with neither; the journal "
            f"{added(rounds['journal'], rounds['neither'])}, with the comparison "
            f"{added(rounds['both'], rounds['neither'])}; "
            f"Flight Recorder {flight_recorder_share(world_size):+.1%}\n"
            f"           {us[TORCHS]:.0f} us by torch's own dist.all_reduce, "
            f"compared {added(rounds[f'{TORCHS}, compared'], rounds[TORCHS])}\n"
            "           of a rank's own time, a call takes "
            + ", ".join(
                f"{seconds * 1e6:.1f} us {name} ({seconds * 1e6 / us['neither']:.1%})"
                for name, seconds in call_s.items()
            )
        )


if __name__ == "__main__":
    main()
