"""Replay a run with one change, to predict its gain.

    measured       rank 0  |== compute ==|~~~~~ waits for rank 1 ~~~~~|= transfer =|
                   rank 1  |================ compute =================|= transfer =|
    no straggler   rank 0  |== compute ==|= transfer =|
                   rank 1  |== compute ==|= transfer =|

Most functions return a Change, which `Dependencies.seconds` replays. It changes times only: each
rank does the same work in the same order, and waits for the same ranks. `buckets` also changes the
program: it returns another graph with its Change. `perfect_overlap` returns seconds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from statistics import mean, median

from labkit.profile.breakdown import HOST, TRANSFER
from labkit.profile.dependencies import STALL, Change, Dependencies, Part
from labkit.profile.step_trace import COMPUTE, COPY, DATA, Exchange, RankTrace, Trace

OWN = (COMPUTE, DATA, COPY, HOST, STALL)


def without(*kinds: str) -> Change:
    """Remove the time of these kinds: `without("data")` is a loader that is always ready."""
    return lambda part: 0.0 if part.kind in kinds else part.seconds


def links(times: float, latency_s: float = 0.0) -> Change:
    """Multiply the bandwidth of all links by `times`; `latency_s` of each transfer stays."""

    def change(part: Part) -> float:
        if part.kind != TRANSFER:
            return part.seconds
        fixed_s = min(latency_s, part.seconds)
        return fixed_s + (part.seconds - fixed_s) / times

    return change


def no_straggler(graph: Dependencies, rank: int, *kinds: str) -> Change:
    """Reduce a rank's total work to the median of the other ranks.

    kinds: kinds of its work, such as "data"; default: all kinds. If all ranks run the same program,
    the time is subtracted from the stretches between exchanges in which the others are faster.
    Otherwise, as with stages of a pipeline, all work of the rank is scaled by one factor.
    """
    kinds = kinds or OWN
    sums = graph.own_seconds(*kinds)
    goal_s = median([sums[other] for other in sums if other != rank] or [sums[rank]])
    share = min(1.0, goal_s / sums[rank]) if sums[rank] else 1.0
    others = [parts for other, parts in graph.stretches.items() if other != rank]
    own = [_of_kinds(parts, kinds) for parts in graph.stretches[rank]]
    if not others or any(len(each) != len(own) for each in others):
        return _scaled(kinds, {rank: share})
    same = [median(each) for each in zip(*([_of_kinds(p, kinds) for p in o] for o in others))]
    excess = [max(0.0, own_s - same_s) for own_s, same_s in zip(own, same)]
    taken = min(1.0, (1 - share) * sums[rank] / sum(excess)) if any(excess) else 0.0
    factors = [1 - taken * more_s / own_s if own_s else 1.0 for more_s, own_s in zip(excess, own)]
    by_part = {id(p): f for f, parts in zip(factors, graph.stretches[rank]) for p in parts}
    return lambda part: part.seconds * (by_part.get(id(part), 1.0) if part.kind in kinds else 1.0)


def _of_kinds(parts: Iterable[Part], kinds: Collection[str]) -> float:
    return sum(part.seconds for part in parts if part.kind in kinds)


def balanced(graph: Dependencies) -> Change:
    """Share the computing equally: each rank computes for the mean time of all."""
    sums = graph.own_seconds(COMPUTE)
    even_s = mean(sums.values())
    return _scaled((COMPUTE,), {rank: even_s / own_s for rank, own_s in sums.items() if own_s})


def perfect_overlap(graph: Dependencies) -> float:
    """Return the seconds of the run if all transfers were hidden behind computing.

    It takes at least as long as the transfers of one rank, one after the other.
    """
    busiest_s = max(graph.own_seconds(TRANSFER).values())
    return max(graph.seconds(without(TRANSFER)), busiest_s)


def transfer_cost(transfers: Iterable[Part], fixed_s: float | None = None) -> tuple[float, float]:
    """Return the latency of a transfer, in seconds, and the seconds per byte.

    They are the line through the medians of the smallest and the largest size. With a single size
    the latency is 0. fixed_s: the latency, if it is known.
    """
    by_size: dict[int, list[float]] = defaultdict(list)
    for part in transfers:
        assert part.exchange is not None
        by_size[part.exchange.nbytes].append(part.seconds)
    if not by_size:
        return 0.0, 0.0
    small, large = min(by_size), max(by_size)
    few_s, many_s = median(by_size[small]), median(by_size[large])
    if fixed_s is not None or small == large:
        fixed_s = fixed_s or 0.0
        return fixed_s, max(0.0, many_s - fixed_s) / max(1, large)
    per_byte_s = max(0.0, (many_s - few_s) / (large - small))
    return min(few_s, max(0.0, few_s - small * per_byte_s)), per_byte_s


def buckets(trace: Trace, nbytes: int, fixed_s: float | None = None) -> tuple[Dependencies, Change]:
    """Return the graph of a run with gradient buckets of `nbytes`, and the times of its transfers.

        graph, change = what_if.buckets(trace, 25 * 2**20)
        graph.seconds(change)

        backward    |-- layer 3 --|-- layer 2 --|-- layer 1 --|-- layer 0 --|
        as it was                 |-- 3 --|     |-- 2 --|     |-- 1 --|     |-- 0 --|
        merged                                  |-- 3 and 2 --|             |-- 1 and 0 --|

    A group's all-reduces within a step count as buckets, unless all ranks wait for one before they
    start the next. As in DDP, a new bucket is closed by the gradients with which it reaches
    `nbytes`. A larger old bucket is cut; its gradients are assumed to arrive at an even rate since
    the bucket before. For the first bucket, they arrive since a third of the step's computing, the
    forward pass, was done.

    fixed_s: the latency of a transfer. None: from the trace, if it has two sizes. Raises ValueError
    for a trace without all-reduces or, without `fixed_s`, with a single size of them.
    """
    if nbytes < 1:
        raise ValueError(f"nbytes is {nbytes}: a bucket has at least 1 byte")
    stops = _stops(trace)
    ranks = {rank: _with_buckets(own, nbytes, stops) for rank, own in trace.ranks.items()}
    seen = [
        part
        for part in Dependencies(trace).parts()
        if part.exchange and part.exchange.kind == _GRADIENTS and part.exchange.blocks
    ]
    sizes = {part.exchange.nbytes for part in seen if part.exchange}
    if not sizes:
        raise ValueError("no rank has waited for an all_reduce in this trace: no bucket to change")
    if fixed_s is None and len(sizes) == 1:
        raise ValueError(
            f"all buckets that ranks waited for have {min(sizes)} bytes, which does not show what "
            "a transfer takes without bytes: give fixed_s, in seconds"
        )
    least_s, per_byte_s = transfer_cost(seen, fixed_s)

    def change(part: Part) -> float:
        if part.exchange is None or part.exchange.key[0] != _BUCKET:
            return part.seconds
        return least_s + per_byte_s * part.exchange.nbytes

    return Dependencies(replace(trace, ranks=ranks)), change


_GRADIENTS = "all_reduce"
_BUCKET = "bucket"


def _in_turn(own: RankTrace) -> Iterator[tuple[tuple[float, float], list[Exchange]]]:
    """Yield (start and end of the step, all-reduces in order) for each step and group."""
    for start_s, end_s in own.steps or [(own.start_s, own.end_s)]:
        groups: dict[tuple[int, ...], list[Exchange]] = defaultdict(list)
        for each in own.exchanges:
            if each.kind == _GRADIENTS and start_s <= each.posted_s < end_s:
                groups[each.group].append(each)
        for found in groups.values():
            yield (start_s, end_s), found


def _stops(trace: Trace) -> set[tuple]:
    """Return the keys of all-reduces that all ranks waited for before they started the next."""
    stopped: dict[tuple, list[bool]] = defaultdict(list)
    for own in trace.ranks.values():
        for _, found in _in_turn(own):
            for each, after in pairwise(found):
                stopped[each.key].append(each.blocks and after.posted_s >= each.done_s)
    return {key for key, on_ranks in stopped.items() if all(on_ranks)}


def _with_buckets(own: RankTrace, nbytes: int, stops: Collection[tuple]) -> RankTrace:
    exchanges = [each for each in own.exchanges if each.kind != _GRADIENTS]
    for (start_s, _), found in _in_turn(own):
        run: list[Exchange] = []
        for each in found:
            run.append(each)
            if each.key in stops or each is found[-1]:
                exchanges += _buckets_of(run, _backward_begins(own, start_s, run), nbytes)
                run = []
    return replace(own, exchanges=sorted(exchanges, key=lambda each: each.posted_s))


def _backward_begins(own: RankTrace, start_s: float, run: list[Exchange]) -> float:
    """Return the assumed end of forward: a third of the computing before the last gradient."""
    last_s = run[-1].posted_s
    spans = [
        (max(w.start_s, start_s), min(w.end_s, last_s))
        for w in own.work
        if w.kind == COMPUTE and w.end_s > start_s and w.start_s < last_s
    ]
    left_s = sum(end - start for start, end in spans) / 3
    for begin_s, end_s in spans:
        if left_s <= end_s - begin_s:
            return min(begin_s + left_s, run[0].posted_s)
        left_s -= end_s - begin_s
    return run[0].posted_s


def _buckets_of(run: list[Exchange], begin_s: float, nbytes: int) -> Iterator[Exchange]:
    """Yield the same gradients in other buckets; the rank waits for all of them after the last."""
    pieces = []
    for each in run:
        num = max(1, each.nbytes // nbytes)
        gap_s = each.posted_s - begin_s
        pieces += [(begin_s + gap_s * (n + 1) / num, each.nbytes / num) for n in range(num)]
        begin_s = each.posted_s
    filled, closed = 0.0, []
    for number, (ready_s, size) in enumerate(pieces):
        filled += size
        if filled >= nbytes or number == len(pieces) - 1:
            closed.append((ready_s, round(filled)))
            filled = 0.0
    done_s = max(each.done_s for each in run)
    waits_s = [each.waited_s for each in run if each.waited_s is not None]
    waited_s = min((s for s in waits_s if s >= run[-1].posted_s), default=done_s)
    for number, (ready_s, size) in enumerate(closed):
        yield Exchange(
            (_BUCKET, run[0].key, number),
            _GRADIENTS,
            run[0].group,
            ready_s,
            waited_s,
            done_s - 1e-9 * (len(closed) - number),  # in this order
            size,
            f"bucket {number}",
        )


def _scaled(kinds: Collection[str], factors: Mapping[int, float]) -> Change:
    def change(part: Part) -> float:
        return part.seconds * (factors.get(part.rank, 1.0) if part.kind in kinds else 1.0)

    return change
