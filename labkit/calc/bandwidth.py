"""Bandwidths of a collective that was timed: algorithm bandwidth, and what each link reached.

Paper: nccl-tests, doc/PERFORMANCE.md.
"""

from labkit.calc.checked_numbers import check_above_zero, check_not_negative, check_ranks


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
    those of nccl-tests; for all_gather and reduce_scatter D is the whole.
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
