"""A question card, read from labkit/course/SUBJECT/cards.md, and the topics that cards cover.

+++                             a card begins: TOML follows
id = "co-8"
...
follow_ups = ["..."]            questions alone; or at the end of the TOML, with answers,
[[follow_ups]]                  a table for each
kind = "apply"
question = "..."
answer = "..."
+++                             the TOML ends: Markdown follows, up to the next card
**In a minute.** ...
**Deeper.** ...
**The common mistake.** ...
"""

import re
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from labkit.grade import catalog
from labkit.grade.catalog import load_subjects


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic of interviews."""

    id: str
    title: str
    group: str
    """The title of its subject."""
    subject: str
    """The name of the folder in which its cards, drills and exercises are."""
    notebook: str = ""
    """"" if there is none yet."""
    section: str = ""
    """The heading in the notebook under which it is shown."""
    contradicts: bool = False
    """True if tools and papers count differently; the cards then say who counts how."""

    @property
    def place(self) -> str:
        """Section that shows it, "notebooks/PAGE.ipynb#Heading"; "" if there is none yet."""
        return f"notebooks/{self.notebook}.ipynb#{anchor(self.section)}" if self.notebook else ""


def anchor(heading: str) -> str:
    """Return the part of a link behind #, as Jupyter makes it: `Of-what?`."""
    return quote(heading.replace(" ", "-"), safe="-?,:'!")


def load_topics() -> dict[str, Topic]:
    """Return every topic by its id, in the course's order."""
    topics = [
        Topic(group=subject.title, subject=subject.name, **entry)
        for subject in load_subjects().values()
        for entry in subject.topics
    ]
    return {topic.id: topic for topic in topics}


CHAIN = ("recall", "apply", "analyse", "design")
"""Kinds of follow-ups, in the order in which they are asked: say what it is, as the card itself
does; find a number; say what changes if something else does; design with it."""
KINDS = ("concept", "number", "debugging", "design", "coding")
"""Kinds of questions, as companies ask them."""
ROLES = ("ml", "infrastructure", "research")
"""Roles that are asked: ML engineer, infrastructure engineer, researcher."""
LEVELS = {1: "everyone", 2: "senior", 3: "expert"}


SECTIONS = ("In a minute.", "Deeper.", "The common mistake.")


@dataclass(frozen=True, slots=True)
class Evidence:
    """Evidence for one number or statement of a card: exactly one of proof, source, pending."""

    says: str = ""
    """The number as in the text; "" for a pending item that is about no single number."""
    proof: str = ""
    """An expression of calc and runs."""
    source: str = ""
    """Publication of a figure that labkit cannot derive."""
    pending: str = ""
    """The feature that labkit would need."""


@dataclass(frozen=True, slots=True)
class FollowUp:
    """A question that comes after the answer. Its own answer may be missing."""

    question: str
    kind: str = ""
    """One of CHAIN; "" is asked first."""
    answer: str = ""
    """40 to 80 words, in Markdown."""
    rubric: tuple[str, ...] = ()
    """Two to four points that an interviewer listens for."""
    evidence: tuple[Evidence, ...] = ()
    """Evidence for the numbers of its answer that the card does not have."""


