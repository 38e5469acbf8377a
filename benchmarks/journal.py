"""What the journal and the comparison with the other ranks cost, on a small all_reduce.

The targets: the journal under 5%, with the comparison under 10%. Groups with both, with the journal
only and with neither alternate in blocks on the same ranks; the figure per call is the median over
blocks. torch's Flight Recorder cannot be switched within a process: runs with it and without
alternate. So do blocks of torch's own dist.all_reduce, compared (comm/calls) and as torch has it.
The calls stand in loops, over numbers and over tensors, which takes a look at their variables.
Run it with `python benchmarks/journal.py`.
"""

import inspect
import os
import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from measure import alternate, machine

import labkit
from labkit.comm.calls.compared import of_this_process
from labkit.comm.calls.torch_functions import _enter_collective
from labkit.comm.no_journal import NoJournal
from labkit.comm.wire_bytes import WireBytes

CALLS_PER_BLOCK = 200
TORCHS = "torch's"


def compare(world: labkit.Group) -> tuple[dict[str, float], dict[str, float]]:
    """Seconds per block of all_reduces, and of a rank's CPU that a call by itself takes."""
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
    blocks[TORCHS] = lambda: torchs_block(dist.all_reduce.__wrapped__)
    medians = alternate(world, blocks, 30)
    seconds = {
        "in a loop over numbers": seconds_per_call(world, x),
        "in one over tensors": seconds_per_element(world),
        "past the groups": seconds_per_torch_call(x),
    }
    return medians, seconds


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


def seconds_per_torch_call(x: torch.Tensor) -> float:
    """What stands before torch's own all_reduce: its arguments bound, entered and compared."""
    signature, calls = inspect.signature(dist.all_reduce), of_this_process()
    assert calls is not None
    began = time.thread_time()
    for _ in range(10_000):
        bound = signature.bind(x)
        bound.apply_defaults()
        _enter_collective("all_reduce", calls, bound.arguments)
    return (time.thread_time() - began) / 10_000


def recorded(world: labkit.Group) -> float:
    """Seconds per small all_reduce of a whole run."""
    x = torch.ones(16)
    world.barrier()
    began = time.perf_counter()
    for _ in range(2 * CALLS_PER_BLOCK):
        world.all_reduce(x, out=x)
    return (time.perf_counter() - began) / (2 * CALLS_PER_BLOCK)


def flight_recorder_share(world_size: int) -> float:
    """What the Flight Recorder adds, as a share."""
    seconds: dict[str, list[float]] = {"0": [], "1024": []}
    for _ in range(7):
        for size, values in seconds.items():
            os.environ["TORCH_FR_BUFFER_SIZE"] = size
            values.append(labkit.run(recorded, world_size, timeout=120).values[0])
    del os.environ["TORCH_FR_BUFFER_SIZE"]
    return statistics.median(seconds["1024"]) / statistics.median(seconds["0"]) - 1


def main() -> None:
    """Print the shares per world size."""
    print(f"all_reduce of 16 float32 over gloo, medians. {machine()}")
    for world_size in (2, 4):
        medians, call_s = labkit.run(compare, world_size, timeout=540).values[0]
        us = {name: seconds / CALLS_PER_BLOCK * 1e6 for name, seconds in medians.items()}
        print(
            f"  {world_size} ranks: {us['neither']:.0f} us with neither; the journal "
            f"{us['journal'] / us['neither'] - 1:+.1%}, with the comparison "
            f"{us['both'] / us['neither'] - 1:+.1%}; "
            f"Flight Recorder {flight_recorder_share(world_size):+.1%}\n"
            f"           {us[TORCHS]:.0f} us by torch's own dist.all_reduce, "
            f"compared {us[f'{TORCHS}, compared'] / us[TORCHS] - 1:+.1%}\n"
            "           of a rank's own time, a call takes "
            + ", ".join(
                f"{seconds * 1e6:.1f} us {name} ({seconds * 1e6 / us['neither']:.1%})"
                for name, seconds in call_s.items()
            )
        )


if __name__ == "__main__":
    main()
