"""What a trace says, as text and as plain data: `labkit profile` prints it.

rank  step   compute    data    copy  transfer  straggler  bubble    host   overlap
   0   103        67       5       0         8         22       0       1       41%
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from statistics import mean
from typing import Any

from labkit.profile.bottleneck import EITHER, OPERATORS, Finding, diagnose
from labkit.profile.breakdown import TERMS, Terms, breakdown, figures
from labkit.profile.dependencies import Dependencies
from labkit.profile.step_trace import COMPUTE, Trace, in_doubt


@dataclass(frozen=True, slots=True)
class Report:
    """A trace's breakdown, its critical path by rank and kind, and what it is lost to."""

    trace: Trace
    steps: dict[int, list[Terms]]
    """By rank."""
    path: list[tuple[int, str, float]]
    """Rank, kind of work and share of the critical path, the largest first."""
    findings: list[Finding]

    def rows(self) -> list[dict[str, str]]:
        """By rank: a step's mean terms in milliseconds, and the overlap."""
        found = []
        for rank, terms in self.steps.items():
            row = {"rank": str(rank), "step": _ms(mean(each.total for each in terms))}
            row |= {term: _ms(mean(each.seconds[term] for each in terms)) for term in TERMS}
            found.append(row | {"overlap": f"{mean(each.overlap for each in terms):.0%}"})
        return found

    def to_json(self) -> dict[str, Any]:
        """Figures as HTA defines them in us (overlap: 0 to 1), the steps' terms, and findings.

        A step's `transfer` may be waiting, where a note says that ranks have no trace.
        """
        by_rank = {
            str(rank): {
                "idle": 1e6 * each.idle,
                "compute": 1e6 * each.compute,
                "non_compute": 1e6 * each.non_compute,
                "total": 1e6 * each.total,
                "overlap": each.overlap,
                "steps": [
                    {term: 1e6 * seconds for term, seconds in step.seconds.items()}
                    for step in self.steps[rank]
                ],
            }
            for rank, each in figures(self.trace).items()
        }
        found = [
            {"cause": f.cause, "rank": f.rank, "share": f.share, "is_fault": f.is_fault}
            for f in self.findings
        ]
        return {"unit": "us", "ranks": by_rank, "findings": found, "notes": self.trace.notes}

    def words(self) -> list[str]:
        """Sentences: the critical path, what the time is lost to, what was missing."""
        shares = ", ".join(
            f"{share:.0%} {kind} of rank {rank}" for rank, kind, share in self.path[:3]
        )
        lines = [f"Critical path: {shares}."]
        for each in (f for f in self.findings[:3] if f.share >= 0.005):
            lines += [f"{each.verdict.capitalize()}: {each}", f"    {each.remedy}."]
        return lines + [f"Note: {note}." for note in self.trace.notes]


def report(trace: Trace) -> Report:
    """Everything that `labkit profile` says about a trace."""
    graph = Dependencies(trace)
    spent: dict[tuple[int, str], float] = defaultdict(float)
    doubtful = in_doubt(trace)
    for segment in graph.critical_path():
        for part in segment.parts:
            kind = part.kind
            if part.exchange and part.exchange.key in doubtful:
                kind = EITHER
            elif kind == COMPUTE and part.rank in trace.host_only:
                kind = OPERATORS
            spent[part.rank, kind] += part.seconds
    total = graph.seconds() or 1.0
    path = [(*key, spent[key] / total) for key in sorted(spent, key=spent.__getitem__)[::-1]]
    return Report(trace, breakdown(trace), path, diagnose(trace))


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.1f}"