@dataclass(frozen=True, slots=True)
class Card:
    """One question, with its answer at three depths."""

    id: str
    """The id of its topic, "co-8", or with a letter added, "co-8b"; of a follow-up, "co-8/2"."""
    difficulty: int
    """1 for everyone, 2 senior, 3 expert."""
    kind: str
    """One of KINDS."""
    roles: tuple[str, ...]
    """Some of ROLES."""
    prompt: str
    minute: str
    """The spoken answer of a minute, in Markdown like the other texts."""
    deeper: str
    mistake: str
    evidence: tuple[Evidence, ...]
    rubric: tuple[str, ...]
    """Points that an interviewer listens for."""
    follow_ups: tuple[FollowUp, ...]
    sources: tuple[str, ...]
    given: tuple[str, ...] = ()
    """Numbers of the text that are assumptions; the text says so."""
    exercise: str = ""
    file: str = ""
    line: int = 0
    """Line of the file at which the card begins."""

    @property
    def topic(self) -> str:
        """The id of its topic: "co-8" for "co-8b"."""
        card = self.id.partition("/")[0]
        return card.rstrip("bcdefghijklmnopqrstuvwxyz") or card

    @property
    def place(self) -> str:
        """Section that teaches its topic, "notebooks/PAGE.ipynb#Heading"; "" if there is none."""
        return load_topics()[self.topic].place

    @property
    def level(self) -> str:
        """Its level: everyone, senior or expert."""
        return LEVELS[self.difficulty]

    @property
    def chain(self) -> tuple["Card", ...]:
        """Its follow-ups that have an answer, in the order of CHAIN, as cards: "co-8/1" and so on.

        The number is the place in the file.
        """
        numbered = [(n, each) for n, each in enumerate(self.follow_ups, 1) if each.answer]
        numbered.sort(key=lambda pair: ("", *CHAIN).index(pair[1].kind))
        return tuple(
            replace(
                self,
                id=f"{self.id}/{place}",
                prompt=each.question,
                minute=each.answer,
                deeper="",
                mistake="",
                evidence=each.evidence,
                rubric=each.rubric,
                follow_ups=(),
            )
            for place, each in numbered
        )

    @property
    def all_evidence(self) -> tuple[Evidence, ...]:
        """Its evidence, and that of the answers to its follow-ups."""
        return self.evidence + tuple(each for one in self.follow_ups for each in one.evidence)

    @property
    def text(self) -> str:
        """The texts of the answer, in which numbers need evidence."""
        return "\n\n".join((self.minute, self.deeper, self.mistake))


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem of the bank: its place, the reason, and a fix."""

    file: str
    line: int
    card: str
    reason: str
    fix: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.card or 'no card'}: {self.reason}; {self.fix}"


class CardError(ValueError):
    """The bank cannot be used as it is. `problems` has every reason."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = problems


_FENCE = "+++"
_REQUIRED = (
    *("id", "difficulty", "kind", "roles", "prompt"),
    *("evidence", "rubric", "follow_ups", "sources"),
)
_KNOWN = (*_REQUIRED, "given", "exercise")
_HEADING = re.compile(rf"^\*\*({'|'.join(map(re.escape, SECTIONS))})\*\*\s*", re.M)
_AT_LINE = re.compile(r" \(at line (\d+), column \d+\)$")


@dataclass(frozen=True, slots=True)
class _Block:
    """One card as text: its two halves, and the lines of the file at which they begin."""

    matter: str
    matter_line: int
    body: str
    body_line: int


def read_bank(course: Path | None = None) -> tuple[list[Card], list[Problem]]:
    """Return every card of a folder of subjects, the package's own by default, and the problems."""
    cards, problems = [], []
    for subject in catalog.load_subjects():
        path = (course or catalog.COURSE) / subject / "cards.md"
        if path.is_file():
            found, wrong = read_file(f"{subject}/cards.md", path.read_text(encoding="utf-8"))
            cards += found
            problems += wrong
    return cards, problems


def load_bank(course: Path | None = None) -> dict[str, Card]:
    """Return every card by its id. CardError if one cannot be read."""
    cards, problems = read_bank(course)
    if problems:
        raise CardError(problems)
    return {card.id: card for card in cards}


def read_file(name: str, text: str) -> tuple[list[Card], list[Problem]]:
    """Return the cards of one file, and its problems."""
    cards, problems = _parsed(name, text)
    return list(cards), list(problems)


@lru_cache(maxsize=64)  # a text is parsed once: each drill, mock and page asks for all cards
def _parsed(name: str, text: str) -> tuple[tuple[Card, ...], tuple[Problem, ...]]:
    cards: list[Card] = []
    problems: list[Problem] = []
    try:
        for block in _blocks(name, text):
            try:
                cards.append(_card(name, block))
            except CardError as error:
                problems += error.problems
    except CardError as error:
        problems += error.problems
    return tuple(cards), tuple(problems)


def _blocks(name: str, text: str) -> Iterator[_Block]:
    lines = text.splitlines()
    fences = [number for number, line in enumerate(lines) if line.rstrip() == _FENCE]
    before = "\n".join(lines[: fences[0]] if fences else lines).strip()
    if before:
        reason = f"text that belongs to no card: {before[:40]!r}"
        raise _error(name, 1, "", reason, f"begin a card with a line {_FENCE}")
    if len(fences) % 2:
        reason = f"the {_FENCE} in this line has no partner"
        fix = f"write {_FENCE} in lines of their own before and after the TOML of every card"
        raise _error(name, fences[-1] + 1, "", reason, fix)
    ends = [*fences[2::2], len(lines)]
    for opened, closed, end in zip(fences[::2], fences[1::2], ends, strict=True):
        yield _Block(
            "\n".join(lines[opened + 1 : closed]),
            opened + 2,
            "\n".join(lines[closed + 1 : end]),
            closed + 2,
        )


