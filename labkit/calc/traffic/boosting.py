"""Traffic of gradient-boosted trees on n ranks, for one level of a tree.

F features with B bins, two sums of b bytes in each bin; M nodes of the level look for a split, and
U = M/2 of them are summed, since a sibling comes by subtraction. The root has U = M = 1.

    way              rows or columns    sent by each rank                           exchanged
    all_reduce       rows               2(n-1)/n 2 F B U b                          sums
    reduce_scatter   rows               (n-1)/n 2 F' B U b + (n-1) 48 M             sums, candidates
    voting           rows               (n-1) 16 k M + (n-1)/n 2 (2k) B M b         votes, some sums
                                          + (n-1) 48 M                              candidates
    columns          columns            (n-1) 48 M + (n-1)/n N/8                    candidates, bits

F' is F, padded to a multiple of n. A candidate has 6 numbers: gain, feature, bin, default
direction, G and H of the left child. A vote has a feature and its gain on the rank's own rows. In
voting each rank votes for its k best features of a node; 2k of them are summed over the ranks. The
next level may choose other features, so no sibling is subtracted. With columns sharded, the owner
of a split's feature sends one bit per row: left or right. Only there bytes grow with the rows N.

Papers: Ke et al., "LightGBM", NeurIPS 2017; Meng et al., "A communication-efficient parallel
algorithm for decision tree", arXiv:1611.01276 (voting); Chen and Guestrin, arXiv:1603.02754.
"""

from __future__ import annotations

from labkit import arguments
from labkit.calc.result import Result, total_bytes
from labkit.calc.traffic.collective import collective

_WAYS = ("all_reduce", "reduce_scatter", "voting", "columns")
_CANDIDATE_BYTES, _VOTE_BYTES = 48, 16


def histogram_bytes(
    num_features: int, num_bins: int, num_nodes: int = 1, *, itemsize: int = 8
) -> Result:
    """Return the bytes of the sums of nodes: two numbers for each feature and bin.

    histogram_bytes(1000, 256).to("MB") == 4.096
    """
    features = arguments.counted("num_features", num_features)
    bins = arguments.counted("num_bins", num_bins)
    nodes = arguments.counted("num_nodes", num_nodes)
    b = arguments.counted("itemsize", itemsize)
    return Result(
        2 * features * bins * nodes * b,
        "bytes",
        "histograms",
        "2 F B M b",
        f"2 * {features:,} * {bins:,} * {nodes:,} * {b} B",
    )


def boosting_level_bytes(
    way: str,
    world_size: int,
    num_features: int,
    num_bins: int,
    num_nodes: int,
    *,
    top_k: int | None = None,
    num_rows: int | None = None,
    subtraction: bool = True,
    itemsize: int = 8,
    rank: int | None = None,
) -> Result:
    """Return the bytes that one rank sends for a level of a tree, by part.

    way: "all_reduce", "reduce_scatter", "voting", which needs top_k, or "columns", which needs
    num_rows. num_nodes: those that look for a split. subtraction: whether only one of two siblings
    is summed. rank: its exact bytes; None: the mean.
    boosting_level_bytes("all_reduce", 4, 8, 64, 1) == 12_288
    ValueError for another way, or where one of these numbers is missing.
    """
    if way not in _WAYS:
        raise ValueError(f"way={way!r:.60}: give one of {', '.join(_WAYS)}")
    n = arguments.counted("world_size", world_size)
    nodes = arguments.counted("num_nodes", num_nodes)
    parts: dict[str, tuple[float, str]] = {}
    summed, features, sum_way = nodes, arguments.counted("num_features", num_features), way
    if way == "voting":
        k = arguments.counted("top_k", top_k, "give the features that each rank votes for")
        features, sum_way = min(2 * k, features), "reduce_scatter"
        votes = (n - 1) * _VOTE_BYTES * k * nodes
        parts["votes"] = (votes, f"({n} - 1) * {k} * {nodes} * {_VOTE_BYTES} B")
    elif subtraction:
        summed = -(-nodes // 2)
    if sum_way == "reduce_scatter":
        features = -(-features // n) * n
    if way == "columns":
        rows = arguments.counted("num_rows", num_rows, "give the number of rows, one bit each")
        parts["bits of rows"] = ((n - 1) / n * rows / 8, f"{n - 1}/{n} * {rows:,} / 8 B")
    else:
        whole = histogram_bytes(features, num_bins, summed, itemsize=itemsize)
        cost = collective(sum_way, "ring", n, whole, itemsize=itemsize, rank=rank)
        parts["sums"] = (cost.sent_bytes, f"{sum_way} of {whole.substitution}")
    if way != "all_reduce":
        sent = (n - 1) * _CANDIDATE_BYTES * nodes
        parts["candidates"] = (sent, f"({n} - 1) * {nodes} * {_CANDIDATE_BYTES} B")
    return total_bytes(
        f"sent by one rank for a level, {way}",
        parts,
        formula="(n-1)/n * 2 F B U b, twice in an all-reduce; (n-1) * 48 M; (n-1)/n * N/8",
        convention="rings and direct all-gathers; b = 8 B: int64 or float64",
        source="Ke et al. 2017 (LightGBM); Meng et al., arXiv:1611.01276",
    )
