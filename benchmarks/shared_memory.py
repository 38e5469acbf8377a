"""all_reduce through shared memory, against gloo's own all_reduce over sockets.

In place: both overwrite their argument. New: both leave it alone and return a new tensor (gloo on a
clone), which costs both the first touch of fresh memory. Every rank computes with one thread. Run
it with `python benchmarks/shared_memory.py`.
"""

import torch
import torch.distributed as dist
from measure import alternate, command_line, machine

import labkit
from labkit.comm import shared_memory_all_reduce

KIB, MIB = 2**10, 2**20
SIZES = [KIB, 64 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB]


def compare(world: labkit.Group, nbytes: int) -> dict[str, float]:
    """Median seconds of the four candidates at one size."""
    assert torch.get_num_threads() == 1
    x = torch.randn(nbytes // 4)
    mine, gloos = x.clone(), x.clone()
    return alternate(
        world,
        {
            "gloo, in place": lambda: dist.group.WORLD.allreduce(gloos).wait(),
            "shared, in place": lambda: shared_memory_all_reduce(mine, world, out=mine),
            "gloo, new": lambda: dist.group.WORLD.allreduce(x.clone()).wait(),
            "shared, new": lambda: shared_memory_all_reduce(x, world),
        },
        repetitions=15 if nbytes >= MIB else 40,
    )


def main() -> None:
    """Print time and ratio per size and world size."""
    command_line(__doc__).parse_args()
    print(f"Medians, float32. {machine()}")
    print("ranks       size    gloo, in place   shared/gloo         gloo, new   shared/gloo")
    for world_size in (2, 4, 8):
        for nbytes in SIZES:
            seconds = labkit.run(compare, world_size, (nbytes,), timeout=300).values[0]
            size = f"{nbytes // KIB} KiB" if nbytes < MIB else f"{nbytes // MIB} MiB"
            columns = [f"{world_size:>5} {size:>10}"]
            for kind in ("in place", "new"):
                gloo, shared = seconds[f"gloo, {kind}"], seconds[f"shared, {kind}"]
                columns.append(f"{gloo * 1e3:>12.3f} ms {shared / gloo:>13.2f}")
            print("   ".join(columns), flush=True)


if __name__ == "__main__":
    main()
