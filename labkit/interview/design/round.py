"""A design round: clarify, write the plan, have its numbers checked, and see a fact change.

round_ = DesignRound(briefing)
round_.clarify(2)                      the answer; it costs minutes
round_.propose("dp=64 tp=8 pp=4 ...")  whether it works and fits, by the planner
round_.predict("step", "12 s")         a number, judged: before the planner says it
round_.speed                           step, days and dollars of the layout
round_.tell("data", "...", {1, 3})     a part in words, with the points that were said
round_.meet(0, "14 s")                 a step after a change, or another layout

score       share of its points    asking what matters, and nothing else; each part in words
            0, 1/2, 1              the last layout: it does not fit; it fits; it keeps the deadline
            0 or 1                 a number within a quarter of calc's; a change
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import NamedTuple

from labkit import calc, progress
from labkit.calc.layout import Layout
from labkit.calc.plan import Estimate
from labkit.calc.result import Result
from labkit.calc.units import read
from labkit.interview.design.briefing import Briefing, Part

MINUTES = 45
"""Meant for a round."""
CLOSE = 0.25
"""A number counts as right within this share of calc's."""
NUMBERS = {
    "step": ("Seconds of a step of your layout", "s"),
    "days": ("Days of the training, interruptions included", "days"),
    "interval": ("Time between two checkpoints", "min"),
}
"""By name: the question and its unit."""


_UNREAD, _FIRST = "Not read", "Propose a layout that works first."
_NOT_COUNTED = (_UNREAD, _FIRST)


class Ruling(NamedTuple):
    """The ruling on a proposal or a number."""

    score: float
    text: str


