"""Bandwidths of a collective that was timed: algorithm bandwidth, and what each link reached.

D bytes over n ranks in t seconds. The factors are those of nccl-tests; for all_gather and
reduce_scatter D is the whole tensor:

    algbw    D / t
    busbw    D / t * 2(n-1)/n    all_reduce
                     (n-1)/n     reduce_scatter, all_gather, all_to_all
                     1           broadcast

Source: nccl-tests, doc/PERFORMANCE.md.
"""

from labkit.calc.checked_numbers import check_above_zero, check_not_negative, check_ranks
from labkit.calc.result import Result
from labkit.calc.units import bytes_text, seconds_text

_SOURCE = "nccl-tests, doc/PERFORMANCE.md"


def algbw(nbytes: float, seconds: float) -> Result:
    """Algorithm bandwidth, in bytes per second: the caller's bytes D over the time.

    It falls as ranks are added even when every link is busy, so it says nothing about the links.
    """
    check_not_negative(nbytes, "nbytes")
    check_above_zero(seconds, "seconds", "a bandwidth needs a finite time above 0")
    how = f"{bytes_text(nbytes)} / {seconds_text(seconds)}"
    return Result(nbytes / seconds, "bytes/s", "algbw", "D / t", how, source=_SOURCE)


def busbw(nbytes: float, seconds: float, n: int, kind: str = "all_reduce") -> Result:
    """Bus bandwidth, in bytes per second: algbw times the share of D that each link must carry.

    It compares with the link's speed at any n.
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
    alone, factor = algbw(nbytes, seconds), factors[kind]
    how = f"{factor:.4g} * {alone}"
    return Result(alone.value * factor, "bytes/s", "busbw", "factor * D / t", how, source=_SOURCE)
