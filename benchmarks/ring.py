"""The ring written with send and recv, against gloo's own all_reduce; and an all-gather in log2 n.

In place: both overwrite their argument. New: both leave it alone and return a new tensor (gloo on a
clone), which costs both the first touch of fresh memory.

Then the ring's all-gather beside Bruck's on throttled links, where no rank waits for a core, with
what calc predicts. Run it with `python benchmarks/ring.py`.
"""

from functools import partial

import torch
import torch.distributed as dist
from measure import alternate, command_line, machine

import labkit
from labkit import calc
from labkit.collectives import bruck_all_gather, ring_all_gather, ring_all_reduce

KIB, MIB = 2**10, 2**20
SIZES = [KIB, 16 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB]
GATHERED = [256, 4 * KIB, 64 * KIB, MIB]
BANDWIDTH, LATENCY_S = 4e6, 20e-3
THROTTLED = labkit.Topology(hosts=1, ranks_per_host=8, fast=labkit.Link(BANDWIDTH, LATENCY_S))


def compare(world: labkit.Group, nbytes: int) -> dict[str, float]:
    """Median seconds of the four candidates at one size."""
    x = torch.randn(nbytes // 4)
    mine, gloos = x.clone(), x.clone()
    return alternate(
        world,
        {
            "gloo, in place": lambda: dist.group.WORLD.allreduce(gloos).wait(),
            "ring, in place": lambda: ring_all_reduce(mine, world, out=mine),
            "gloo, new": lambda: dist.group.WORLD.allreduce(x.clone()).wait(),
            "ring, new": lambda: ring_all_reduce(x, world),
        },
        repetitions=15 if nbytes >= MIB else 40,
    )


def gather(world: labkit.Group) -> list[dict[str, float]]:
    """Median seconds of both all-gathers, for each size."""
    by_size = []
    for nbytes in GATHERED:
        numel = nbytes // 4
        whole = torch.zeros(numel)
        chunk = whole.tensor_split(world.size)[world.rank]
        candidates = {
            "ring": partial(ring_all_gather, chunk, numel, world, out=whole),
            "bruck": partial(bruck_all_gather, chunk, numel, world, out=whole),
        }
        by_size.append(alternate(world, candidates, repetitions=7))
    return by_size


def main() -> None:
    """Print time and ratio per size and world size, then the all-gathers."""
    command_line(__doc__).parse_args()
    print(f"Medians, float32. {machine()}")
    print("ranks       size    gloo, in place   ring/gloo         gloo, new   ring/gloo")
    for world_size in (2, 4):
        for nbytes in SIZES:
            seconds = labkit.run(compare, world_size, (nbytes,), timeout=300).values[0]
            size = f"{nbytes // KIB} KiB" if nbytes < MIB else f"{nbytes // MIB} MiB"
            columns = [f"{world_size:>5} {size:>10}"]
            for kind in ("in place", "new"):
                gloo, ring = seconds[f"gloo, {kind}"], seconds[f"ring, {kind}"]
                columns.append(f"{gloo * 1e3:>12.3f} ms {ring / gloo:>11.2f}")
            print("   ".join(columns))
    n = THROTTLED.ranks_per_host
    print(f"\nall-gather on {n} throttled ranks, measured (predicted)")
    by_size = labkit.run(gather, n, topology=THROTTLED, timeout=300).values[0]
    for nbytes, seconds in zip(GATHERED, by_size):
        columns = [f"{nbytes / KIB:>8g} KiB"]
        for name, found in seconds.items():
            cost = calc.collective("all_gather", name, n, nbytes)
            predicted = cost.seconds(LATENCY_S, 1 / BANDWIDTH)
            columns.append(f"{name} {found * 1e3:>7.1f} ms ({predicted * 1e3:.1f} ms)")
        print("   ".join(columns))


if __name__ == "__main__":
    main()
