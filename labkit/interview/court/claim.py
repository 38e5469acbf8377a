"""A claim as it circulates, with its verdict and everything that the verdict rests on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple


class Verdict(NamedTuple):
    """What a verdict means, and what the exhibits must then show."""

    meaning: str
    stands: frozenset[bool]
    """Whether exhibits bear the claim out: all of them, none, or some and some not."""


_ALL, _NONE, _SOME = frozenset({True}), frozenset({False}), frozenset({True, False})

VERDICTS: Mapping[str, Verdict] = MappingProxyType(
    {
        "right": Verdict("it holds as it is said", _ALL),
        "right with care": Verdict("right on a condition that it does not mention", _SOME),
        "half right": Verdict("one part of it is right, the other is not", _SOME),
        "under-specified": Verdict("no answer until something is named that it leaves out", _SOME),
        "misleading": Verdict("something is seen rightly, and explained wrongly", _SOME),
        "units mixed": Verdict("its numbers do not measure the same thing", _NONE),
        "wrong": Verdict("what it says does not hold", _NONE),
    }
)
"""By name, from right to wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One number of a text. Exactly one of proof, source and pending is given."""

    says: str = ""
    """As it stands in the text."""
    proof: str = ""
    """An expression of calc and runs that gives it."""
    source: str = ""
    """Where it was published, if nothing here can derive it."""
    pending: str = ""
    """What labkit would need to derive it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exhibit:
    """One thing that can be counted, as the claim has it, as calc has it, and as a run measures it.

    The claim stands if the number that it names is the proof's, rounded as the claim rounds it; or,
    where the claim is in words ("slightly more"), if the proof's number is within the bounds.
    """

    shows: str
    """What is counted, and when."""
    claimed: str
    """What the claim says of it: "53%", "the same"."""
    stands: bool
    """Whether it bears the claim out. Tested against the proof."""
    proof: str = ""
    """An expression of calc, or of runs where calc has no formula. Or else:"""
    published: str = ""
    """a figure from `source`."""
    source: str = ""
    run: str = ""
    """An expression of runs that measures what the proof predicts."""
    within: float = 0.0
    """The relative error allowed to the run: 0 for bytes and counts, more for times. Those are in
    times.json, with the machine and the date."""
    at_least: float | None = None
    more_than: float | None = None
    at_most: float | None = None
    unit: str = ""
    """To show numbers in, where `claimed` has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A claim that circulates, its verdict, and the case."""

    key: str
    group: str
    """Claims of a group are tried together."""
    claim: str
    """As it is said."""
    verdict: str
    """One of VERDICTS."""
    truth: str
    """What is right."""
    confusion: str
    """What was confused with what."""
    evidence: tuple[Evidence, ...]
    """Of the numbers in `truth` and `confusion`."""
    exhibits: tuple[Exhibit, ...]
    topics: tuple[str, ...]
    """Of the question bank."""
    sources: tuple[str, ...]
    notebook: str = ""
    """Which shows it at length; "" where there is none yet."""
    given: tuple[str, ...] = ()
    """Numbers of the text that are assumptions."""

    @property
    def text(self) -> str:
        """All that needs evidence."""
        return f"{self.truth}\n{self.confusion}"
