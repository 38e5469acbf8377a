"""Seconds of a collective by the alpha-beta model: a message of m bytes takes alpha + m * beta.

alpha is the latency of one message in seconds, beta the time of one byte in seconds: 1 / (bytes
per second, one direction) of the link that a rank sends on. Every rank sends and receives at once;
links are not shared; arithmetic is free. n is the number of ranks, `nbytes` the whole tensor D.

    all-reduce (ring)          2(n-1) (alpha + D/n beta)
    reduce-scatter (ring)       (n-1) (alpha + D/n beta)
    all-gather (ring)           (n-1) (alpha + D/n beta)
    all-to-all (pairwise)       (n-1) (alpha + D/n beta)
    broadcast (binomial tree)   ceil(log2 n) (alpha + D beta)
    gather, scatter (direct)    (n-1) (alpha + shard beta)         the root's link carries it all

Paper: Hockney, "The communication challenge for MPP", Parallel Computing 20(3), 1994.
"""

from labkit.calc.traffic.checks import (
    check_above_zero,
    check_link,
    check_not_negative,
    check_ranks,
)


def all_reduce_seconds(nbytes: float, n: int, alpha: float, beta: float) -> float:
    """Seconds of a RING all-reduce of `nbytes`: 2(n-1) steps of one nth each.

    all_reduce_seconds(1e9, n=8, alpha=5e-6, beta=1/360e9)    4.93e-3; a hundred of 1e7: 11.9e-3.
    A tree pays fewer latencies and more bytes: this formula is not for it.
    """
    return 2 * reduce_scatter_seconds(nbytes, n, alpha, beta)


def reduce_scatter_seconds(nbytes: float, n: int, alpha: float, beta: float) -> float:
    """Seconds of a ring reduce-scatter of `nbytes` per rank: n-1 steps of one nth each."""
    _check(nbytes, n, alpha, beta)
    return (n - 1) * (alpha + nbytes / n * beta)


def all_gather_seconds(nbytes: float, n: int, alpha: float, beta: float) -> float:
    """Seconds of a ring all-gather that ends with `nbytes` on every rank: n-1 steps of one nth."""
    return reduce_scatter_seconds(nbytes, n, alpha, beta)


def all_to_all_seconds(nbytes: float, n: int, alpha: float, beta: float) -> float:
    """Seconds of a pairwise all-to-all of `nbytes` per rank: in step s, rank r sends to r + s."""
    return reduce_scatter_seconds(nbytes, n, alpha, beta)


def broadcast_seconds(nbytes: float, n: int, alpha: float, beta: float) -> float:
    """Seconds of a binomial-tree broadcast: ceil(log2 n) steps, each of the whole tensor."""
    n = _check(nbytes, n, alpha, beta)
    return (n - 1).bit_length() * (alpha + nbytes * beta)


def gather_seconds(shard_bytes: float, n: int, alpha: float, beta: float) -> float:
    """Seconds until the root has every other rank's shard, one by one over its one link."""
    check_not_negative(shard_bytes, "shard_bytes")
    _check(shard_bytes, n, alpha, beta)
    return (n - 1) * (alpha + shard_bytes * beta)


def scatter_seconds(shard_bytes: float, n: int, alpha: float, beta: float) -> float:
    """Seconds until the root has sent every other rank its shard: a gather, run backwards."""
    return gather_seconds(shard_bytes, n, alpha, beta)


def algbw(nbytes: float, seconds: float) -> float:
    """Algorithm bandwidth in bytes per second: the caller's bytes D over the time, S = D / t.

    It falls as ranks are added even when every link is busy, so it says nothing about the links.
    """
    check_not_negative(nbytes, "nbytes")
    check_above_zero(seconds, "seconds", "a bandwidth needs a finite time above 0")
    return nbytes / seconds


def busbw(nbytes: float, seconds: float, n: int, kind: str = "all_reduce") -> float:
    """Bus bandwidth in bytes per second: algbw times the share of D that each link must carry.

    The factor is 2(n-1)/n for all_reduce, (n-1)/n for reduce_scatter, all_gather and all_to_all,
    and 1 for broadcast, so the result compares with the link's speed at any n. The factors are
    those of nccl-tests (doc/PERFORMANCE.md); for all_gather and reduce_scatter D is the whole.
    """
    n = check_ranks(n, "n")
    ring = (n - 1) / n
    factors = {
        "all_reduce": 2 * ring,
        "reduce_scatter": ring,
        "all_gather": ring,
        "all_to_all": ring,
        "broadcast": 1.0,
    }
    if not isinstance(kind, str) or kind not in factors:
        raise ValueError(f"no bus factor for {kind!r}; there is one for {', '.join(factors)}")
    return algbw(nbytes, seconds) * factors[kind]


def _check(nbytes: float, n: int, alpha: float, beta: float) -> int:
    """n as an int."""
    check_not_negative(nbytes, "nbytes")
    check_link(alpha, beta)
    return check_ranks(n, "n")
