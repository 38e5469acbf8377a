"""A round of drills with two tries each, and the rating that is stored.

round_ = Round(drills_of("pp"), seed=3)
asked = round_.ask()                    the next question
asked.answer("43.8%")                   a Ruling; wrong twice, and it is over
asked.finish()                          remembers the rating; `round_.summary` counts it

    right at the first try, quickly     easy
    right at the first try              good
    right at the second try             hard
    wrong twice, or given up            again

Quickly is half a minute for each step of difficulty. An answer that could not be read does not
count as a try, nor does the same text again: neither says anything about what somebody knows.
"""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from labkit.interview.drills.drill import Kind
from labkit.interview.drills.question import Outcome, Question, Ruling
from labkit.progress import practice

_TRIES = 2
_QUICK_S = 30.0
_SEEDS = 10**6
REPEATED_ANSWER = "The same answer again: change it, or show the answer."
"""Message for an answer that `is_repeated`."""


@dataclass
class Asked:
    """A question that is being answered."""

    drill: Kind
    question: Question
    clock: Callable[[], float] = time.monotonic
    tries: int = 0
    """Answers that could be read."""
    is_right: bool = False
    traps: list[str] = field(default_factory=list)
    """Names of the traps that the answers hit."""
    rating: str | None = None
    """The rating, after `finish`."""

    def __post_init__(self) -> None:
        self._began_s = self.clock()
        self._took_s = 0.0
        self._last_text = ""

    @property
    def is_over(self) -> bool:
        """Return whether there is no try left, or none needed."""
        return self.is_right or self.tries >= _TRIES

    def is_repeated(self, text: str) -> bool:
        """Return whether this text equals the last judged one, as after pressing Enter twice."""
        return bool(self._last_text) and text.strip() == self._last_text

    def answer(self, text: str) -> Ruling:
        """Judge a typed answer. An unreadable one costs no try. ValueError if it is over."""
        if self.is_over:
            raise ValueError("this question is over: ask the round for the next one")
        ruling = self.drill.judge(self.question, text)
        self._last_text = text.strip()
        if ruling.outcome is Outcome.UNREADABLE:
            return ruling
        self.tries += 1
        self.is_right = bool(ruling)
        self._took_s = self.clock() - self._began_s
        if ruling.trap is not None:
            self.traps.append(ruling.trap.name)
        return ruling

    def finish(self) -> str:
        """Rate the answers and store the rating, once. With a try left, it counts as given up."""
        if self.rating is None:
            self.rating = self._rate()
            practice.answer(
                self.drill.subject,
                self.rating,
                topic=self.drill.topic,
                seed=self.question.seed,
                tries=self.tries,
                seconds=round(self._took_s, 1),
                traps=self.traps,
            )
        return self.rating

    def _rate(self) -> str:
        if not self.is_right:
            return "again"
        if self.tries > 1:
            return "hard"
        return "easy" if self._took_s <= _QUICK_S * self.drill.difficulty else "good"


@dataclass
class Round:
    """Questions of some drills, each drill once before any is repeated."""

    drills: Sequence[Kind]
    seed: int | None = None
    """A seed repeats its questions; None: new ones each time."""
    clock: Callable[[], float] = time.monotonic
    asked: list[Asked] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.drills:
            raise ValueError("a round needs one drill or more; drills_of() has them all")
        self._rng = random.Random(self.seed)
        self._left: list[Kind] = []

    def ask(self) -> Asked:
        """Ask the next question."""
        if not self._left:
            self._left = self._rng.sample(list(self.drills), len(self.drills))
        drill = self._left.pop()
        question = drill.question(self._rng.randrange(_SEEDS))
        self.asked.append(Asked(drill, question, self.clock))
        return self.asked[-1]

    @property
    def finished(self) -> list[Asked]:
        """Drills that were rated."""
        return [each for each in self.asked if each.rating is not None]

    @property
    def summary(self) -> str:
        """Result of the session, in one line."""
        done = self.finished
        if not done:
            return "Nothing answered."
        first = sum(each.is_right and each.tries == 1 for each in done)
        second = sum(each.is_right and each.tries > 1 for each in done)
        traps = [name for each in done for name in each.traps]
        text = f"{first + second} of {len(done)} right"
        text += f", {second} of them at the second try" if second else ""
        return text + (f". Traps: {', '.join(dict.fromkeys(traps))}." if traps else ".")
