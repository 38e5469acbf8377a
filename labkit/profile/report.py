"""The report of a trace, as text and as plain data: `labkit profile` prints it.

rank  step   compute    data    copy  transfer  straggler  bubble    host   overlap
   0   103        67       5       0         8         22       0       1       41%

`page` writes it as one HTML page, without scripts or external files:

findings      cause, rank, evidence, remedy, gain
breakdown     a stacked bar per rank
timeline      the last steps: own lane, in flight, memory, and the critical path as a line
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from html import escape
from statistics import mean
from typing import Any

from labkit.profile.activity import Span, rows_without_overlap
from labkit.profile.bottleneck import EITHER, OPERATORS, Finding, diagnose
from labkit.profile.breakdown import (
    BUBBLE,
    STRAGGLER,
    TERMS,
    TRANSFER,
    Terms,
    breakdown,
    figures,
    last_arrivals,
)
from labkit.profile.comparison import Comparison
from labkit.profile.dependencies import Dependencies
from labkit.profile.step_trace import COMPUTE, RankTrace, Trace, in_doubt


@dataclass(frozen=True, slots=True)
class Report:
    """A trace's breakdown, its critical path by rank and kind, and its findings."""

    trace: Trace
    steps: dict[int, list[Terms]]
    """By rank."""
    path: list[tuple[int, str, float]]
    """Rank, kind of work and share of the critical path, the largest first."""
    findings: list[Finding]

    def rows(self) -> list[dict[str, str]]:
        """Return a step's mean terms in milliseconds, and the overlap, by rank."""
        found = []
        for rank, terms in self.steps.items():
            row = {"rank": str(rank), "step": _ms(mean(each.total for each in terms))}
            row |= {term: _ms(mean(each.seconds[term] for each in terms)) for term in TERMS}
            found.append(row | {"overlap": f"{mean(each.overlap for each in terms):.0%}"})
        return found

    def to_json(self) -> dict[str, Any]:
        """Return HTA's figures in us (overlap: 0 to 1), the steps' terms, and the findings.

        If a note says that ranks have no trace, a step's `transfer` may be waiting.
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
        """Return sentences on the critical path, the findings, and missing data."""
        shares = ", ".join(
            f"{share:.0%} {kind} of rank {rank}" for rank, kind, share in self.path[:3]
        )
        lines = [f"Critical path: {shares}."]
        for each in (f for f in self.findings[:3] if f.share >= 0.005):
            lines += [f"{each.verdict.capitalize()}: {each}", f"    {each.remedy}."]
        return lines + [f"Note: {note}." for note in self.trace.notes]


def report(trace: Trace) -> Report:
    """Return everything that `labkit profile` prints about a trace."""
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


_STEPS = 2
"""Most steps that are drawn."""
_RANKS = 16
_WIDTH, _LEFT = 1100, 64
_OWN, _FLIGHT, _MEMORY, _GAP = 26, 18, 34, 16
"""Heights of the lanes of one rank, in pixels."""
_STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1d2329; --faint: #67707a; --line: #d9dee3;
  --card: #f5f7f9; --alarm: #b3261e; --path: #111; --memory: #56748f;
  --compute: #a9c6e3; --data: #009e73; --copy: #8c6d31; --transfer: #e69f00;
  --straggler: #d55e00; --bubble: #cc79a7; --host: #c9ced3; }
@media (prefers-color-scheme: dark) { :root { --paper: #15191d; --ink: #e6e9ec; --faint: #98a2ac;
  --line: #353c43; --card: #1e242a; --alarm: #ff8a80; --path: #fff; --memory: #8fb0cc;
  --compute: #41678f; --copy: #a98a4d; --host: #4b535b; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 1140px; margin: 0 auto; padding: 28px 20px 60px; }
h1 { font-size: 26px; line-height: 1.25; margin: 0 0 4px; }
h2 { font-size: 18px; margin: 34px 0 10px; }
p { margin: 4px 0; } .faint, small { color: var(--faint); }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(300px, 1fr)); gap: 12px; }
.card { background: var(--card); border-left: 4px solid var(--line); border-radius: 6px;
  padding: 10px 14px; }
.fault { border-color: var(--alarm); } .fault small { color: var(--alarm); font-weight: 600; }
.card b { font-size: 17px; } .card .gain { float: right; font-weight: 600; }
.row { display: grid; grid-template-columns: 72px 1fr 150px; gap: 8px; margin: 5px 0;
  white-space: nowrap; }
.bar { display: flex; height: 22px; } .bar i { height: 100%; }
.key { display: inline-block; margin-right: 16px; font-size: 13px; }
.key i { display: inline-block; width: 12px; height: 12px; border-radius: 2px; margin-right: 5px; }
table { border-collapse: collapse; } td, th { padding: 3px 14px 3px 0; text-align: right; }
td:first-child, td:last-child, th:first-child, th:last-child { text-align: left; }
th { color: var(--faint); font-weight: 400; border-bottom: 1px solid var(--line); }
svg { width: 100%; height: auto; font-size: 12px; } svg text { fill: var(--ink); }
svg .faint { fill: var(--faint); } svg line { stroke: var(--line); }
.memory { fill: var(--memory); fill-opacity: .3; stroke: var(--memory); }
.path { fill: none; stroke: var(--path); stroke-width: 2; stroke-linejoin: round; }
""" + "\n".join(f".{term} {{ background: var(--{term}); fill: var(--{term}); }}" for term in TERMS)


