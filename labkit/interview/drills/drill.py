"""A drill: a kind of question, which makes a fresh one from every seed.

@drill("pp-2", "Bubble of a pipeline", difficulty=1, notebook="16_pipeline_parallel",
       prompt="{p} stages, {m} microbatches, 1F1B: which share of the step is bubble?",
       draws={"p": (4, 8, 16), "m": (8, 16, 32)}, unit="%", between=("1%", "90%"))
def bubble_share(p, m):
    return Solution(calc.bubble_fraction(p, m), steps, traps)

The function gets only the drawn numbers, and each is a field of the prompt. So the prompt says
everything that the answer depends on.

Drills draw from MODEL_SIZES, LINKS, PEAKS and the like, with values that are common in practice.
"""

import inspect
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from string import Formatter
from typing import Any, NamedTuple

from labkit.calc.hardware import GPUS
from labkit.calc.result import Result, amount
from labkit.calc.units import Quantity, count_text, parse_quantity, parse_typed
from labkit.interview.cards.card import LEVELS
from labkit.interview.drills.question import Question, Ruling, Solution, distinguishable, judge

_MOST_DRAWS = 1000
_PLACES = {
    "": "",
    "x": " as a factor,",
    "thousand": " in thousands,",
    "million": " in millions,",
    "billion": " in billions,",
}
_MEANS = {
    "GB": "10^9 bytes", "MB": "10^6 bytes", "KB": "10^3 bytes", "TB": "10^12 bytes",
    "GiB": "2^30 bytes", "MiB": "2^20 bytes", "KiB": "2^10 bytes",
}  # fmt: skip


class Shown(NamedTuple):
    """A value for the solution, and its words in the prompt."""

    value: Any
    text: str


@dataclass(frozen=True)
class Kind:
    """A kind of question with a typed answer: a drill, or case files of a difficulty."""

    name: str
    topic: str
    """Topic of the question bank, such as "pp-2"."""
    title: str
    difficulty: int
    notebook: str | None

    @property
    def level(self) -> str:
        """Its level: everyone, senior or expert."""
        return LEVELS[min(self.difficulty, max(LEVELS))]

    @property
    def subject(self) -> str:
        """Name under which its answers are stored."""
        return f"drill/{self.name}"

    @property
    def command(self) -> str:
        """Command that asks another one."""
        return f"labkit drill {self.name}"

    def question(self, seed: int) -> Question:
        """Return the question of this seed, any whole number."""
        raise NotImplementedError

    def judge(self, question: Any, text: str) -> Ruling:
        """Judge a typed answer to one of its questions; never raises for a text."""
        return judge(question, text)


@dataclass(frozen=True)
class Drill(Kind):
    """A kind of question whose answer is a number."""

    template: str
    """The prompt, with a field for each number."""
    draws: Mapping[str, Sequence[Any]]
    """By name, the values to draw from; several names, with spaces, are drawn together as a row."""
    unit: str
    digits: int | None
    between: tuple[float, float]
    """Range of answers that are asked for, in base units."""
    where: Callable[..., bool] | None
    solve: Callable[..., Solution]

    @property
    def fields(self) -> frozenset[str]:
        """Names of the numbers in the prompt."""
        return frozenset(name for _, name, _, _ in Formatter().parse(self.template) if name)

    def question(self, seed: int) -> Question:
        """Return the question of this seed, any whole number."""
        rng = random.Random(f"{self.name} {seed}")
        for _ in range(_MOST_DRAWS):
            drawn = self._draw(rng)
            if self.where is None or self.where(**_wanted(self.where, drawn)):
                question = self._asked(seed, drawn)
                if question is not None:
                    return question
        raise RuntimeError(
            f"{self.name}, seed {seed}: none of {_MOST_DRAWS} draws has an answer in its range and "
            "a trap that differs from it; widen `draws` or `between`"
        )

    def _draw(self, rng: random.Random) -> dict[str, Any]:
        drawn: dict[str, Any] = {}
        for names, choices in self.draws.items():
            row = rng.choice(choices)
            drawn |= zip(names.split(), row) if " " in names else {names: row}
        return drawn

    def _asked(self, seed: int, drawn: Mapping[str, Any]) -> Question | None:
        """Return the question; None if the answer is out of range, or every trap has its value."""
        unit = parse_typed(f"1 {self.unit}")
        solution = self.solve(**_wanted(self.solve, drawn))
        answer = Quantity(float(solution.answer), unit.dimension)
        low, high = self.between
        if not low <= answer.value <= high:
            return None
        traps, left_out = distinguishable(answer, solution.traps, self.digits)
        if not traps:
            return None
        givens = {name: given_text(value) for name, value in drawn.items()}
        return Question(
            drill=self.name,
            seed=seed,
            prompt=f"{self.template.format(**givens)} {self._how_to_answer()}",
            givens=givens,
            answer=answer,
            unit=self.unit,
            unit_size=unit.size,
            digits=self.digits,
            steps=tuple(solution.steps),
            traps=traps,
            left_out=left_out,
        )

    def _how_to_answer(self) -> str:
        if self.digits is None:
            return "Answer with a whole number."
        base = self.unit.removesuffix("/s")
        meaning = f" ({base} = {_MEANS[base]})" if base in _MEANS else ""
        place = _PLACES.get(self.unit, f" in {self.unit}{meaning},")
        return f"Answer{place} to {self.digits} significant digits or more."


