"""The Verdict that `check` returns: the outcome, the mistake by name, and what to do next.

The text of a pass and of a stub is the same every time (no seed, no seconds), so that a notebook
that shows it can be compared with what it showed before.
"""

import enum
import html
from dataclasses import dataclass

from labkit.comm.operation import Site
from labkit.doctor import sources
from labkit.grade.catalog import Exercise


class Outcome(enum.Enum):
    """The six ways in which a check ends; `value` is its text."""

    NOT_ATTEMPTED = "not attempted"
    WRONG = "wrong"
    OVER_BUDGET = "over budget"
    CRASHED = "crashed"
    HUNG = "hung"
    PASSED = "passed"


@dataclass(frozen=True, slots=True)
class Finding:
    """One recognised mistake: its name, the cause, and the first case that shows it."""

    outcome: Outcome
    diagnosis: str
    """Its name, the same every time: `ignores the remainder of an uneven size`."""
    explanation: str
    """The cause, in plain words."""
    first_seen: str = ""
    """The first case that shows it: world size, input, rank, and got against expected."""
    hint: int = 1
    """Number of the hint to read next, 1 to 3; 0 if the mistake is not about the subject."""
    where: Site | None = None
    """The learner's line, where one line is to blame."""
    picture: str = ""
    """Lines in a fixed-width font that show the mistake, such as a schedule's grid."""
    details: str = ""
    """Longer evidence: a traceback, or the doctor's verdict on a hang."""
    printed: str = ""
    """The code's output during that case."""


_COLOURS = {
    Outcome.PASSED: "#2e7d32",
    Outcome.NOT_ATTEMPTED: "#616161",
    Outcome.OVER_BUDGET: "#b26a00",
}
_FAILED_COLOUR = "#b3261e"
# In pages of nbconvert, <pre> inherits the text's proportional font, and columns do not align.
_FONT = "font-family:monospace"


@dataclass(frozen=True, slots=True, repr=False)
class Verdict:
    """The result of one check. It is true after a pass: `assert check("scan")`."""

    exercise: Exercise
    finding: Finding | None
    """The mistake; None after a pass."""
    shown: str
    """Facts that a pass has shown, and the number of cases; empty after a mistake."""
    seed: int
    """Seed of the inputs: check(name, seed=...) repeats them."""
    call: str
    """The call that repeats this check, same inputs included; empty where nothing was run."""
    next_name: str = ""
    """The exercise after this one in the catalog; empty after the last."""

    @property
    def outcome(self) -> Outcome:
        """How the check ended."""
        return Outcome.PASSED if self.finding is None else self.finding.outcome

    @property
    def diagnosis(self) -> str | None:
        """The mistake's name; None after a pass."""
        return None if self.finding is None else self.finding.diagnosis

    def __bool__(self) -> bool:
        return self.outcome is Outcome.PASSED

    @property
    def headline(self) -> str:
        """`scan: wrong: the tensor you sent changed before the send completed`"""
        name = f"{self.exercise.name}: {self.outcome.value}"
        return name if self.finding is None else f"{name}: {self.finding.diagnosis}"

    @property
    def paragraphs(self) -> list[tuple[str, str]]:
        """The lines below the headline: (label, text), in order."""
        finding, name = self.finding, self.exercise.name
        if finding is None:
            return [
                ("Shown", _ended(self.shown)),
                ("Say it", self.exercise.say),
                ("They may ask next", "\n".join(f"- {q}" for q in self.exercise.follow_ups)),
                *([("Next exercise", self.next_name)] if self.next_name else []),
            ]
        if finding.outcome is Outcome.NOT_ATTEMPTED:
            return [("Next", _ended(finding.explanation)), ("Stuck", f'hint("{name}")')]
        where = "" if finding.where is None else sources.place(finding.where)
        found = [
            ("Why", _ended(finding.explanation)),
            ("Line", where),
            ("First seen", finding.first_seen),
            ("Picture", finding.picture),
            ("Printed", finding.printed),
            ("Details", finding.details),
            ("Read next", f'hint("{name}", {finding.hint})' if finding.hint else ""),
            ("Repeat", self.call),
        ]
        return [(label, text) for label, text in found if text]

    def __repr__(self) -> str:
        lines = [self.headline]
        for label, text in self.paragraphs:
            if "\n" in text:
                lines += [f"  {label}:", *(f"    {line}" for line in text.splitlines())]
            else:
                lines.append(f"  {label}: {text}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Return the verdict as HTML, for notebooks."""
        colour = _COLOURS.get(self.outcome, _FAILED_COLOUR)
        rows = []
        for label, text in self.paragraphs:
            shown = html.escape(text)
            if label in ("Details", "Printed"):
                # The label is part of what is clicked: <details> begins a line of its own.
                rows.append(
                    f'<details style="margin-top:.4em"><summary><b>{label}.</b> show</summary>'
                    f'<pre style="{_FONT}">{shown}</pre></details>'
                )
                continue
            if label == "Picture":
                shown = f'<pre style="margin:0;overflow-x:auto;{_FONT}">{shown}</pre>'
            elif label in ("Read next", "Repeat", "Stuck"):
                shown = f"<code>{shown}</code>"
            rows.append(
                f'<div style="margin-top:.4em"><b>{label}.</b> '
                f'<span style="white-space:pre-line">{shown}</span></div>'
            )
        return (
            f'<div style="border-left:4px solid {colour};padding:.2em .8em;max-width:60em">'
            f'<div style="color:{ink(colour)};font-weight:600">{html.escape(self.headline)}</div>'
            f"{''.join(rows)}</div>"
        )


def _ended(text: str) -> str:
    """Add a full stop, unless the text ends with one, or with one before closing brackets."""
    return text if text.rstrip(")").endswith(".") else f"{text}."


def ink(colour: str) -> str:
    """Return a CSS colour for text: `colour`, mixed with the colour of the surrounding text.

    The mixture is darker than `colour` on a light page, and lighter on a dark one.
    """
    return f"color-mix(in srgb, {colour} 55%, currentColor)"
