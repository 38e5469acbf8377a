"""The claims court: common claims about distributed training, judged by calc and real runs.

case = load_claims()["gpipe-10-4"]
case.claim, case.verdict             "GPipe with 10 stages and ...: 53%", "wrong"
findings(case)                       its exhibits, calculated and measured

A subject's claims are in labkit/course/SUBJECT/claims.toml. Each has the claim as people say it,
the verdict, the truth, the confusion, evidence and exhibits. Measured times are in
labkit/course/times.json, with the machine and the date.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import MISSING, dataclass, fields
from functools import cache
from types import MappingProxyType
from typing import Any, NamedTuple

from labkit.calc.units import GB, bytes_text, number_text, parse_quantity
from labkit.grade.catalog import COURSE, load_subjects
from labkit.interview import evidence as proofs
from labkit.interview.evidence import prove
from labkit.interview.recorded_times import times_of

TIMES = COURSE / "times.json"


class Verdict(NamedTuple):
    """Meaning of a verdict, and the outcomes of exhibits that it allows."""

    meaning: str
    stands: frozenset[bool]
    """{True} if all exhibits must support the claim, {False} if none may; both if some do."""


_ALL, _NONE, _SOME = frozenset({True}), frozenset({False}), frozenset({True, False})

VERDICTS: Mapping[str, Verdict] = MappingProxyType(
    {
        "right": Verdict("it holds as it is said", _ALL),
        "right with care": Verdict("right on a condition that it does not mention", _SOME),
        "half right": Verdict("one part of it is right, the other is not", _SOME),
        "under-specified": Verdict("it leaves out something that the answer depends on", _SOME),
        "misleading": Verdict("the observation is right, the explanation is wrong", _SOME),
        "units mixed": Verdict("its numbers do not measure the same thing", _NONE),
        "wrong": Verdict("what it says does not hold", _NONE),
    }
)
"""Verdicts by name, from right to wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Evidence for one number of a text. Exactly one of proof, source and pending is given."""

    says: str = ""
    """The number as the text writes it."""
    proof: str = ""
    """An expression of calc and runs that gives it."""
    source: str = ""
    """Publication of the number, if labkit cannot derive it."""
    pending: str = ""
    """The feature that labkit would need to derive it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exhibit:
    """One quantity as the claim gives it, as calc gives it, and as a run measures it.

    The claim stands if its number equals the proof's, rounded like the claim's. If the claim is in
    words ("slightly more"), it stands if the proof's number is within the bounds.
    """

    shows: str
    """The quantity that is counted, and the time at which it is counted."""
    claimed: str
    """The quantity by the claim: "53%", "the same"."""
    stands: bool
    """True if it supports the claim. A test compares this with the proof."""
    proof: str = ""
    """An expression of calc, or of runs if calc has no formula. Exactly one of `proof` and
    `published` is given."""
    published: str = ""
    """A figure from `source`."""
    source: str = ""
    run: str = ""
    """An expression of runs that measures what the proof predicts."""
    within: float = 0.0
    """The relative error allowed to the run: 0 for bytes and counts, more for times, which are
    recorded in times.json."""
    at_least: float | None = None
    more_than: float | None = None
    at_most: float | None = None
    unit: str = ""
    """Unit of shown numbers, if `claimed` has none."""

    @property
    def is_measured(self) -> bool:
        """True if a real run gives the number, or measures what the proof predicts."""
        return bool(self.run or self.proof and proofs.uses(self.proof, "runs"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A claim that circulates, its verdict, and the case."""

    key: str
    group: str
    """Claims of a group are tried together."""
    claim: str
    """The claim as people say it."""
    verdict: str
    """One of VERDICTS."""
    truth: str
    """The correct statement."""
    confusion: str
    """The two things that the claim confuses."""
    evidence: tuple[Evidence, ...]
    """Evidence for the numbers in `truth` and `confusion`."""
    exhibits: tuple[Exhibit, ...]
    topics: tuple[str, ...]
    """Topics of the question bank."""
    sources: tuple[str, ...]
    notebook: str = ""
    """The notebook that shows it at length; "" if there is none yet."""
    given: tuple[str, ...] = ()
    """Numbers of the text that are assumptions."""

    @property
    def text(self) -> str:
        """The text in which numbers need evidence."""
        return f"{self.truth}\n{self.confusion}"


_KINDS_OF_EVIDENCE = ("proof", "source", "pending")


class ClaimsError(ValueError):
    """A file of claims has an error. The message names the claim, the reason and the fix."""


@cache
def load_claims() -> Mapping[str, Claim]:
    """Return every claim of the package by its key, in the course's order."""
    claims: dict[str, Claim] = {}
    for subject in load_subjects().values():
        path = subject.folder / "claims.toml"
        if path.is_file():
            claims |= read_claims(path.read_text(encoding="utf-8"))
    return claims


def read_claims(text: str) -> Mapping[str, Claim]:
    """Return the claims of a TOML text by key. Raises ClaimsError if it has anything else."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ClaimsError(
            f"the TOML cannot be read: {error}; mind quotes, commas, and that each {{ ... }} stays "
            "on one line"
        ) from None
    entries = data.get("claims")
    if set(data) != {"claims"} or not isinstance(entries, list):
        raise ClaimsError("write the claims as [[claims]] tables, and nothing beside them")
    claims: dict[str, Claim] = {}
    for number, entry in enumerate(entries, start=1):
        claim = _claim(entry, number)
        if claim.key in claims:
            raise ClaimsError(f"{claim.key}: there are two of this key; give each its own")
        claims[claim.key] = claim
    return claims


def _claim(entry: dict[str, Any], number: int) -> Claim:
    known = entry.get("key")
    name = known if isinstance(known, str) and known else f"claim {number}"
    given = dict(entry)
    for key, kind in (("evidence", Evidence), ("exhibits", Exhibit)):
        given[key] = [_made(kind, item, f"{name}, {key}") for item in given.get(key, ())]
    claim: Claim = _made(Claim, given, name)
    _check(claim)
    return claim


def _made(kind: Any, entry: dict[str, Any], where: str) -> Any:
    """Make a `kind` from an entry's fields. Raises ClaimsError for unknown or missing ones."""
    allowed = {each.name: each for each in fields(kind)}
    if unknown := sorted(set(entry) - set(allowed)):
        raise ClaimsError(f"{where}: unknown {', '.join(unknown)}; there are {', '.join(allowed)}")
    needed = [name for name, each in allowed.items() if each.default is MISSING]
    if missing := [name for name in needed if name not in entry]:
        raise ClaimsError(f"{where}: there is no {', '.join(missing)}; write it")
    return kind(**{
        name: tuple(value) if isinstance(value, list) else value for name, value in entry.items()
    })  # fmt: skip


def _check(claim: Claim) -> None:
    """Raise ClaimsError for fields that contradict each other."""

    def fail(reason: str) -> ClaimsError:
        return ClaimsError(f"{claim.key}: {reason}")

    if claim.verdict not in VERDICTS:
        raise fail(f"verdict = {claim.verdict!r}; give one of {', '.join(VERDICTS)}")
    if not claim.exhibits:
        raise fail("there is no exhibit; a claim without a number cannot be tried")
    for item in claim.evidence:
        if sum(bool(getattr(item, kind)) for kind in _KINDS_OF_EVIDENCE) != 1:
            raise fail(f"the evidence of {item.says!r} needs one of proof, source and pending")
    for exhibit in claim.exhibits:
        if bool(exhibit.proof) == bool(exhibit.published):
            raise fail(f"the exhibit {exhibit.shows!r} needs a proof, or else a published figure")


@dataclass(frozen=True, slots=True)
class Finding:
    """An exhibit with its calculated and measured numbers, in base units."""

    exhibit: Exhibit
    found: float
    """The value by calc, or as published."""
    measured: float | None
    """The value by the run; None if there is none."""

    @property
    def stands(self) -> bool:
        """True if the value found supports the claim."""
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
        """True if the run measured the value that the proof predicts, within the exhibit's
        tolerance."""
        if self.measured is None:
            return True
        return abs(self.measured - self.found) <= (self.exhibit.within + 1e-9) * abs(self.found)

    @property
    def only_measured(self) -> bool:
        """True if calc has no formula, so that the proof itself is a run."""
        return bool(self.exhibit.proof) and not proofs.uses(self.exhibit.proof, "calc")

    @property
    def found_text(self) -> str:
        """The value by calc or a paper, written like the claim; "" if only a run can give it."""
        if self.exhibit.published:
            return f"{self.exhibit.published}, published"
        return "" if self.only_measured else shown(self.found, self.exhibit)

    @property
    def measured_text(self) -> str:
        """The measured value; marked with ~ if it depends on a clock."""
        if self.only_measured:
            return shown(self.found, self.exhibit)
        if self.measured is None:
            return ""
        mark = "~" if self.exhibit.within else ""
        return f"{mark}{shown(self.measured, self.exhibit)}"


class Record(NamedTuple):
    """Recorded times of the runs that measure times: starts and ends, in seconds.

    `python -m scripts.court_times --write` measures them again.
    """

    machine: str
    date: str
    times: dict[str, Any]
    """Times by run, with its arguments."""


@cache
def record() -> Record:
    """Return the package's record."""
    return Record(**json.loads(TIMES.read_text(encoding="utf-8")))


def findings(claim: Claim, *, measure: bool = True, remeasure: bool = False) -> list[Finding]:
    """Return each exhibit of a claim with its numbers. Raises BadProof if an expression fails.

    measure: execute the real runs, which takes some seconds, once for each run in a process. Bytes
    and counts are measured now. Times are read from the `record`, so they are the same on every
    machine. remeasure: measure the times now, too. Without torch nothing is measured, and exhibits
    that only a run can give are left out.
    """
    return list(_findings(claim, measure, remeasure))


def _findings(claim: Claim, measure: bool, remeasure: bool) -> Iterator[Finding]:
    can_run = proofs.can_run()
    for exhibit in claim.exhibits:
        if not can_run and exhibit.proof and proofs.uses(exhibit.proof, "runs"):
            continue
        if exhibit.published:
            found = parse_quantity(exhibit.published).value
        else:
            found = float(proofs.value(exhibit.proof))
        measured = None
        if measure and exhibit.run and can_run:
            with nullcontext() if remeasure else times_of(record().times):
                measured = float(proofs.value(exhibit.run))
        yield Finding(exhibit, found, measured)


def has_bounds(exhibit: Exhibit) -> bool:
    """Return whether the claim is in words, whose meaning the exhibit's bounds define."""
    return any(each is not None for each in (exhibit.at_least, exhibit.more_than, exhibit.at_most))


def shown(value: float, exhibit: Exhibit) -> str:
    """Write a number in the unit of the claim."""
    unit = exhibit.unit or exhibit.claimed.rstrip()
    if unit.endswith("%"):
        return f"{value:.1%}"
    if unit.endswith("B/s"):
        return f"{bytes_text(value)}/s"
    number = float(f"{value:.3g}")
    if unit.endswith("GB"):
        return f"{number_text(number / GB)} GB"
    return f"{number_text(number)}{'x' * unit.endswith('x')}"