def drill(
    topic: str,
    title: str,
    *,
    difficulty: int,
    notebook: str | None,
    prompt: str,
    draws: Mapping[str, Sequence[Any]],
    unit: str,
    between: tuple[str, str],
    digits: int | None = 2,
    where: Callable[..., bool] | None = None,
) -> Callable[[Callable[..., Solution]], Drill]:
    """Make a Drill from the function that solves it; it gets the function's name. See `Drill`."""
    low, high = (parse_quantity(each) for each in between)
    asked = parse_typed(f"1 {unit}")
    if not low.dimension == high.dimension == asked.dimension:
        raise ValueError(f"between={between} and unit={unit!r} measure different things")

    def made(solve: Callable[..., Solution]) -> Drill:
        each = Drill(
            name=solve.__name__,
            topic=topic,
            title=title,
            difficulty=difficulty,
            notebook=notebook,
            template=prompt,
            draws=draws,
            unit=unit,
            digits=digits,
            between=(low.value, high.value),
            where=where,
            solve=solve,
        )
        unsaid = set(inspect.signature(solve).parameters) - each.fields
        if unsaid:
            raise ValueError(f"{each.name}: the prompt does not say {', '.join(sorted(unsaid))}")
        return each

    return made


def given_text(value: Any) -> str:
    """Write a drawn number as in the prompt: 1,024; 0.35; 50 GB/s."""
    if isinstance(value, Shown):
        return value.text
    if isinstance(value, Result):
        return value.name or str(value)
    if isinstance(value, str):
        return value
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def _wanted(function: Callable[..., Any], drawn: Mapping[str, Any]) -> dict[str, Any]:
    """Return the drawn numbers that a function takes; those with units in base units."""
    names = inspect.signature(function).parameters
    return {name: _plain(drawn[name]) for name in names}


def _plain(value: Any) -> Any:
    if isinstance(value, Shown):
        return value.value
    return float(value) if isinstance(value, Result) else value


RANKS = (4, 8, 16, 32, 64, 128)


def num_text(num: int, noun: str) -> str:
    """`1 stage`, `2 stages`, `1,024 tokens`; noun: one whose plural ends in s."""
    return f"{num:,} {noun}{'' if num == 1 else 's'}"


BATCHES = tuple(Shown(num, num_text(num, "sequence")) for num in (1, 2, 4, 8))
"""Sequences in a microbatch; the prompt says the noun, too."""


def billions(*sizes: float) -> tuple[Shown, ...]:
    """Numbers of parameters, as people say them: 7B, 1.3B."""
    return tuple(Shown(size * 1e9, count_text(size * 1e9)) for size in sizes)


def amounts(*texts: str) -> tuple[Result, ...]:
    """Quantities with their units, as the prompt says them: "25 MB", "5 us"."""
    return tuple(amount(text) for text in texts)


MODEL_SIZES = billions(
    *(1.1, 1.3, 1.5, 2.7, 3, 6.7, 7, 8, 9, 12, 13, 14, 20, 22, 27, 30, 32, 34, 40, 65, 70, 72),
    *(104, 123, 145, 175, 180),
)
LATENCIES = amounts("2 us", "3 us", "5 us", "8 us", "10 us", "20 us")
LINKS = amounts("25 GB/s", "50 GB/s", "100 GB/s", "300 GB/s", "450 GB/s")
"""One direction of one GPU: adapters of 200 and 400 Gbit/s, and NVLink."""
# name, peak in TFLOP/s: as calc has them.
PEAKS = tuple(
    (title, round(GPUS[name].flops_per_s / 1e12))
    for name, title in (("a100-80g", "A100"), ("h100", "H100"), ("b200", "B200"))
)
