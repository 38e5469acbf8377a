"""Measure the cost of the journal and of the comparison with other ranks, on a small all_reduce.

The targets: the journal under 5%, with the comparison under 10%. Groups with both, with the journal
only and with neither alternate in blocks on the same ranks, and so do blocks of torch's own
dist.all_reduce. A difference is the median over rounds of such blocks, with its 95% interval.
torch's Flight Recorder cannot be switched within a process: runs with it and without alternate.
Run it with `python benchmarks/journal.py`.
"""

import os
import statistics
import time

import torch
import torch.distributed as dist
from measure import added, alternate_in_rounds, command_line, machine

import labkit
from labkit.comm.group import NoJournal
from labkit.comm.recorder import NUM_COLLECTIVES
from labkit.comm.traffic import Traffic

CALLS_PER_BLOCK = 20
BLOCKS = 300
CALLS_RECORDED = 400
TORCHS = "torch's"
KEPT = str(NUM_COLLECTIVES)


def compare(world: labkit.Group) -> tuple[dict[str, list[float]], float]:
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

    blocks = {name: lambda group=group: block(group) for name, group in groups.items()}
    blocks[TORCHS] = lambda: torchs_block(x)
    return alternate_in_rounds(world, blocks, BLOCKS), seconds_per_call(world, x)


def torchs_block(x: torch.Tensor) -> None:
    """The same by torch's own function, of which nothing is written down."""
    for _ in range(CALLS_PER_BLOCK):
        dist.all_reduce(x)


def seconds_per_call(world: labkit.Group, x: torch.Tensor) -> float:
    """An entry in the journal, declared and compared, as one blocking all_reduce makes it."""
    began = time.thread_time()
    for _ in range(10_000):
        record = world._post("all_reduce", x, Traffic(0, 0), True, reduce="sum")
        world._journal.done(record)
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
    """Return the Flight Recorder's overhead, as a share."""
    seconds: dict[str, list[float]] = {"0": [], KEPT: []}
    for _ in range(7):
        for size, values in seconds.items():
            os.environ["TORCH_FR_BUFFER_SIZE"] = size
            values.append(labkit.run(recorded, world_size, timeout=120).values[0])
    del os.environ["TORCH_FR_BUFFER_SIZE"]
    return statistics.median(seconds[KEPT]) / statistics.median(seconds["0"]) - 1


def main() -> None:
    """Print the shares per world size."""
    command_line(__doc__).parse_args()
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
            f"           {us[TORCHS]:.0f} us by torch's own dist.all_reduce; of a rank's own time, "
            f"a call takes {call_s * 1e6:.1f} us ({call_s * 1e6 / us['neither']:.1%})"
        )


if __name__ == "__main__":
    main()
