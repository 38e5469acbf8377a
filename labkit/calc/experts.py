"""Cost of a layer of experts: capacity of an expert's buffer, and traffic of sharded experts.

    capacity = ceil(factor k N / E)       dropped = sum over experts of max(load - capacity, 0)

N tokens of a group, k choices of each, E experts. A choice that does not fit is dropped, even if
other experts have free places.

Experts sharded over n ranks: routed[r][e] is how many choices of rank r's tokens expert e computes;
o of the E experts are this rank's; a row is D numbers of b bytes. M rows of this rank go to experts
elsewhere, and R rows of others come to its own:

    per rank       sent, bytes         what
    forward        8 (E - o)           counts, so that the others know how many rows will come
                   M D b               dispatch: rows to their experts
                   R D b               combine: answers to where the rows came from
    backward       M D b               combine: gradients of the answers
                   R D b               dispatch: gradients of the rows

Balanced, and for n dividing E, M = R = (n-1)/n of the N k choices of a rank: a row travels four
times for each choice, whatever n. If every expert has a buffer of C = factor k N/E rows instead,
which always travels whole, M = R = (n-1)/n of E C: `factor` times as much, and no counts.

Papers: GShard, arXiv:2006.16668, sections 2.2 and 3.2; Switch, arXiv:2101.03961, section 2.2;
MegaBlocks, arXiv:2211.15841, section 3.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction

from labkit import arguments
from labkit.calc.result import Result, total_bytes
from labkit.calc.traffic.cost import chunk_numels

_CAPACITY_SOURCE = "GShard, arXiv:2006.16668, section 2.2"


def expert_capacity(num_tokens: float, num_experts: int, top_k: int, factor: float) -> Result:
    """Return how many choices an expert takes from a group of `num_tokens`.

    expert_capacity(1000, 16, 2, 1.25) == 157. ValueError for counts that are not whole and above 0,
    and for a factor that is not above 0.
    """
    arguments.number("num_tokens", num_tokens, "0 or more", least=0)
    experts, k = arguments.counted("num_experts", num_experts), arguments.counted("top_k", top_k)
    arguments.number(
        "factor", factor, "a buffer of no rows takes no token; give one such as 1.25", above=0
    )
    # As the decimal that was typed: 1.1 * 10 is 11 rows, and in floats a little more.
    exact = Fraction(str(factor)) * k * Fraction(num_tokens) / experts
    return Result(
        math.ceil(exact),
        "",
        "capacity of an expert",
        "ceil(factor k N / E)",
        f"ceil({factor:g} * {k} * {num_tokens:,} / {experts})",
        source=_CAPACITY_SOURCE,
    )


def dropped_choices(loads: Sequence[int], capacity: float | Result) -> Result:
    """Return how many choices do not fit. loads: choices of each expert."""
    room = float(capacity)
    arguments.number("capacity", room, "0 or more", least=0)
    for load in loads:
        arguments.number("loads", load, "0 or more", least=0)
    over = [load - room for load in loads if load > room]
    return Result(
        sum(over),
        "",
        "dropped choices",
        "sum of max(load - capacity, 0)",
        " + ".join(f"{each:g}" for each in over) or "0",
        source=_CAPACITY_SOURCE,
    )


_COUNT_BYTES = 8
_TRAFFIC_SOURCE = "GShard, arXiv:2006.16668, section 3.2"


def expert_rows(routed: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return rows[r][s]: rank r's rows for the experts of rank s, dealt out in order and evenly.

    expert_rows([[4, 1, 0], [2, 0, 3]]) == [[5, 0], [2, 3]], of ranks with 2 experts and 1.
    TypeError or ValueError unless every rank has a row of whole numbers.
    """
    num_experts = _check_routed(routed)
    own = chunk_numels(num_experts, len(routed))
    starts = [sum(own[:rank]) for rank in range(len(routed) + 1)]
    return [[int(sum(row[begin:end])) for begin, end in zip(starts, starts[1:])] for row in routed]


def expert_parallel_traffic_bytes(
    routed: Sequence[Sequence[int]], rank: int, *, hidden: int, itemsize: int = 2
) -> Result:
    """Return the exact bytes that `rank` sends for one layer, by part.

    routed: a row for each rank, a number for each expert; choices that were dropped do not count.
    """
    rows = expert_rows(routed)
    n, rank = len(rows), arguments.rank("rank", rank, len(rows))
    row_bytes = arguments.counted("hidden", hidden) * arguments.counted("itemsize", itemsize)
    away = sum(rows[rank]) - rows[rank][rank]
    here = sum(row[rank] for row in rows) - rows[rank][rank]
    num_experts = len(routed[0])
    counts = num_experts - chunk_numels(num_experts, n)[rank]
    parts = {
        "forward, counts": (counts, _COUNT_BYTES),
        "forward, dispatch": (away, row_bytes),
        "forward, combine": (here, row_bytes),
        "backward, combine": (away, row_bytes),
        "backward, dispatch": (here, row_bytes),
    }
    return _sum_of(f"sent by rank {rank} for a layer of experts", parts, "rows of this routing")


