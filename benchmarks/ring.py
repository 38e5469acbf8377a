"""The ring written with send and recv, against gloo's own all_reduce.

In place: both overwrite their argument. New: both leave it alone and return a new tensor (gloo on a
clone), which costs both the first touch of fresh memory. Run it with `python benchmarks/ring.py`.
"""

import torch
import torch.distributed as dist
from measure import alternate, command_line, machine

import labkit
from labkit.collectives import ring_all_reduce

KIB, MIB = 2**10, 2**20
SIZES = [KIB, 16 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB]


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


def main() -> None:
    """Print time and ratio per size and world size."""
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


if __name__ == "__main__":
    main()