@dataclass
class DesignRound:
    """A round with one briefing."""

    briefing: Briefing
    clock: Callable[[], float] = time.monotonic
    asked: list[int] = field(default_factory=list)
    """Places of the questions that were asked back."""
    proposals: list[tuple[str, Ruling]] = field(default_factory=list)
    numbers: dict[str, tuple[str, Ruling]] = field(default_factory=dict)
    written: dict[str, tuple[str, frozenset[int]]] = field(default_factory=dict)
    """By part: the text, and the numbers of the points that were said, from 1."""
    met: dict[int, tuple[str, Ruling]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._began_s = self.clock()
        self._is_recorded = False
        self.chosen: Estimate | None = None
        """The last layout that works."""

    @property
    def left_s(self) -> float:
        """Seconds left, less what questions have cost; below 0 afterwards."""
        cost = sum(self.briefing.questions[place].minutes for place in self.asked)
        return 60 * (MINUTES - cost) - (self.clock() - self._began_s)

    def clarify(self, place: int) -> str:
        """Ask one of the briefing's questions, from 0; the answer. Asking again costs nothing."""
        if place not in self.asked:
            self.asked.append(place)
        return self.briefing.questions[place].answer

    def propose(self, layout: str) -> Ruling:
        """Propose a layout, as often as wanted; the last one counts.

        It says how fast the layout is once step and days were predicted.
        """
        ruling = self._proposed(layout)
        self.proposals.append((layout, ruling))
        return ruling

    def _proposed(self, text: str) -> Ruling:
        job = self.briefing.job
        try:
            layout = Layout.parse(text)
            if layout.world_size != job.num_gpus:
                return Ruling(
                    0.0, f"It has {layout.world_size:,} GPUs, and the cluster {job.num_gpus:,}."
                )
            judged = calc.plan.verdict(job, layout)
        except ValueError as error:
            return Ruling(0.0, f"{error}.")
        if not judged:
            return Ruling(0.0, f"It does not work: {judged.reason}.")
        found = self.chosen = calc.plan.estimate(job, layout)
        fits = f"It fits: {found.memory} on the fullest GPU."
        notes = f" Note: {' '.join(found.warnings)}" if found.warnings else ""
        is_said = {"step", "days"} <= self.numbers.keys()
        text = f"{fits}{notes} {self.speed}" if is_said else f"{fits}{notes}"
        return Ruling(1.0 if self._is_in_time(found) else 0.5, text)

    def _is_in_time(self, found: Estimate) -> bool:
        return found.time.to("days") <= self.briefing.days

    @property
    def speed(self) -> str:
        """Step, days and dollars of the chosen layout, in words."""
        return "No layout works yet." if self.chosen is None else self.said(self.chosen)

    def said(self, found: Estimate) -> str:
        """Return step, days and dollars of a layout, in words."""
        verdict = "it keeps the deadline" if self._is_in_time(found) else "it is too late"
        return (
            f"{found.step} a step, MFU {found.mfu}, {found.time.to('days'):.3g} days of "
            f"{self.briefing.days:g}, {float(found.dollars):,.0f} dollars: {verdict}."
        )

    def predict(self, name: str, answer: str) -> Ruling:
        """Give a number of NUMBERS before calc does. The first one that can be read counts."""
        ruling = self._predicted(name, answer)
        if ruling.text.startswith(_NOT_COUNTED):
            return ruling
        self.numbers.setdefault(name, (answer, ruling))
        return self.numbers[name][1]

    def _predicted(self, name: str, answer: str) -> Ruling:
        if name == "interval":
            truth = self.briefing.interval_s
        elif self.chosen is None:
            return Ruling(0.0, _FIRST)
        else:
            truth = float(self.chosen.step if name == "step" else self.chosen.time)
        return _judged(answer, truth, NUMBERS[name][1])

    def tell(self, name: str, text: str, said: Collection[int]) -> Ruling:
        """Tell a part of the plan in words, and tick the points that were said, from 1."""
        part = self.part(name)
        self.written[name] = (text, frozenset(said) & frozenset(range(1, len(part.points) + 1)))
        share = len(self.written[name][1]) / len(part.points)
        return Ruling(share, " ".join(part.answer.split()))

    def part(self, name: str) -> Part:
        """Return a part of the briefing by its name."""
        return next(part for part in self.briefing.parts if part.name == name)

    def meet(self, place: int, answer: str) -> Ruling:
        """Answer a change, from 0: seconds of a step of the chosen layout after it."""
        change = self.briefing.changes[place]
        if self.chosen is None:
            return Ruling(0.0, _FIRST)
        try:
            truth = self.briefing.slowed(change, self.chosen)
        except ValueError as error:
            ruling = Ruling(0.0, f"The layout works no more: {error}. {change.why}")
        else:
            ruling = _judged(answer, truth, "s")
            if ruling.text.startswith(_NOT_COUNTED):
                return ruling
            ruling = Ruling(ruling.score, f"{ruling.text} {change.why}")
        self.met.setdefault(place, (answer, ruling))
        return self.met[place][1]

    @property
    def asking_score(self) -> float:
        """Share of the questions that matter that were asked, less those that do not."""
        questions = self.briefing.questions
        matter = [place for place, each in enumerate(questions) if each.matters]
        good = len(set(self.asked) & set(matter))
        return max(0.0, (good - (len(self.asked) - good)) / len(matter))

    @property
    def scores(self) -> dict[str, float]:
        """By part of the round: its score, 0 to 1; what was left out has 0."""
        found = {"clarifying": self.asking_score}
        found["layout"] = self.proposals[-1][1].score if self.proposals else 0.0
        found |= {name: self.numbers[name][1].score if name in self.numbers else 0.0
                  for name in NUMBERS}  # fmt: skip
        for part in self.briefing.parts:
            said = self.written.get(part.name, ("", frozenset()))[1]
            found[part.name] = len(said) / len(part.points)
        for place in range(len(self.briefing.changes)):
            met = self.met.get(place)
            found[f"change {place + 1}"] = met[1].score if met else 0.0
        return found

    @property
    def score(self) -> float:
        """The mean of all scores."""
        return sum(self.scores.values()) / len(self.scores)

    def finish(self) -> float:
        """Store the score, once; return it."""
        if not self._is_recorded:
            self._is_recorded = True
            progress.record("design", self.briefing.name, score=round(self.score, 3))
        return self.score


def _judged(answer: str, truth: float, unit: str) -> Ruling:
    try:
        typed = read(answer, unit)
    except ValueError as error:
        return Ruling(0.0, f"{_UNREAD}: {error}.")
    off = typed.number * typed.size / truth - 1
    shown = Result(truth, "seconds", "")
    if abs(off) <= CLOSE:
        return Ruling(1.0, f"Right: {shown}.")
    return Ruling(0.0, f"{'Too high' if off > 0 else 'Too low'}: {shown}.")
