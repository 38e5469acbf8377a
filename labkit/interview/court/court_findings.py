"""Exhibits, calculated and measured."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from labkit.calc.units import GB, bytes_text, number_text, parse_quantity
from labkit.interview import proof as proofs
from labkit.interview.court.claim import Claim, Exhibit
from labkit.interview.evidence import prove
from labkit.interview.recorded_times import times_of


@dataclass(frozen=True, slots=True)
class Finding:
    """An exhibit with its numbers, in base units."""

    exhibit: Exhibit
    found: float
    """By calc, or as published."""
    measured: float | None
    """By the run; None where there is none."""

    @property
    def stands(self) -> bool:
        """Whether the claim is borne out, by what was found."""
        exhibit = self.exhibit
        if has_bounds(exhibit):
            return (
                (exhibit.at_least is None or self.found >= exhibit.at_least)
                and (exhibit.more_than is None or self.found > exhibit.more_than)
                and (exhibit.at_most is None or self.found <= exhibit.at_most)
            )
        if exhibit.published:
            return exhibit.published == exhibit.claimed
        return prove(exhibit.claimed, exhibit.proof).holds

    @property
    def agrees(self) -> bool:
        """Whether the run measured what the proof predicts, within the exhibit's tolerance."""
        if self.measured is None:
            return True
        return abs(self.measured - self.found) <= (self.exhibit.within + 1e-9) * abs(self.found)

    @property
    def only_measured(self) -> bool:
        """Whether calc has no formula, so that the proof itself is a run."""
        return bool(self.exhibit.proof) and not proofs.uses(self.exhibit.proof, "calc")

    @property
    def found_text(self) -> str:
        """What calc says, or a paper, as the claim would write it; "" where only a run can tell."""
        if self.exhibit.published:
            return f"{self.exhibit.published}, published"
        return "" if self.only_measured else shown(self.found, self.exhibit)

    @property
    def measured_text(self) -> str:
        """What was measured; marked with ~ where a clock has part in it."""
        if self.only_measured:
            return shown(self.found, self.exhibit)
        if self.measured is None:
            return ""
        mark = "~" if self.exhibit.within else ""
        return f"{mark}{shown(self.measured, self.exhibit)}"


class Record(NamedTuple):
    """What clocks read in the runs of exhibits that allow a tolerance: starts and ends, in seconds.

    `python -m scripts.court_times --write` makes it anew.
    """

    machine: str
    date: str
    times: dict[str, Any]
    """By run, with its arguments."""


@cache
def record() -> Record:
    """The one that the package has."""
    return Record(**json.loads((files(__package__) / "times.json").read_text(encoding="utf-8")))


def findings(claim: Claim, *, measure: bool = True, anew: bool = False) -> list[Finding]:
    """Each exhibit of a claim with its numbers. BadProof where an expression fails.

    measure: whether real runs are made, which takes some seconds; each is made once in a process.
    Bytes and counts are measured now. Times are those of the `record`, and so the same on every
    machine. anew: times, too, are measured now.
    """
    return list(_findings(claim, measure, anew))


def _findings(claim: Claim, measure: bool, anew: bool) -> Iterator[Finding]:
    for exhibit in claim.exhibits:
        if exhibit.published:
            found = parse_quantity(exhibit.published).value
        else:
            found = float(proofs.value(exhibit.proof))
        measured = None
        if measure and exhibit.run:
            with nullcontext() if anew else times_of(record().times):
                measured = float(proofs.value(exhibit.run))
        yield Finding(exhibit, found, measured)


def has_bounds(exhibit: Exhibit) -> bool:
    """Whether the claim is in words, and bounds say what they mean."""
    return any(each is not None for each in (exhibit.at_least, exhibit.more_than, exhibit.at_most))


def shown(value: float, exhibit: Exhibit) -> str:
    """A number in the unit in which the claim has it."""
    unit = exhibit.unit or exhibit.claimed.rstrip()
    if unit.endswith("%"):
        return f"{value:.1%}"
    if unit.endswith("B/s"):
        return f"{bytes_text(value)}/s"
    number = float(f"{value:.3g}")
    if unit.endswith("GB"):
        return f"{number_text(number / GB)} GB"
    return f"{number_text(number)}{'x' * unit.endswith('x')}"
