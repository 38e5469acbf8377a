"""What the journal costs: a small all_reduce with it and without. The target is under 5%.

The two alternate in blocks on the same ranks; the figure per call is the median over blocks. Run it
with `python benchmarks/journal.py`.
"""

import time

import torch
from measure import alternate, machine

import labkit
from labkit.comm.journal import NoJournal

CALLS_PER_BLOCK = 200


def compare(world: labkit.Group) -> tuple[dict[str, float], float]:
    """Seconds per block of all_reduces, and seconds per entry in the journal alone."""
    silent = labkit.Group(
        world._process_group, world.ranks, world.device, NoJournal(), "without a journal"
    )
    x = torch.ones(16)

    def block(group: labkit.Group) -> None:
        for _ in range(CALLS_PER_BLOCK):
            group.all_reduce(x, out=x)

    medians = alternate(
        world, {"with": lambda: block(world), "without": lambda: block(silent)}, repetitions=30
    )
    return medians, seconds_per_entry(world, x)


def seconds_per_entry(world: labkit.Group, x: torch.Tensor) -> float:
    """The journal's own calls, as one blocking operation makes them."""
    journal, began = world._journal, time.perf_counter()
    for number in range(10_000):
        record = journal.post(
            "all_reduce", 0, number, x, sent_bytes=0, received_bytes=0, blocking=True, reduce="sum"
        )
        journal.done(record)
    return (time.perf_counter() - began) / 10_000


def main() -> None:
    """Print the share per world size."""
    print(f"all_reduce of 16 float32 over gloo, medians. {machine()}")
    for world_size in (2, 4):
        medians, entry_s = labkit.run(compare, world_size, timeout=120).values[0]
        without_us = medians["without"] / CALLS_PER_BLOCK * 1e6
        share = medians["with"] / medians["without"] - 1
        print(
            f"  {world_size} ranks: {without_us:.0f} us without; with the journal {share:+.1%}; "
            f"an entry alone takes {entry_s * 1e6:.1f} us, {entry_s * 1e6 / without_us:.1%}"
        )


if __name__ == "__main__":
    main()
