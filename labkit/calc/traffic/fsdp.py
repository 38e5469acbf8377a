"""Bytes of fully sharded data parallelism by its switches, of 8-bit gathers, and buckets.

Per microbatch, in multiples of the parameters, for n ranks:

    reshard_after_forward     forward     kept until backward     backward     gradients
    True                      (n-1)/n     1/n                     (n-1)/n      (n-1)/n
    m, an integer             (n-1)/n     1/m                     (m-1)/m      (n-1)/n
    False                     (n-1)/n     1                       0            (n-1)/n

An integer shards a unit over m ranks after forward, and the gather of backward stays among them:
m ranks of one host, for example. set_requires_gradient_sync(False) in all microbatches but the last
reduces gradients once. They are whole until then.
"""

from __future__ import annotations

from collections.abc import Sequence

from labkit import arguments
from labkit.calc.result import Result, number_of, total_bytes
from labkit.calc.units import number_text

_WIRES = {"float32": (4, 0), "bfloat16": (2, 0), "float8": (1, 4), "int8": (1, 4)}
"""Bytes of a number, and of the scale of a shard."""


def fsdp_traffic_bytes(
    num_params: float | Result,
    world_size: int,
    reshard_after_forward: bool | int = True,
    *,
    microbatches: int = 1,
    reduce_once: bool = False,
    itemsize: int = 2,
    gradient_itemsize: int | None = None,
) -> Result:
    """Return the bytes that one rank sends in an optimizer step of FSDP2, by collective.

    reshard_after_forward: as fully_shard's; an integer divides world_size. reduce_once: gradients
    travel in the last microbatch only. itemsize: bytes of a gathered number. gradient_itemsize:
    bytes of a reduced gradient; None: itemsize.
    """
    n = arguments.counted("world_size", world_size)
    k = arguments.counted("microbatches", microbatches)
    N = number_of(num_params, "num_params", "parameters")
    if reshard_after_forward is True:
        m = n
    elif reshard_after_forward is False:
        m = 1
    else:
        m = arguments.counted("reshard_after_forward", reshard_after_forward)
        if n % m:
            raise ValueError(
                f"reshard_after_forward={m} does not divide {n} ranks; "
                f"give True, False or one of {arguments.divisors(n)}"
            )
    size = gradient_itemsize or itemsize
    rounds = {
        "all-gather in forward": (k, n, itemsize),
        "all-gather in backward": (k, m, itemsize),
        "reduce-scatter": (1 if reduce_once else k, n, size),
    }
    parts = {
        name: (
            times * (ranks - 1) / ranks * N * each,
            f"{times} * {ranks - 1}/{ranks} * {number_text(N)} * {each} B",
        )
        for name, (times, ranks, each) in rounds.items()
    }
    return total_bytes(
        "sent by one rank of FSDP2 in a step",
        parts,
        formula="times * (ranks - 1)/ranks * N * bytes, by collective",
        convention=f"rings; {k} microbatch{'es' * (k > 1)} to a step; nothing padded",
        source="torch.distributed.fsdp.fully_shard",
    )


def gather_bytes(numel: int, world_size: int, wire: str = "bfloat16") -> Result:
    """Return the bytes that one rank sends in the all-gather of one parameter.

    wire: "float32", "bfloat16", or "float8" and "int8": codes of a byte, and a float32 scale for
    each rank's shard. Shards are padded to equal lengths.
    """
    n = arguments.counted("world_size", world_size)
    own = -(-arguments.counted("numel", numel) // n)
    if wire not in _WIRES:
        raise ValueError(f"wire={wire!r:.60}: give one of {', '.join(_WIRES)}")
    itemsize, scale = _WIRES[wire]
    return total_bytes(
        f"sent by one rank to gather {wire}",
        {
            "numbers": ((n - 1) * own * itemsize, f"{n - 1} * {own} * {itemsize} B"),
            "scales": ((n - 1) * scale, f"{n - 1} * {scale} B"),
        },
        formula="(n-1) * (ceil(numel/n) * bytes + scale)",
        convention="a ring",
    )


def bucket_sizes(nbytes: Sequence[int], bucket_bytes: int) -> list[int]:
    """Return how many tensors each bucket has: filled in order, while they fit.

    nbytes: of each whole tensor. A tensor larger than a bucket is one by itself.
    """
    bucket_bytes = arguments.counted("bucket_bytes", bucket_bytes)
    counts: list[int] = []
    filled = bucket_bytes + 1
    for each in nbytes:
        if filled + each > bucket_bytes:
            counts.append(0)
            filled = 0
        counts[-1] += 1
        filled += each
    return counts
