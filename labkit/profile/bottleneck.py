"""Diagnosis: causes of lost time in a step, the gain without each, and a remedy.

The replay says for each cause how long the run would take without it.

    cause       the run without it                                        remedy
    straggler   one rank computes as fast as the median of the others     replace the node
    imbalance   the same, for a rank with more work; or equal work        equal shards or stages
    input       loading takes no time                                     more workers, prefetching
    host        no long gaps between operators                            no .item(), no pauses
    barrier     no rank waits in a barrier                                remove it
    link        slow pairs of ranks as fast as the fastest pair           replace cable or port
    latency     transfers without their fixed part                        fewer, larger messages
    overlap     the only exchange of a step is hidden                     buckets during backward
    bandwidth   transfers without the part that grows with their bytes    overlap, fewer bytes
    launch      no short gaps between operators                           CUDA graphs, more per step
    bubble      no waiting for the message of another stage               more microbatches
    compute     (not removed: the share of computing)                     faster kernels, more ranks

All but the last four are faults if they cost at least the share ALARM of the time (latency:
LATENCY_ALARM). The last four bound every run without a fault. A journal (trace_of_run) has no
operators, so it does not separate the host's time from computing, nor a straggler from imbalance.

If ranks have no trace, an apparent transfer may be waiting for one of them. Such exchanges are
reported as "transfer or waiting", and not as latency, overlap or bandwidth. A straggler among the
other ranks is then only a possible fault, because a rank without a trace may be later. "operators"
replaces compute if the trace has only the host's operators, and not the device's.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from statistics import mean, median

from labkit.profile import what_if
from labkit.profile.breakdown import BUBBLE, HOST, TRANSFER, breakdown
from labkit.profile.dependencies import STALL, Change, Dependencies, Part, measured
from labkit.profile.step_trace import COMPUTE, COPY, DATA, MESSAGES, Trace, in_doubt

FAULTS = ("straggler", "imbalance", "input", "host", "barrier", "link", "latency", "overlap")
ALARM = 0.05
"""Least share of the time that a fault costs."""
LATENCY_ALARM = 0.1
"""The same for latency: on 4 healthy ranks on two cores, gloo's own is up to a tenth."""
DOUBT = 0.1
"""If this share of communication has no known last arrival, the late rank is uncertain."""
EITHER, OPERATORS = "transfer or waiting", "operators"
MORE = 0.02
"""A rank has more work if its operators read more than the others' median by this share."""
_REMEDIES = {
    "straggler": "look at this rank's node: clocks, temperature, other processes; replace it",
    "imbalance": "give every rank the same work: shards, tokens of experts, layers of stages",
    "input": "load ahead: more workers, prefetching, data nearer to the ranks",
    "host": "let the host run ahead: no .item() in a step, no garbage collection, no swapping",
    "barrier": "remove the barrier: collectives already order the ranks",
    "link": "test this link alone, then its cable, port and switch; put neighbours elsewhere",
    "latency": "send fewer and larger messages: larger buckets",
    "overlap": "reduce gradients in several buckets, while backward computes the others",
    "bandwidth": "send fewer bytes, or send them while ranks compute",
    "launch": "larger batches per launch, CUDA graphs, torch.compile",
    "bubble": "more microbatches per step, or an interleaved or zero-bubble schedule",
    "compute": "faster kernels, lower precision, more ranks",
    EITHER: "give the traces of all ranks: they show who came late",
    OPERATORS: "record the device too: its work is not in the trace",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """A cause of lost time."""

    cause: str
    rank: int | None
    """The rank with the cause; None: all ranks."""
    gain_s: float
    """Seconds of the whole trace that the cause costs."""
    share: float
    """The same as a share of the trace's seconds."""
    evidence: str
    is_certain: bool = True
    """False if a rank without a trace may be the cause instead."""

    @property
    def is_fault(self) -> bool:
        """True for a cause that a healthy run does not have, and that costs enough."""
        return self.verdict == "fault"

    @property
    def verdict(self) -> str:
        """ "fault"; "possible" if the fault is not certain; or "bound"."""
        alarm = LATENCY_ALARM if self.cause == "latency" else ALARM
        if self.cause not in FAULTS or self.share < alarm:
            return "bound"
        return "fault" if self.is_certain else "possible"

    @property
    def remedy(self) -> str:
        """The usual remedy."""
        return _REMEDIES[self.cause]

    def __str__(self) -> str:
        where = "" if self.rank is None else f" on rank {self.rank}"
        unless = " A rank without a trace may be later." if self.verdict == "possible" else ""
        return f"{self.cause}{where}: {self.share:.0%} of the time. {self.evidence}{unless}"


def diagnose(trace: Trace) -> list[Finding]:
    """Return all causes: faults first, then bounds of the run, each by its cost."""
    graph = Dependencies(trace)
    doubtful = in_doubt(trace)
    is_certain = _share_of(trace, doubtful) < DOUBT
    on_computing = _on_one_or_all(_slow_computing(graph), _imbalance(graph))
    barriers = _barriers(trace, graph.seconds())
    found = [
        replace(on_computing, is_certain=is_certain),
        _on_one_or_all(_slow_rank(graph, "input", DATA), _everywhere(graph, "input", DATA)),
        _on_one_or_all(_slow_rank(graph, "host", STALL), _everywhere(graph, "host", STALL)),
        _everywhere(graph, "launch", HOST, COPY),
        replace(barriers, is_certain=is_certain),
        _slow_link(graph),
        *_transfers(graph, doubtful),
        *_shares(trace),
    ]
    return sorted(found, key=lambda each: (not each.is_fault, -each.gain_s))


def _share_of(trace: Trace, doubtful: Collection[tuple]) -> float:
    """Return the share of these exchanges in all time in which exchanges are in flight."""
    seconds = [
        (each.key in doubtful, each.done_s - each.posted_s)
        for own in trace.ranks.values()
        for each in own.exchanges
    ]
    total = sum(each_s for _, each_s in seconds)
    return sum(each_s for is_in_doubt, each_s in seconds if is_in_doubt) / total if total else 0.0


def _on_one_or_all(on_one: Finding, on_all: Finding) -> Finding:
    """Return the finding of one rank if it explains most of the loss of all ranks."""
    return on_one if on_one.gain_s > 0 and on_one.gain_s >= 0.7 * on_all.gain_s else on_all


def _finding(
    graph: Dependencies, cause: str, rank: int | None, change: Change, why: str
) -> Finding:
    seconds = graph.seconds()
    gain_s = max(0.0, seconds - graph.seconds(change))
    return Finding(cause, rank, gain_s, gain_s / seconds if seconds else 0.0, why)


def _slow_rank(graph: Dependencies, cause: str, kind: str) -> Finding:
    """Return the finding for the rank whose excess in this kind of work costs most."""
    sums = graph.own_seconds(kind)
    rank = max(sums, key=sums.__getitem__)
    others = [value for other, value in sums.items() if other != rank] or [sums[rank]]
    why = (
        f"Rank {rank} spends {_ms(sums[rank])} on {kind}, "
        f"the median of the others is {_ms(median(others))}."
    )
    return _finding(graph, cause, rank, what_if.no_straggler(graph, rank, kind), why)


def _slow_computing(graph: Dependencies) -> Finding:
    """Return a straggler, or imbalance if the slower rank also reads more numbers."""
    found = _slow_rank(graph, "straggler", COMPUTE)
    rank = found.rank
    sizes = {each.rank: sum(w.size for w in each.work) for each in graph.trace.ranks.values()}
    assert rank is not None
    more = _excess(sizes, rank)
    if more < MORE:
        return found
    why = f"Its operators read {more:.0%} more numbers than the median of the others."
    return replace(found, cause="imbalance", evidence=f"{found.evidence} {why}")


def _excess(values: Mapping[int, float], rank: int) -> float:
    """Return the share by which a rank's value exceeds the median of the others."""
    others = median([value for other, value in values.items() if other != rank] or [0.0])
    return values[rank] / others - 1 if others else 0.0


def _imbalance(graph: Dependencies) -> Finding:
    sums = graph.own_seconds(COMPUTE).values()
    why = f"Ranks compute from {_ms(min(sums))} to {_ms(max(sums))}, {_ms(mean(sums))} on average."
    return _finding(graph, "imbalance", None, what_if.balanced(graph), why)


def _everywhere(graph: Dependencies, cause: str, *kinds: str) -> Finding:
    each_s = mean(graph.own_seconds(*kinds).values())
    why = f"A rank spends {_ms(each_s)} of {_ms(graph.seconds())} on {' and '.join(kinds)}."
    return _finding(graph, cause, None, what_if.without(*kinds), why)


def _barriers(trace: Trace, seconds: float) -> Finding:
    """Return the finding of a run in which each rank passes every barrier at once."""
    ranks, count = {}, 0
    for rank, own in trace.ranks.items():
        alone = [
            replace(each, key=(*each.key, rank)) if each.kind == "barrier" else each
            for each in own.exchanges
        ]
        count = sum(each.kind == "barrier" for each in alone)
        ranks[rank] = replace(own, exchanges=alone)

    def no_barrier(part: Part) -> float:
        is_one = part.exchange is not None and part.exchange.kind == "barrier"
        return 0.0 if is_one else part.seconds

    gain_s = 0.0
    if count:
        gain_s = max(0.0, seconds - Dependencies(replace(trace, ranks=ranks)).seconds(no_barrier))
    why = f"Each rank waits in {count} barriers."
    return Finding("barrier", None, gain_s, gain_s / seconds if seconds else 0.0, why)


def _slow_link(graph: Dependencies) -> Finding:
    """Return the finding for slow pairs of ranks, by messages of the most frequent size.

    A pair is slow if its messages take more than twice as long as those of the fastest pair, and
    more than a third as long as those of the slowest. A message is in flight from the moment when
    it is sent, even if its receiver is not there yet.
    """
    by_pair: dict[tuple[tuple[int, ...], int], list[float]] = defaultdict(list)
    sizes: Counter[int] = Counter()
    for by_rank in graph.trace.matched_exchanges.values():
        ends = {each.kind: each for each in by_rank.values()}
        if ends.keys() == set(MESSAGES) and graph.sees_end(ends["recv"]):
            sizes[ends["recv"].nbytes] += 1
            took_s = ends["recv"].done_s - ends["send"].posted_s
            by_pair[ends["recv"].group, ends["recv"].nbytes].append(took_s)
    usual = sizes.most_common(1)[0][0] if sizes else 0
    of_pairs = {pair: median(each_s) for (pair, size), each_s in by_pair.items() if size == usual}
    usual_s = min(of_pairs.values(), default=0.0)
    # Messages that queue behind another pair's take twice as long on a healthy link.
    least_s = max(2 * usual_s, max(of_pairs.values(), default=0.0) / 3)
    slow = {pair: each_s for pair, each_s in of_pairs.items() if each_s > least_s}

    def as_usual(part: Part) -> float:
        exchange = part.exchange
        if exchange is None or exchange.group not in slow or not exchange.is_message:
            return part.seconds
        return part.seconds * usual_s / slow[exchange.group]

    shared = set.intersection(*map(set, slow)) if slow else set()
    takes = ", ".join(f"{_ms(each_s)} from {a} to {b}" for (a, b), each_s in slow.items())
    why = f"Messages take {takes}, and {_ms(usual_s)} between the fastest pair of ranks."
    return _finding(graph, "link", shared.pop() if len(shared) == 1 else None, as_usual, why)


def _transfers(graph: Dependencies, doubtful: Collection[tuple]) -> list[Finding]:
    moves = [(part, part.exchange.key) for part in graph.parts() if part.exchange]
    transfers = [part for part, key in moves if key not in doubtful]
    latency_s, _ = what_if.transfer_cost(transfers)
    seconds = sum(part.seconds for part in transfers)
    why = (
        f"{len(transfers)} transfers take {_ms(seconds)} on all ranks together. "
        f"The latency of one is {_ms(latency_s)}."
    )

    def only_certain(change: Change) -> Change:
        return lambda p: p.seconds if p.exchange and p.exchange.key in doubtful else change(p)

    def no_latency(part: Part) -> float:
        return max(0.0, part.seconds - latency_s) if part.kind == TRANSFER else part.seconds

    def without_doubtful(part: Part) -> float:
        return 0.0 if part.exchange and part.exchange.key in doubtful else part.seconds

    steps = max(1, *(len(each.steps) for each in graph.trace.ranks.values()))
    most = max(len(each.exchanges) for each in graph.trace.ranks.values())
    hidden = what_if.without(TRANSFER) if most <= steps else measured
    alone = f"{most / steps:.0f} exchange in a step, and nothing is computed meanwhile."
    either_s = sum(part.seconds for part, key in moves if key in doubtful)
    either = (
        f"{len(moves) - len(transfers)} exchanges take {_ms(either_s)} on all ranks together. "
        "The rank that arrived last is not known."
    )
    return [
        _finding(graph, "latency", None, only_certain(no_latency), why),
        _finding(graph, "overlap", None, only_certain(hidden), alone),
        _finding(graph, "bandwidth", None, only_certain(what_if.links(math.inf, latency_s)), why),
        _finding(graph, EITHER, None, without_doubtful, either),
    ]


def _shares(trace: Trace) -> list[Finding]:
    """Return findings that no replay can remove: a schedule's bubble, and the computing itself."""
    terms = [each for steps in breakdown(trace).values() for each in steps]
    total = sum(each.total for each in terms) or 1.0
    found = []
    compute = ("compute", COMPUTE, "Ranks compute {:.0%} of their time.")
    if trace.host_only:
        compute = (OPERATORS, COMPUTE, "Operators of the host take {:.0%} of the time.")
    for cause, term, why in (
        ("bubble", BUBBLE, "Ranks wait {:.0%} of their time for a message that is not sent yet."),
        compute,
    ):
        share = sum(each.seconds[term] for each in terms) / total
        why = why.format(share)
        found.append(Finding(cause, None, share * trace.seconds, share, why))
    return found


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:,.1f} ms"
