"""Open a case: train on 4 ranks with a random fault and without it, and judge the answer.

    briefing    The on-call engineer writes: since Tuesday a step takes 112 ms. Why?
    before      folder/slow/rank0.json ...      for Perfetto and `labkit profile`; on a throttled
                                                network trace.json, from the run's journal
                folder/page.html                breakdown and timeline, without the diagnosis
    answer      "straggler, rank 2, 28%"
    after       folder/without/rank0.json ...   the same run without that fault
                folder/answer.html              the diagnosis, and the two runs side by side

The gain is the share of a step that is saved without the fault. A replay of the trace predicts it
and the second run measures it. An answer is right if it is between the two, or at most 5 percentage
points outside.
"""

from __future__ import annotations

import contextlib
import io
import random
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from labkit import profile
from labkit.calc.units import Quantity
from labkit.comm import owned_folder
from labkit.inject import CATALOGUE, Fault, Jitter, timed_run
from labkit.interview.drills import Outcome, Question, Ruling
from labkit.interview.drills.question import Exhibit
from labkit.profile import Comparison, Report, Trace
from labkit.profile.bottleneck import FAULTS, Finding

WORLD_SIZE = 4
SHARES = {1: 0.4, 2: 0.4, 3: 0.2, 4: 0.12, 5: 0.4}
"""Seconds of a fault as a share of a healthy step, by difficulty."""
SECOND, UNEVEN = 0.15, 0.05
"""Share of the second fault at difficulty 5, and of the jitter at difficulty 4."""
TOLERANCE = 0.05
"""Largest allowed error of a predicted gain: 5 points."""
_RUNS = 3
"""Limit of attempts: a case whose trace does not show the fault clearly is run again."""
BUSY = "This machine was busy: the run shows the fault less clearly than it should."
_JOBS = {
    "ddp": "data-parallel job (DDP)",
    "zero3": "fully sharded job (ZeRO-3)",
    "tp": "tensor-parallel job",
    "pp": "pipeline of 4 stages (1F1B)",
    "moe": "mixture of experts, an expert per rank",
}
CALLERS = (
    "The on-call engineer writes",
    "A researcher asks in the channel of the cluster",
    "The team that pays for the GPUs calls",
    "The dashboard of step times has raised an alarm",
)
DAYS = "Monday Tuesday Wednesday Thursday Friday".split()


SUSPECTS = {
    "slow rank": (1, 2, 3, 4, 5),
    "noisy neighbour": (2, 3),
    "slow loader": (1, 3, 4, 5),
    "one slow loader": (2, 3),
    "pauses of all hosts": (1, 3, 5),
    "pauses of one host": (2, 3),
    ".item() in each step": (1, 3, 4),
    "uneven shards": (2, 3, 5),
    "skewed router": (3,),
    "unbalanced stage": (3,),
    "tiny buckets": (3,),
    "one huge bucket": (3,),
    "slow link, pp": (3,),
    "slow link, tp": (3,),
}
"""Difficulties at which a fault may be drawn, by its name in inject.CATALOGUE."""


@dataclass(frozen=True)
class Drawn:
    """A drawn case. Its first fault costs most; the others stay in the run without the first."""

    difficulty: int
    seed: int
    faults: tuple[Fault, ...]
    strategy: str
    on_network: bool = False


