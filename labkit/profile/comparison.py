"""Compare two runs by the terms of a step, with the ranks where a term grew.

    before   |==== compute ====|- transfer -|                         a step of 72 ms
    after    |- data -|==== compute ====|- transfer -|                86 ms
                ^ rank 2 spends 12 ms more on it, and the other ranks wait for rank 2

Terms are the seconds on the critical path, divided by the number of steps. The path leads through
the rank that others wait for, so their waiting is not a term. `rest` is the mean step minus the
other terms: ranks that start or end at different times, and time between steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import mean
from typing import Any

from labkit.profile.bottleneck import EITHER
from labkit.profile.breakdown import HOST, TRANSFER
from labkit.profile.dependencies import STALL, Dependencies
from labkit.profile.step_trace import COMPUTE, COPY, DATA, Trace, in_doubt

REST = "rest"
_TERMS = (COMPUTE, DATA, COPY, TRANSFER, HOST)
_NO_DIFFERENCE = 0.02
"""A difference of less than this share of a step counts as none."""
_NAMED = 0.15
"""The verdict names terms that explain at least this share of the difference."""


@dataclass(frozen=True, slots=True)
class Growth:
    """One term of a step on the critical path, before and after."""

    term: str
    ranks: tuple[int, ...]
    """Ranks where the term grew by at least half of its largest growth. Empty: unknown."""
    before_s: float
    after_s: float

    @property
    def seconds(self) -> float:
        """Growth in seconds per step; below 0 if the term shrank."""
        return self.after_s - self.before_s


@dataclass(frozen=True, slots=True)
class Comparison:
    """A mean step of two runs, term by term."""

    before_s: float
    after_s: float
    growths: list[Growth]
    """Growth of each term, the largest first; their sum is `seconds`."""
    num_ranks: int
    """Ranks that both traces have."""
    notes: list[str]
    is_certain: bool = True
    """False if ranks have no trace: an apparent transfer may be waiting for one of them."""

    @property
    def seconds(self) -> float:
        """Growth of the mean step, in seconds."""
        return self.after_s - self.before_s

    @property
    def verdict(self) -> str:
        """One sentence on the terms that grew."""
        times = f"{_ms(self.after_s)} instead of {_ms(self.before_s)} ms"
        if abs(self.seconds) < _NO_DIFFERENCE * self.before_s:
            return f"A step takes as long as before: {times}."
        named = [
            f"{_ms(each.seconds, '+')} ms {self._named(each.term)}{self.where(each)}"
            for each in self.growths
            if abs(each.seconds) >= _NAMED * abs(self.seconds)
        ]
        less_or_more = f"{_ms(abs(self.seconds))} ms {'longer' if self.seconds > 0 else 'less'}"
        return f"A step takes {less_or_more}, {times}: {', '.join(named)}."

    def _named(self, term: str) -> str:
        return term if self.is_certain or term != TRANSFER else EITHER

    def where(self, growth: Growth) -> str:
        """Return ` on rank 2`, or "" if the rank is not known."""
        ranks = growth.ranks
        if not ranks:
            return ""
        if len(ranks) == self.num_ranks > 1:
            return " on all ranks"
        if len(ranks) > 4:
            return f" on {len(ranks)} of {self.num_ranks} ranks"
        *first, last = map(str, ranks)
        return f" on ranks {', '.join(first)} and {last}" if first else f" on rank {last}"

    def rows(self) -> list[dict[str, str]]:
        """Return a row by term: milliseconds of a step before and after, the growth, the ranks."""
        return [
            {
                "term": self._named(each.term),
                "before": _ms(each.before_s),
                "after": _ms(each.after_s),
                "growth": _ms(each.seconds, "+"),
                "where": self.where(each).removeprefix(" on "),
            }
            for each in self.growths
        ]

    def to_json(self) -> dict[str, Any]:
        """Return plain data: us of a step, by term."""
        terms = [
            {"term": each.term, "ranks": [*each.ranks], "growth": 1e6 * each.seconds}
            for each in self.growths
        ]
        return {
            "unit": "us",
            "before": 1e6 * self.before_s,
            "after": 1e6 * self.after_s,
            "terms": terms,
            "verdict": self.verdict,
            "notes": self.notes,
        }


def compare(before: Trace, after: Trace) -> Comparison:
    """Return the terms that make a mean step of `after` longer, or shorter, than one of `before`.

    The traces may differ in steps and ranks: ranks of a growth are among those that both have.
    ValueError if only one of them marks its steps: a step is not comparable to a whole trace.
    """
    steps = [max(len(own.steps) for own in trace.ranks.values()) for trace in (before, after)]
    if (not steps[0]) != (not steps[1]):
        raise ValueError(
            f"the trace before has {steps[0]} marked steps and the one after has {steps[1]}: mark "
            "steps in both, with `prof.step()` or a region named step, or in neither"
        )
    one, other = _MeanStep(before), _MeanStep(after)
    both = sorted(before.ranks.keys() & after.ranks.keys())
    growths = [
        Growth(term, _ranks(one, other, term, both), one.terms[term], other.terms[term])
        for term in (*_TERMS, REST)
    ]
    sign = 1 if other.seconds >= one.seconds else -1
    growths.sort(key=lambda each: -sign * each.seconds)
    notes = [
        f"{when}: {note}" for when, t in (("before", before), ("after", after)) for note in t.notes
    ]
    if before.ranks.keys() != after.ranks.keys():
        notes.append(
            f"{len(before.ranks)} ranks of {before.world_size} before, {len(after.ranks)} of "
            f"{after.world_size} after: {len(both)} are in both"
        )
    if not steps[0]:
        notes.append("no steps are marked: the whole traces are compared as one step")
    is_certain = not (in_doubt(before) or in_doubt(after))
    return Comparison(one.seconds, other.seconds, growths, len(both), notes, is_certain)


class _MeanStep:
    """The mean step of a trace, its terms on the critical path, and each rank's seconds by term."""

    def __init__(self, trace: Trace) -> None:
        graph = Dependencies(trace)
        each_s = [
            end_s - start_s
            for own in trace.ranks.values()
            for start_s, end_s in own.steps or [(own.start_s, own.end_s)]
        ]
        self.seconds = mean(each_s)
        num_steps = max(1, *(len(own.steps) for own in trace.ranks.values()))
        self.terms = dict.fromkeys(_TERMS, 0.0)
        for segment in graph.critical_path():
            for part in segment.parts:
                term = HOST if part.kind == STALL else part.kind
                self.terms[term] += part.seconds / num_steps
        self.terms[REST] = self.seconds - sum(self.terms.values())
        kinds = {term: (term,) for term in _TERMS} | {HOST: (HOST, STALL)}
        self.own = {
            term: {rank: s / num_steps for rank, s in graph.own_seconds(*kinds[term]).items()}
            for term in _TERMS
        }


def _ranks(one: _MeanStep, other: _MeanStep, term: str, both: list[int]) -> tuple[int, ...]:
    """Return the ranks where a term grew most, or shrank most, if it did so on the path."""
    if term == REST or not both:
        return ()
    sign = 1 if other.terms[term] >= one.terms[term] else -1
    grew = {rank: sign * (other.own[term][rank] - one.own[term][rank]) for rank in both}
    most = max(grew.values())
    return tuple(rank for rank in both if grew[rank] >= most / 2) if most > 1e-6 else ()


def _ms(seconds: float, sign: str = "") -> str:
    return f"{1e3 * seconds:{sign}z.1f}"
