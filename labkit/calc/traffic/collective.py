"""The cost of any collective by any algorithm, from one function.

    all_reduce        ring, tree, double_tree, halving_doubling, hierarchical
    reduce_scatter    ring              broadcast         binomial, tree, ring
    all_gather        ring, bruck       reduce            tree
    all_to_all        pairwise          gather, scatter   direct

rings.py has ring, bruck, halving-doubling, hierarchical and all-to-all, trees.py has the others.
cost.py has the part that all share, and cuts tensors into blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from labkit import arguments
from labkit.calc.result import Result, number_of
from labkit.calc.traffic.cost import Collective
from labkit.calc.traffic.rings import (
    BruckAllGather,
    HalvingDoublingAllReduce,
    HierarchicalAllReduce,
    PairwiseAllToAll,
    RingAllGather,
    RingAllReduce,
    RingReduceScatter,
)
from labkit.calc.traffic.trees import (
    BinomialBroadcast,
    DirectGather,
    DirectScatter,
    DoubleTreeAllReduce,
    RingBroadcast,
    TreeAllReduce,
    TreeBroadcast,
    TreeReduce,
)

COLLECTIVES: tuple[type[Collective], ...] = (
    *(RingAllReduce, TreeAllReduce, DoubleTreeAllReduce, HalvingDoublingAllReduce),
    *(HierarchicalAllReduce, RingReduceScatter, RingAllGather, BruckAllGather, PairwiseAllToAll),
    *(BinomialBroadcast, TreeBroadcast, RingBroadcast, TreeReduce, DirectGather, DirectScatter),
)


def collective(
    operation: str,
    algorithm: str,
    world_size: int,
    nbytes: float | Result = 1,
    *,
    itemsize: int = 4,
    rank: int | None = None,
    root: int | None = None,
    block_bytes: float | None = None,
    ranks_per_host: int | None = None,
    rings: int | None = None,
    splits: Sequence[Sequence[int]] | None = None,
) -> Collective:
    """Return the cost: `.sent_bytes`, `.messages`, `.steps` and `.seconds(alpha, beta)`.

    nbytes: the whole tensor, which scatter, reduce-scatter and all-to-all start with, and gather
    and all-gather end with. Without it, bytes are multiples of the tensor.
    rank: its exact bytes and messages, for elements of `itemsize` bytes; None: the mean.

    Some algorithms take more arguments:
    root            of a broadcast, reduce, gather or scatter; 0 by default
    block_bytes     trees and chains send the tensor in blocks of this size; in a hierarchical
                    all-reduce one block travels within hosts while another travels between them
    ranks_per_host  for ring, hierarchical and pairwise: `.tier_bytes` tells bytes within hosts from
                    bytes between them, and `seconds` takes pairs, (fast, slow)
    rings           share the tensor, each leaving a host by another rank and adapter; 1 by default
    splits          of an all-to-all: splits[r][s] elements from rank r to rank s; without nbytes

    collective("all_reduce", "ring", 8, 1e9).sent_bytes == 1.75e9
    collective("all_reduce", "ring", 4, 40, rank=0).sent_bytes == 56, of ten float32

    ValueError for an unknown collective or algorithm, for impossible sizes and ranks, and, with a
    rank, for a tensor that is not a whole number of elements. TypeError for anything but a number.
    """
    kind, n = _kind(operation, algorithm), arguments.counted("world_size", world_size)
    size = arguments.counted("itemsize", itemsize)
    options = {"root": root, "block_bytes": block_bytes, "ranks_per_host": ranks_per_host}
    checked = _checked_options(kind, n, {**options, "rings": rings, "splits": splits})
    numel = None if splits is None else _mean_row(splits, n)
    nbytes = _checked_nbytes(nbytes, size, rank) if numel is None else size * numel
    member = None if rank is None else arguments.rank("rank", rank, n)
    return kind(world_size=n, nbytes=nbytes, itemsize=size, rank=member, **checked)


def _kind(operation: str, algorithm: str) -> type[Collective]:
    for kind in COLLECTIVES:
        if (kind.operation, kind.algorithm) == (operation, algorithm):
            return kind
    algorithms = [kind.algorithm for kind in COLLECTIVES if kind.operation == operation]
    if algorithms:
        raise ValueError(f"algorithm={algorithm!r:.60}: {operation} has {', '.join(algorithms)}")
    operations = dict.fromkeys(kind.operation for kind in COLLECTIVES)
    raise ValueError(f"operation={operation!r:.60}: give one of {', '.join(operations)}")


def _checked_options(kind: type[Collective], n: int, given: dict[str, Any]) -> dict[str, Any]:
    """Check the options of n ranks, None being the default, and return all of them."""
    for name, value in given.items():
        if value is not None and name not in kind.options:
            raise ValueError(
                f"{name}={value!r:.60}: {kind.operation} by {kind.algorithm} takes "
                f"{', '.join(sorted(kind.options)) or 'no such thing'}"
            )
    root, block_bytes, per_host = given["root"], given["block_bytes"], given["ranks_per_host"]
    if per_host is not None or kind is HierarchicalAllReduce:
        per_host = _per_host(per_host, n)
    return {
        "root": 0 if root is None else arguments.rank("root", root, n),
        "block_bytes": None
        if block_bytes is None
        else arguments.counted("block_bytes", block_bytes),
        "ranks_per_host": per_host,
        "rings": 1 if given["rings"] is None else _rings(given["rings"], per_host),
        "splits": given["splits"],
    }


def _checked_nbytes(given: float | Result, itemsize: int, rank: int | None) -> float:
    number = number_of(given, "nbytes", "bytes")
    nbytes = number if isinstance(given, Result) else given
    arguments.number("nbytes", nbytes, "0 or more", least=0)
    if rank is not None and nbytes % itemsize:
        raise ValueError(
            f"nbytes={nbytes!r:.60}: elements come whole, of itemsize={itemsize} bytes; give a "
            f"multiple of {itemsize}, or another itemsize"
        )
    return nbytes


def _per_host(ranks_per_host: Any, n: int) -> int:
    if n % arguments.counted("ranks_per_host", ranks_per_host):
        raise ValueError(
            f"ranks_per_host={ranks_per_host!r:.60} does not divide {n} ranks into equal hosts; "
            f"give {arguments.divisors_text(n)}"
        )
    return int(ranks_per_host)


def _rings(rings: Any, per_host: int | None) -> int:
    if per_host is None:
        raise ValueError(
            f"rings={rings!r:.60}: rings leave a host by different ranks; give ranks_per_host"
        )
    if arguments.counted("rings", rings) > per_host:
        raise ValueError(
            f"rings={rings!r:.60}: each leaves a host by another of its {per_host} ranks; give "
            f"1 to {per_host}"
        )
    return int(rings)


def _mean_row(splits: Sequence[Sequence[int]], n: int) -> float:
    """Check the splits, and return the mean number of elements of a rank."""
    _check_list(splits, "splits", n)
    for rank, row in enumerate(splits):
        _check_list(row, f"splits[{rank}]", n)
        for numel in row:
            arguments.counted("numel", numel, "0 or more", least=0)
    return sum(map(sum, splits)) / n


def _check_list(given: object, name: str, n: int) -> None:
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise TypeError(f"{name}={given!r:.60}: give a list with a number for each rank")
    if len(given) != n:
        raise ValueError(f"{name}={given!r:.60}: give one for each of {n} ranks")