@dataclass(frozen=True, kw_only=True)
class Case(Question):
    """A case whose runs are done. The answer is a line of words, which `judge` judges."""

    drawn: Drawn
    findings: list[Finding]
    gains: tuple[float, float]
    """Gains as shares of a step: the smaller and the larger of predicted and measured."""

    @property
    def answer_text(self) -> str:
        """`straggler, rank 2, 26% to 29%`."""
        fault, (low, high) = self.drawn.faults[0], self.gains
        return f"{fault.cause}, {_where(fault.rank)}, {low:.0%} to {high:.0%}"

    @property
    def is_clear(self) -> bool:
        """True if the report puts the fault first, and replay and runs agree on its gain."""
        first, fault, (low, high) = self.findings[0], self.drawn.faults[0], self.gains
        is_named = (first.cause, first.rank) == (fault.cause, fault.rank)
        return is_named and high - low <= 2 * TOLERANCE

    def judge(self, text: str) -> Ruling:
        """Judge each part of `cause, rank, gain in percent`, in any order."""
        said = text.lower()
        fault, (low, high) = self.drawn.faults[0], self.gains
        asks_rank = self.drawn.difficulty > 1
        cause = next((each for each in FAULTS if re.search(rf"\b{each}\b", said)), None)
        rank = re.search(r"\brank\s*(\d+)", said) or re.search(
            r"\b()(?:all|every|no) ranks?\b", said
        )
        percent = re.search(r"(\d+(?:\.\d+)?)\s*(?:%|percent)", said)
        if cause is None or percent is None or (rank is None and asks_rank):
            return Ruling(Outcome.UNREADABLE, f"Name all that is asked for: {_example(asks_rank)}.")
        gain = float(percent[1]) / 100
        hints = {}
        if cause != fault.cause:
            hints["cause"] = self._about(cause)
        if asks_rank and rank and (int(rank[1]) if rank[1] else None) != fault.rank:
            hints["rank"] = "Which ranks differ from the others, and for which do others wait?"
        if not low - TOLERANCE <= gain <= high + TOLERANCE:
            hints["gain"] = f"{gain:.0%} is too {'high' if gain > high else 'low'}."
        if not hints:
            return Ruling(Outcome.RIGHT, f"Right: {self.answer_text}.")
        right = [
            part
            for part in ("cause", *(["rank"] if asks_rank else []), "gain")
            if part not in hints
        ]
        words = f"Right: {', '.join(right) or 'nothing yet'}. Not right: {', '.join(hints)}."
        return Ruling(Outcome.WRONG, " ".join([words, *filter(None, hints.values())]))

    def _about(self, cause: str) -> str:
        """Return what the trace shows of a cause that is not the right answer; "" if nothing."""
        if cause in [each.cause for each in self.drawn.faults[1:]]:
            return f"There is {cause} too, but another fault costs more."
        found = next((each for each in self.findings if each.cause == cause), None)
        return f"Without {cause} the replay gains {found.share:.0%}." if found else ""


def open_case(difficulty: int, seed: int) -> Case:
    """Draw a case, and run it with its fault and without. The same seed draws the same."""
    drawn = draw(difficulty, seed)
    # 11 MB. They stay when the command ends, to be opened in a browser; the next case removes them.
    folder = owned_folder.make(Path(tempfile.gettempdir()), "case")
    for _ in range(_RUNS):
        slow, without = (
            _recorded(folder / name, drawn, faults)
            for name, faults in (("slow", drawn.faults), ("without", drawn.faults[1:]))
        )
        case = case_of(drawn, slow, without, folder)
        if case.is_clear:
            return case
    return replace(case, steps=(*case.steps, BUSY))


def draw(difficulty: int, seed: int) -> Drawn:
    """Draw the faults and the strategy of a case."""
    rng = random.Random(f"case {difficulty} {seed}")
    suspects = [CATALOGUE[name] for name, levels in SUSPECTS.items() if difficulty in levels]
    suspect = rng.choice(suspects)
    faults = [*suspect.make(rng.randrange(WORLD_SIZE), SHARES[difficulty])]
    if difficulty == 4:
        faults.append(Jitter(None, UNEVEN))
    if difficulty == 5:
        more = [each.make(rng.randrange(WORLD_SIZE), SECOND)[-1] for each in suspects]
        faults.append(rng.choice([each for each in more if each.cause != faults[0].cause]))
    is_simple = difficulty in (1, 2, 5)
    strategy = "ddp" if is_simple else rng.choice(suspect.strategies)
    return Drawn(difficulty, seed, tuple(faults), strategy, suspect.on_network)


def _recorded(folder: Path, drawn: Drawn, faults: Sequence[Fault]) -> Trace:
    """Train with these faults. Write the files to the folder, and return the trace."""
    with contextlib.redirect_stdout(io.StringIO()):  # drop notes on messages that arrived late
        return timed_run(
            *faults, strategy=drawn.strategy, on_network=drawn.on_network, folder=folder
        )