def page(found: Report, comparison: Comparison | None = None) -> str:
    """Return the page as HTML, to be written to a file of any name."""
    steps = [step for own in found.steps.values() for step in own]
    num_steps = max(1, *(len(own.steps) for own in found.trace.ranks.values()))
    title = f"A step takes {_in_ms(mean(step.total for step in steps))}"
    what = f"{len(found.steps)} of {found.trace.world_size} ranks, {num_steps} steps"
    notes = "".join(f"<p class=faint>{escape(note)}</p>" for note in found.trace.notes)
    cards = "".join(_card(each, num_steps) for each in found.findings if each.share >= 0.005)
    lost = f"<h2>What it is lost to</h2><div class=cards>{cards}</div>" if cards else ""
    bars = "".join(_bars(found))
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head><body>
<h1>{title}</h1><p class=faint>{what}</p>{notes}{_compared(comparison)}
{lost}
<h2>Where the time of a step goes</h2>{_legend()}{bars}
<h2>The last steps</h2>{_Timeline(found).drawn()}
</body></html>
"""


def _in_ms(seconds: float) -> str:
    return f"{1e3 * seconds:,.1f} ms"


def _card(finding: Finding, num_steps: int) -> str:
    where = "" if finding.rank is None else f" on rank {finding.rank}"
    kind = finding.verdict
    return (
        f'<div class="card {kind}"><span class=gain>{_in_ms(finding.gain_s / num_steps)}, '
        f"{finding.share:.0%}</span><small>{kind}</small><br><b>{finding.cause}{where}</b>"
        f"<p>{escape(finding.evidence)}</p><p class=faint>{escape(finding.remedy)}</p></div>"
    )


def _compared(comparison: Comparison | None) -> str:
    if comparison is None:
        return ""
    rows = comparison.rows()
    head = "".join(f"<th>{name}</th>" for name in rows[0])
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row.values())}</tr>" for row in rows
    )
    notes = "".join(f"<p class=faint>{escape(note)}</p>" for note in comparison.notes)
    verdict = f"<h2>Beside the run before</h2><p>{escape(comparison.verdict)}</p>"
    return f"{verdict}<table><tr>{head}</tr>{body}</table><p class=faint>ms of a step</p>{notes}"


def _legend() -> str:
    return "".join(f"<span class=key><i class={term}></i>{term}</span>" for term in TERMS)


def _bars(found: Report) -> Iterator[str]:
    """Draw a mean step's terms by rank, to scale."""
    means = {
        rank: {term: mean(step.seconds[term] for step in own) for term in TERMS}
        for rank, own in found.steps.items()
    }
    longest_s = max(sum(terms.values()) for terms in means.values()) or 1.0
    for rank, terms in means.items():
        parts = "".join(
            f'<i class={term} style="width:{100 * s / longest_s:.2f}%" '
            f'title="{term} {_in_ms(s)}"></i>'
            for term, s in terms.items()
            if s
        )
        overlap = mean(step.overlap for step in found.steps[rank])
        numbers = f"{_in_ms(sum(terms.values()))}, {overlap:.0%} overlap"
        yield (
            f"<div class=row><span>rank {rank}</span><div class=bar>{parts}</div>"
            f"<small>{numbers}</small></div>"
        )


