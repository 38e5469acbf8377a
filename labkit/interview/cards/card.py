"""What a question card is, once it has been read."""

from dataclasses import dataclass

from labkit.interview.levels import LEVELS

SECTIONS = ("In a minute.", "Deeper.", "The common mistake.")


@dataclass(frozen=True, slots=True)
class Evidence:
    """One number or statement of a card, and what stands behind it: exactly one of the three."""

    says: str = ""
    """As it stands in the text; "" for a pending item that is about no single number."""
    proof: str = ""
    """An expression of calc and runs."""
    source: str = ""
    """Where a figure was published that nothing here can derive."""
    pending: str = ""
    """What labkit does not have yet."""


@dataclass(frozen=True, slots=True)
class Card:
    """One question, with its answer at three depths."""

    id: str
    """A topic's, "co-8", or that and a letter, "co-8b"."""
    difficulty: int
    """1 for everyone, 2 senior, 3 expert."""
    prompt: str
    minute: str
    """What to say aloud in a minute; Markdown, as the other texts."""
    deeper: str
    mistake: str
    evidence: tuple[Evidence, ...]
    rubric: tuple[str, ...]
    """What an interviewer listens for."""
    follow_ups: tuple[str, ...]
    sources: tuple[str, ...]
    given: tuple[str, ...] = ()
    """Numbers of the text that are assumptions, and stated as such."""
    notebook: str = ""
    """The name of its file without .ipynb; "" where there is none yet."""
    exercise: str = ""
    file: str = ""
    line: int = 0
    """Where the card begins in the file."""

    @property
    def topic(self) -> str:
        """The id of its topic: "co-8" for "co-8b"."""
        return self.id.rstrip("bcdefghijklmnopqrstuvwxyz") or self.id

    @property
    def level(self) -> str:
        """Whom it is for: everyone, senior or expert."""
        return LEVELS[self.difficulty]

    @property
    def text(self) -> str:
        """The answer: everything in which numbers need evidence."""
        return "\n\n".join((self.minute, self.deeper, self.mistake))


@dataclass(frozen=True, slots=True)
class Problem:
    """Something wrong with the bank: where, why, and what would be right."""

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