def case_of(drawn: Drawn, slow: Trace, without: Trace, folder: Path) -> Case:
    """Make the case from the traces of its two runs, and write its pages to the folder."""
    report, comparison = profile.report(slow), profile.compare(without, slow)
    fault, findings = drawn.faults[0], report.findings
    finding = next((each for each in findings if each.cause == fault.cause), findings[0])
    measured = max(0.0, 1 - comparison.before_s / comparison.after_s)
    low, high = sorted((finding.share, measured))
    page = profile.page(replace(report, findings=[]))
    answer_page = profile.page(report, comparison)
    for name, text in (("page.html", page), ("answer.html", answer_page)):
        (folder / name).write_text(text, encoding="utf-8")
    return Case(
        drill=f"case_{drawn.difficulty}",
        seed=drawn.seed,
        prompt=_briefing(drawn, comparison),
        givens={},
        answer=Quantity(measured, ""),
        unit="",
        unit_size=1.0,
        digits=None,
        steps=tuple(_steps(drawn, finding, comparison)),
        traps=(),
        exhibit=Exhibit(_exhibit_text(report, folder), page),
        proof=Exhibit(_proof_text(comparison, folder), answer_page),
        drawn=drawn,
        findings=findings,
        gains=(low, high),
    )


def _briefing(drawn: Drawn, comparison: Comparison) -> str:
    rng = random.Random(drawn.seed)
    before = f" instead of {_ms(comparison.before_s)}" if drawn.difficulty <= 2 else ""
    asks_rank = drawn.difficulty > 1
    where = ", on which rank," if asks_rank else ""
    two = " There are two faults: name the one that costs more." if drawn.difficulty == 5 else ""
    job = _JOBS[drawn.strategy]
    return (
        f"{rng.choice(CALLERS)}: since {rng.choice(DAYS)} a step of our {job} takes "
        f"{_ms(comparison.after_s)}{before}. What is the cause{where} and by how many percent does "
        f"a step get shorter without it?{two} The gain may be off by {100 * TOLERANCE:.0f} points. "
        f"Answer in one line, such as {_example(asks_rank)}. Causes: {', '.join(FAULTS)}."
    )


def _example(asks_rank: bool) -> str:
    return "'link, rank 9, 3%', or 'link, all ranks, 3%'" if asks_rank else "'link, 3%'"


def _steps(drawn: Drawn, finding: Finding, comparison: Comparison) -> list[str]:
    fault, *rest = drawn.faults
    return [
        f"Injected: {fault}{', beside ' + ' and '.join(map(str, rest)) if rest else ''}.",
        f"In the trace: {finding.evidence} Without it the replay gains {finding.share:.0%}.",
        f"Beside a run without it: {comparison.verdict}",
        f"What helps: {finding.remedy}.",
    ]


def _exhibit_text(report: Report, folder: Path) -> str:
    return (
        f"\nMilliseconds of a step, on average\n{table(report.rows())}\n"
        f"{folder / 'page.html'} shows the timeline.\n"
        f"{folder / 'slow'} has the traces: ui.perfetto.dev opens them.\n"
        "`labkit profile` names the cause, of traces by rank: try without it first.\n\n"
    )


def _proof_text(comparison: Comparison, folder: Path) -> str:
    return (
        f"\nMilliseconds of a step, without the fault (before) and with it (after)\n"
        f"{table(comparison.rows())}\n{folder / 'answer.html'} shows the same.\n\n"
    )


def table(rows: Sequence[dict[str, str]]) -> str:
    """Return rows with the same names as aligned columns."""
    lines = [list(rows[0]), *([*row.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines)]
    return "\n".join(
        " ".join(cell.rjust(width) for cell, width in zip(line, widths)) for line in lines
    )


def _where(rank: int | None) -> str:
    return "all ranks" if rank is None else f"rank {rank}"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.0f} ms"
