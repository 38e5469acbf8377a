"""What the journal and the comparison with the other ranks cost, on a small all_reduce.

The targets: the journal under 5%, with the comparison under 10%. Groups with both, with the journal
only and with neither alternate in blocks on the same ranks; the figure per call is the median over
blocks. torch's Flight Recorder cannot be switched within a process: runs with it and without
alternate. Run it with `python benchmarks/journal.py`.
"""

import os
import statistics
import time

import torch
from measure import alternate, machine

import labkit
from labkit.comm.no_journal import NoJournal
from labkit.comm.wire_bytes import WireBytes

CALLS_PER_BLOCK = 200


def compare(world: labkit.Group) -> tuple[dict[str, float], float]:
    """Seconds per block of all_reduces, and seconds that both take in one call by themselves."""
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

    medians = alternate(
        world, {name: lambda group=group: block(group) for name, group in groups.items()}, 30
    )
    return medians, seconds_per_call(world, x)


def seconds_per_call(world: labkit.Group, x: torch.Tensor) -> float:
    """An entry in the journal, declared and compared, as one blocking all_reduce makes it."""
    began = time.perf_counter()
    for _ in range(10_000):
        record = world._post("all_reduce", x, WireBytes(0, 0), True, reduce="sum")
        world._journal.done(record)
    return (time.perf_counter() - began) / 10_000


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
        medians, call_s = labkit.run(compare, world_size, timeout=240).values[0]
        us = {name: seconds / CALLS_PER_BLOCK * 1e6 for name, seconds in medians.items()}
        print(
            f"  {world_size} ranks: {us['neither']:.0f} us with neither; the journal "
            f"{us['journal'] / us['neither'] - 1:+.1%}, with the comparison "
            f"{us['both'] / us['neither'] - 1:+.1%}; both take {call_s * 1e6:.1f} us of a rank, "
            f"{call_s * 1e6 / us['neither']:.1%}; "
            f"Flight Recorder {flight_recorder_share(world_size):+.1%}"
        )


if __name__ == "__main__":
    main()
