"""The report of an interview by topic, as Markdown and as a page of HTML.

score of a question: share of the rubric's points that were said
         drill:      1 at the first try, 1/2 at the second, else 0
         exercise:   1 if it passed
         design:     the mean of its parts
Each item counts by its planned minutes. An item on show when the interview was ended counts 0, and
is not done. There is a verdict once half of the plan is done, by items or by minutes.
As a file it is Markdown or HTML, by the ending of the name.
"""

from dataclasses import dataclass
from html import escape
from pathlib import Path

from labkit.grade.catalog import load_catalog
from labkit.interview.cards import load_bank
from labkit.interview.mock.plan import CASE, DESIGN, DRILL, QUESTION, STORY, Item, Plan, kind_of
from labkit.interview.page import html_of

_VERDICTS = (
    (0.85, "A strong interview at this level: try the next one."),
    (0.65, "You would get through. What is below would make it a strong one."),
    (0.4, "Half of it is there. Work through what is below, and come back in a few days."),
    (0.0, "Too early at this level. Begin with the topics below."),
)
GIVEN_UP = "given up: the interview was ended here"
"""Missing part of an item that was shown and not finished."""
_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:46em;margin:2em auto;padding:0 1em;"
    "color:#222;background:#fff}table{border-collapse:collapse}td,th{padding:4px 12px;"
    "border-bottom:1px solid #ccc;text-align:left}"
    "@media(prefers-color-scheme:dark){body{color:#ddd;background:#181818}}"
)


@dataclass(frozen=True, slots=True)
class Taken:
    """Result of one item."""

    item: Item
    score: float
    """0 to 1."""
    missed: tuple[str, ...]
    seconds: float


@dataclass(frozen=True)
class Report:
    """Report on an interview that is over, or was ended."""

    plan: Plan
    taken: tuple[Taken, ...]
    seconds: float

    @property
    def score(self) -> float:
        """Score of all items taken, 0 to 1; 0 if there are none."""
        return _mean(self.taken)

    @property
    def by_group(self) -> dict[str, tuple[float, int]]:
        """Group of topics -> (score, items), the weakest first."""
        groups: dict[str, list[Taken]] = {}
        for each in self.taken:
            groups.setdefault(each.item.group, []).append(each)
        found = {group: (_mean(each), len(each)) for group, each in groups.items()}
        return dict(sorted(found.items(), key=lambda pair: pair[1][0]))

    @property
    def done(self) -> tuple[Taken, ...]:
        """Items that were not given up by ending the interview."""
        return tuple(each for each in self.taken if each.missed != (GIVEN_UP,))

    @property
    def done_minutes(self) -> int:
        """Minutes that were meant for these items."""
        return sum(each.item.minutes for each in self.done)

    @property
    def verdict(self) -> str:
        """The verdict in a sentence."""
        if not self.done:
            return "Nothing was answered."
        is_half = 2 * len(self.done) >= len(self.plan.items)
        if not is_half and 2 * self.done_minutes < self.plan.planned_minutes:
            return "Less than half of the plan was done: too little to judge this level by."
        return next(said for least, said in _VERDICTS if self.score >= least)

    @property
    def markdown(self) -> str:
        """The report, to be kept or sent."""
        plan, num, num_done = self.plan, len(self.taken), len(self.done)
        lines = [
            f"# Mock interview: {plan.level}, {plan.minutes} minutes",
            "",
            f"**{self.score:.0%}** of what was asked. {self.verdict}",
            "",
            f"{num_done} of {len(plan.items)} items done, {self.done_minutes} of "
            f"{plan.planned_minutes} planned minutes, in {_minutes(self.seconds)}; `labkit mock "
            f"--minutes {plan.minutes} --level {plan.level} --seed {plan.seed}` asks the same, but "
            "for an exercise that was passed since.",
        ]
        if self.taken:
            lines += ["", "## By topic", "", "| topic | asked | score |", "|---|---|---|"]
            rows = self.by_group.items()
            lines += [f"| {group} | {count} | {score:.0%} |" for group, (score, count) in rows]
            lines += ["", "## What was asked", ""]
            for each in self.taken:
                lines += _answer_lines(each)
        if num < len(plan.items):
            rest = ", ".join(f"{item.kind} {item.name}" for item in plan.items[num:])
            lines += ["", f"Not reached: {rest}."]
        return "\n".join([*lines, ""])

    @property
    def html(self) -> str:
        """The report as a complete HTML page."""
        return page_of(f"Mock interview: {self.plan.level}", self.markdown)


def page_of(title: str, markdown: str, more: str = "") -> str:
    """Return a complete HTML page. more: HTML at its end."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>"
        f"<body>{html_of(markdown)}{more}</body></html>\n"
    )


def _mean(taken: list[Taken] | tuple[Taken, ...]) -> float:
    minutes = sum(each.item.minutes for each in taken)
    return sum(each.score * each.item.minutes for each in taken) / minutes if minutes else 0.0


def _answer_lines(each: Taken) -> list[str]:
    item = each.item
    lines = [f"- {_title(item)} ({item.kind} `{item.name}`): **{each.score:.0%}**, "
             f"{_minutes(each.seconds)}"]  # fmt: skip
    lines += [f"    - missing: {missed}" for missed in each.missed]
    return lines + ([f"    - {_again(item)}"] if each.score < 1 else [])


def _title(item: Item) -> str:
    if item.kind in (QUESTION, STORY):
        return load_bank()[item.name].prompt
    if item.kind == DESIGN:
        return f"Design round {item.name}"
    if item.kind in (DRILL, CASE):
        return kind_of(item).title
    return load_catalog()[item.name].title


def _again(item: Item) -> str:
    """Say where to read about an item, and how to be asked again."""
    if item.kind == DESIGN:
        return f"`labkit design {item.name}`"
    if item.kind in (QUESTION, STORY):
        card = load_bank()[item.name]
        where = f"`{card.place}`, then " if card.place else ""
        return f"{where}`labkit cards {card.id}`"
    if item.kind in (DRILL, CASE):
        return f"`{kind_of(item).command}`"
    return f"`labkit hint {item.name}`, `labkit check {item.name}`"


def _minutes(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


_FORMS = {".md": "markdown", ".html": "html"}


def require_report_name(file: Path) -> None:
    """Raise ValueError unless a report can have this name; asked before an interview."""
    if file.suffix not in _FORMS:
        raise ValueError(f"{file}: give a name that ends in {' or '.join(_FORMS)}")
    if not file.parent.is_dir():
        raise ValueError(f"{file}: there is no folder {file.parent}")


def write_report(report: Report, file: Path, *, replace: bool = False) -> None:
    """Write the report. ValueError as above, FileExistsError unless `replace`, OSError."""
    require_report_name(file)
    with file.open("w" if replace else "x", encoding="utf-8") as opened:
        opened.write(getattr(report, _FORMS[file.suffix]))
