"""Match kernels of different ranks into collectives by their times, if order is not enough.

    rank 0   |--------- waits ----------|- moves -|      kernels of one collective end together,
    rank 1                              |---------|      and none ends before the last has started

Old profilers write neither the collective's name nor its group, and a file may lack kernels. So the
n-th kernel of one kind on a rank need not belong to the n-th on another.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace

from labkit.profile.communication_kernels import SOME_KIND
from labkit.profile.step_trace import MESSAGES, Exchange, Trace, in_doubt

# In these no rank has the result before the last rank has arrived.
_ALL_WAIT = (
    *("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"),
    *("dispatch", "combine", SOME_KIND),
)
_UNNAMED = (*MESSAGES, "send_recv")
_TOGETHER_S, _TOGETHER = 2e-5, 0.1
"""Kernels end together within this many seconds, or this share of the shorter one."""
_ENOUGH_MATCHED = 0.9
_WORTH_A_NOTE = 0.01


def match_by_time(trace: Trace, on_device: Collection[int], tolerance_s: float) -> Trace:
    """Return the trace with new keys for exchanges of one key whose times contradict each other.

    on_device: ranks whose exchanges are kernels. tolerance_s: how far their clocks may be apart.
    """
    keys: dict[tuple[int, tuple], tuple] = {}
    loose: list[tuple[int, Exchange]] = []
    lone: dict[tuple, list[tuple[int, Exchange]]] = defaultdict(list)
    wrong: dict[tuple, list[tuple[int, Exchange]]] = defaultdict(list)
    for key, by_rank in trace.matched_exchanges.items():
        if not on_device >= by_rank.keys():  # type: ignore[operator]
            continue
        exchanges = list(by_rank.items())
        one = exchanges[0][1]
        if len(exchanges) == 1 and one.kind in _UNNAMED and key[0] == one.kind:
            loose += exchanges
        elif len(exchanges) == 1:
            lone[key[:-1]] += exchanges
        elif one.kind in _ALL_WAIT and _contradicts(exchanges, tolerance_s):
            wrong[key[:-1]] += exchanges
    for key, exchanges in wrong.items():
        keys |= _keyed(_together(exchanges + lone[key]), key)
    met = list(_together(loose))
    if sum(len(each) for each in met if len(each) > 1) >= _ENOUGH_MATCHED * len(loose):
        keys |= _keyed(met, ())
    ranks = {
        rank: replace(
            own,
            exchanges=[replace(e, key=keys.get((rank, e.key), e.key)) for e in own.exchanges],
        )
        for rank, own in trace.ranks.items()
    }
    trace = replace(trace, ranks=ranks, notes=list(trace.notes))
    trace.notes.extend(_unmatched(trace))
    return trace


def _keyed(
    meetings: Iterable[list[tuple[int, Exchange]]], key: tuple
) -> dict[tuple[int, tuple], tuple]:
    return {
        (rank, each.key): (*key, "in time", number)
        for number, found in enumerate(meetings)
        for rank, each in found
    }


def _contradicts(exchanges: list[tuple[int, Exchange]], tolerance_s: float) -> bool:
    last_s = max(each.posted_s for _, each in exchanges)
    return last_s > min(each.done_s for _, each in exchanges) + tolerance_s


def _together(
    exchanges: Iterable[tuple[int, Exchange]],
) -> Iterator[list[tuple[int, Exchange]]]:
    """Yield groups of exchanges of different ranks that overlap in time and end together."""
    found: list[tuple[int, Exchange]] = []
    for rank, each in sorted(exchanges, key=lambda one: (one[1].done_s, one[0])):
        if found:
            before = found[-1][1]
            shorter_s = min(each.done_s - each.posted_s, before.done_s - before.posted_s)
            is_later = each.done_s - before.done_s > max(_TOGETHER_S, _TOGETHER * shorter_s)
            is_same_rank = any(other == rank for other, _ in found)
            if is_later or is_same_rank or each.posted_s > found[0][1].done_s:
                yield found
                found = []
        found.append((rank, each))
    if found:
        yield found


def _unmatched(trace: Trace) -> list[str]:
    """Return a note on exchanges of several ranks that were found on one rank only."""
    if len(trace.ranks) == 1:
        return []  # a note says that other ranks are missing
    doubtful = in_doubt(trace)
    alone: Counter[str] = Counter()
    seconds: dict[str, float] = defaultdict(float)
    for key, by_rank in trace.matched_exchanges.items():
        each = next(iter(by_rank.values()))
        if len(by_rank) == 1 and key in doubtful and trace.ranks.keys() >= {*each.group}:
            alone[each.kind] += 1
            seconds[each.kind] += each.done_s - each.posted_s
    if sum(seconds.values()) < _WORTH_A_NOTE * trace.seconds * len(trace.ranks):
        return []
    kinds = ", ".join(f"{count} {kind}" for kind, count in alone.most_common(3))
    return [
        f"{alone.total()} exchanges ({kinds}) could not be matched between ranks: what looks like "
        "their transfer may be waiting"
    ]