class _Timeline:
    """The last steps of the ranks that are most on the critical path, as SVG."""

    def __init__(self, found: Report) -> None:
        self.trace = found.trace
        self.path = Dependencies(found.trace).critical_path()
        self.arrivals = last_arrivals(found.trace)
        on_path: dict[int, float] = defaultdict(float)
        for segment in self.path:
            on_path[segment.rank] += segment.end_s - segment.start_s
        first = sorted(self.trace.ranks, key=lambda rank: -on_path[rank])[:_RANKS]
        self.ranks = [self.trace.ranks[rank] for rank in sorted(first)]
        self.start_s = min(
            own.steps[-_STEPS:][0][0] if own.steps else own.start_s for own in self.ranks
        )
        self.end_s = max(own.end_s for own in self.ranks)
        self.most_bytes = max((n for own in self.ranks for _, n in own.memory), default=0)
        self.height = _OWN + _FLIGHT + (_MEMORY if self.most_bytes else 0) + _GAP

    def x(self, at_s: float) -> float:
        """Return the pixels from the left, inside the frame."""
        share = (at_s - self.start_s) / ((self.end_s - self.start_s) or 1.0)
        return _LEFT + (_WIDTH - _LEFT) * min(1.0, max(0.0, share))

    def drawn(self) -> str:
        """Return the picture, and the labels in it."""
        tall = len(self.ranks) * self.height + 40
        lanes = [line for row, own in enumerate(self.ranks) for line in self._rank(own, row)]
        memory = ", and below it allocated bytes" if self.most_bytes else ""
        words = (
            f"{len(self.ranks)} of {len(self.trace.ranks)} ranks. Each has its own lane, in which "
            f"gaps are the host's; the thin lane below shows exchanges in flight{memory}. The line "
            "is the critical path."
        )
        inside = "".join([*self._axis(tall), *lanes, self._path()])
        frame = f'viewBox="0 0 {_WIDTH} {tall}" role=img aria-label="{escape(words)}"'
        return f"<p class=faint>{words}</p><svg {frame}>{inside}</svg>"

    def _axis(self, tall: int) -> Iterator[str]:
        """Draw a line at each step of the first rank, with the time since the first one drawn."""
        own = self.ranks[0]
        marks = [*(start for start, _ in own.steps[-_STEPS:]), self.end_s] if own.steps else []
        for at_s in marks or (self.start_s, self.end_s):
            x, anchor = self.x(at_s), "end" if at_s == self.end_s else "start"
            yield f'<line x1="{x:.1f}" x2="{x:.1f}" y1=0 y2="{tall - 20}" stroke-dasharray="3 3"/>'
            yield (
                f'<text class=faint x="{x:.1f}" y="{tall - 6}" text-anchor={anchor}>'
                f"{_in_ms(at_s - self.start_s)}</text>"
            )

    def _rank(self, own: RankTrace, row: int) -> Iterator[str]:
        top = row * self.height + 8
        yield f'<text x=0 y="{top + 18}">rank {own.rank}</text>'
        # As in breakdown: work comes first, then bytes that move, then waiting for a late rank.
        waits = sorted(self._waits(own), key=lambda w: w.label == TRANSFER)
        yield from self._boxes(waits, top, _OWN)
        yield from self._boxes([Span(w.start_s, w.end_s, w.kind) for w in own.work], top, _OWN)
        flight = sorted(
            (Span(e.posted_s, e.done_s, e.name) for e in own.exchanges if e.done_s > self.start_s),
            key=lambda span: span.start_s,
        )
        rows = rows_without_overlap(flight, 3)
        for number in sorted({*rows}):
            spans = [span for span, at in zip(flight, rows, strict=True) if at == number]
            yield from self._boxes(spans, top + _OWN + 2 + 5 * number, 4, TRANSFER)
        if own.memory and self.most_bytes:
            yield from self._memory(own, top + _OWN + _FLIGHT)

    def _waits(self, own: RankTrace) -> list[Span]:
        """Return the waits of a free lane: first for the last rank, and then for bytes."""
        spans = []
        for each in own.exchanges:
            here_s = min(max(self.arrivals[each.key][0], each.posted_s), each.done_s)
            late = BUBBLE if each.is_message else STRAGGLER
            spans.append(Span(each.posted_s, here_s, late))
            spans.append(Span(here_s, each.done_s, TRANSFER))
        return spans

    def _boxes(
        self, spans: Iterable[Span], top: float, high: float, css: str = ""
    ) -> Iterator[str]:
        """Draw a box for each span; spans of one label that would look like one are joined."""
        boxes: list[tuple[float, float, Span]] = []
        for span in spans:
            left, right = self.x(span.start_s), self.x(span.end_s)
            if left == right:
                continue
            if boxes and boxes[-1][2].label == span.label and left - boxes[-1][1] < 0.3:
                boxes[-1] = boxes[-1][0], right, span
            else:
                boxes.append((left, right, span))
        for left, right, span in boxes:
            yield (
                f'<rect class={css or span.label} x="{left:.1f}" y="{top:.1f}" '
                f'width="{max(0.3, right - left):.1f}" height="{high:.1f}"><title>'
                f"{escape(span.label)}</title></rect>"
            )

    def _memory(self, own: RankTrace, top: float) -> Iterator[str]:
        """Draw bytes over time: the most of each pixel."""
        most: dict[int, int] = {}
        for at_s, nbytes in own.memory:
            column = round(self.x(at_s))
            most[column] = max(nbytes, most.get(column, 0)) if at_s >= self.start_s else nbytes
        low, high = top + _MEMORY, _MEMORY - 6
        line = "".join(f"H{x}V{low - high * n / self.most_bytes:.1f}" for x, n in most.items())
        yield f'<path class=memory d="M{min(most)} {low}{line}H{_WIDTH}V{low}Z"/>'
        peak = max(most.values())
        yield f'<text class=faint x=0 y="{low - 8}">{_bytes(peak)}<title>peak</title></text>'

    def _path(self) -> str:
        row = {own.rank: n for n, own in enumerate(self.ranks)}
        points = [
            f"{self.x(at_s):.1f},{row[segment.rank] * self.height + 8 + _OWN / 2}"
            for segment in self.path
            if segment.rank in row and segment.end_s > self.start_s
            for at_s in (segment.start_s, segment.end_s)
        ]
        return f'<polyline class=path points="{" ".join(points)}"/>'


def _bytes(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"