def _card(name: str, block: _Block) -> Card:
    data = _front_matter(name, block)
    known_id = data.get("id")
    card_id = known_id if isinstance(known_id, str) else ""

    def fail(reason: str, fix: str, line: int = block.matter_line) -> CardError:
        return _error(name, line, card_id, reason, fix)

    if unknown := sorted(set(data) - set(_KNOWN)):
        raise fail(f"unknown {', '.join(unknown)}", f"a card has {', '.join(_KNOWN)}")
    if missing := [key for key in _REQUIRED if key not in data]:
        raise fail(f"there is no {', '.join(missing)}", "write it into the TOML")
    entries: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in data.items()
    }
    if (kind := data["kind"]) not in KINDS:
        raise fail(f"kind = {kind!r}", f"give one of {', '.join(KINDS)}")
    if unknown := [role for role in data["roles"] if role not in ROLES]:
        raise fail(f"roles: unknown {', '.join(unknown)}", f"give some of {', '.join(ROLES)}")
    entries["evidence"] = _evidence(data["evidence"], fail)
    entries["follow_ups"] = tuple(_follow_up(each, fail) for each in data["follow_ups"])
    minute, deeper, mistake = _sections(block, fail)
    return Card(
        **entries,
        minute=minute,
        deeper=deeper,
        mistake=mistake,
        file=name,
        line=block.matter_line - 1,
    )


def _front_matter(name: str, block: _Block) -> dict[str, Any]:
    try:
        return tomllib.loads(block.matter)
    except tomllib.TOMLDecodeError as error:
        said = _AT_LINE.search(str(error))
        line = block.matter_line + (int(said[1]) - 1 if said else 0)
        reason = f"the TOML cannot be read: {_AT_LINE.sub('', str(error))}"
        match = re.search(r'^id\s*=\s*"([^"]*)"', block.matter, re.M)
        fix = "mind quotes, commas, and that { ... } stays on one line"
        raise _error(name, line, match[1] if match else "", reason, fix) from None


def _evidence(items: Any, fail: Callable[..., CardError]) -> tuple[Evidence, ...]:
    """Return the items, each with exactly one of proof, source and pending."""
    kinds = ("proof", "source", "pending")
    for item in items:
        if set(item) - {"says", *kinds} or sum(kind in item for kind in kinds) != 1:
            raise fail(f"the evidence {item} proves nothing", f"give one of {', '.join(kinds)}")
    return tuple(Evidence(**item) for item in items)


def _follow_up(item: Any, fail: Callable[..., CardError]) -> FollowUp:
    """Return a follow-up, given its question or a table."""
    entry = {"question": item} if isinstance(item, str) else dict(item)
    known = [each.name for each in fields(FollowUp)]
    if "question" not in entry or (unknown := sorted(set(entry) - set(known))):
        what = f"unknown {', '.join(unknown)}" if "question" in entry else "there is no question"
        raise fail(f"a follow-up: {what}", f"it is a text, or a table of {', '.join(known)}")
    if (kind := entry.get("kind", "")) not in ("", *CHAIN):
        raise fail(f"a follow-up of kind {kind!r}", f"give one of {', '.join(CHAIN)}")
    return FollowUp(
        entry["question"],
        kind,
        " ".join(entry.get("answer", "").split()),
        tuple(entry.get("rubric", ())),
        _evidence(entry.get("evidence", ()), fail),
    )


def _sections(block: _Block, fail: Callable[..., CardError]) -> list[str]:
    """Return the three texts, without their headings."""
    found = list(_HEADING.finditer(block.body))
    if [match[1] for match in found] != list(SECTIONS):
        there = ", ".join(match[1] for match in found) or "none"
        wanted = ", ".join(f"**{heading}**" for heading in SECTIONS)
        reason = f"the sections are {there}"
        fix = f"begin a line with each of {wanted}, in this order, once"
        raise fail(reason, fix, block.body_line)
    if before := block.body[: found[0].start()].strip():
        reason = f"text before the first section: {before[:40]!r}"
        raise fail(reason, f"begin with **{SECTIONS[0]}**", block.body_line)
    ends = [match.start() for match in found[1:]] + [len(block.body)]
    return [block.body[match.end() : end].strip() for match, end in zip(found, ends, strict=True)]


def _error(name: str, line: int, card: str, reason: str, fix: str) -> CardError:
    return CardError([Problem(name, line, card, reason, fix)])