def balanced_expert_traffic_bytes(
    num_tokens: float,
    ep: int,
    *,
    num_experts: int,
    top_k: int,
    hidden: int,
    itemsize: int = 2,
) -> Result:
    """Return the bytes that a rank sends for one layer if all experts are chosen equally often.

    num_tokens: of one rank, the same on all. The mean over random routing is the same, but need not
    be whole. ValueError if ep does not divide num_experts: ranks with more experts would send more.
    """
    n = _check_ep(ep, num_experts)
    _check_choices(num_tokens, num_experts, top_k)
    row_bytes = arguments.counted("hidden", hidden) * arguments.counted("itemsize", itemsize)
    rows = num_tokens * top_k * (n - 1) / n
    counts = {"forward, counts": (float(num_experts - num_experts // n), _COUNT_BYTES)}
    parts = counts | dict.fromkeys(_WAYS, (rows, row_bytes))
    return _sum_of("sent by one rank for a layer of experts", parts, "balanced routing")


def padded_expert_traffic_bytes(
    num_tokens: float,
    ep: int,
    *,
    num_experts: int,
    top_k: int,
    hidden: int,
    capacity_factor: float = 1.25,
    itemsize: int = 2,
) -> Result:
    """Return the bytes that a rank sends for one layer if each expert's buffer travels whole.

    num_tokens: of one rank. A buffer is ceil(factor * k * N / E) rows, whatever the router chooses,
    so no counts have to be sent.
    """
    n = _check_ep(ep, num_experts)
    _check_choices(num_tokens, num_experts, top_k)
    reason = "a buffer of no rows takes no token; give a factor such as 1.25"
    arguments.number("capacity_factor", capacity_factor, reason, above=0)
    # As the decimal that was typed: 1.1 * 10 is 11 rows, and in floats a little more.
    exact = Fraction(str(capacity_factor)) * top_k * Fraction(num_tokens) / num_experts
    row_bytes = arguments.counted("hidden", hidden) * arguments.counted("itemsize", itemsize)
    rows = (num_experts - num_experts // n) * math.ceil(exact)
    parts = dict.fromkeys(_WAYS, (rows, row_bytes))
    how = f"buffers of {math.ceil(exact)} rows for each expert and source rank"
    return _sum_of("sent by one rank for a layer of padded experts", parts, how)


_WAYS = ("forward, dispatch", "forward, combine", "backward, combine", "backward, dispatch")


def _check_routed(routed: Sequence[Sequence[int]]) -> int:
    """Check the table, and return the number of experts."""
    _check_list(routed, "routed", "a row of counts for each rank")
    for rank, row in enumerate(routed):
        _check_list(row, f"routed[{rank}]", "a count for each expert")
        if len(row) != len(routed[0]):
            raise ValueError(
                f"routed[{rank}] has {len(row)} experts, and routed[0] has {len(routed[0])}; give "
                "every rank a count for each expert"
            )
        for count in row:
            arguments.counted("routed", count, "0 or more", least=0)
    return len(routed[0])


def _check_list(given: object, name: str, what: str) -> None:
    if not isinstance(given, Sequence) or isinstance(given, str) or not given:
        raise TypeError(f"{name}={given!r:.60}: give {what}")


def _check_ep(ep: int, num_experts: int) -> int:
    n, num_experts = arguments.counted("ep", ep), arguments.counted("num_experts", num_experts)
    if num_experts % n:
        raise ValueError(
            f"ep={n} does not divide num_experts={num_experts}, and ranks with more experts have "
            f"more to do; give {arguments.divisors_text(num_experts)}, or routed counts to "
            "expert_parallel_traffic_bytes"
        )
    return n


def _check_choices(num_tokens: float, num_experts: int, top_k: int) -> None:
    arguments.number("num_tokens", num_tokens, "0 or more", least=0)
    if arguments.counted("top_k", top_k) > num_experts:
        raise ValueError(f"top_k={top_k} of num_experts={num_experts}: a token can take all")


def _sum_of(name: str, parts: Mapping[str, tuple[float, int]], how: str) -> Result:
    made = {
        part: (number * size, f"{number:,} {what} * {size:,} B")
        for part, (number, size) in parts.items()
        for what in ["counts" if part.endswith("counts") else "rows"]
    }
    convention = f"one layer; {how}; bytes of tensors, without headers"
    return total_bytes(name, made, convention=convention, source=_TRAFFIC_SOURCE)
