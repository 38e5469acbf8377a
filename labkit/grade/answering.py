"""What a process does while it is asked: call the learner's functions, question by question.

Answers leave it as Python literals, so that nothing of the learner's runs in the driver; and what
is worked out by running something, or by asking labkit, instead of thinking is refused
(closed_book.py).
"""

import copy
import itertools
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from labkit.comm import Group
from labkit.comm.operation import Site
from labkit.grade import plain_data
from labkit.grade.closed_book import (
    ChangedArguments,
    Refused,
    close_book,
    refuse_answer_files,
    refuse_processes,
)
from labkit.grade.code import Code

QUESTION = "\x02question"  # regions in the journal, one for each that was asked
_MOST_CHARACTERS = 100_000
_MOST_YIELDED = 5_000  # of a generator that has no end
_PLAIN = (bool, int, str, type(None))


@dataclass(frozen=True)
class Questions:
    """What is asked. Travels to the process; no answer is in it."""

    code: Code
    calls: tuple[tuple[str, tuple[Any, ...]], ...]
    """(name of the function, its arguments), in order."""
    folder: str
    answers_are_in: tuple[str, ...] = ()
    """Packages and modules of labkit that must not be called."""
    arguments_stay: bool = False
    """Whether the arguments must be after a call what they were before it."""
    takes_iterators: bool = False
    """Whether a generator, or another iterator, is a list of what it yields."""


@dataclass(frozen=True)
class Answer:
    """What came of a call, as the process tells it."""

    text: str
    """The returned value as a literal; empty where it was no plain data, or nothing came back."""
    type: str
    """The type of what came back."""
    rule: str = ""
    """The name of what it did where that is not allowed; empty where it did nothing of the kind."""
    rule_message: str = ""
    """Why it was refused; empty where it was not."""
    rule_site: tuple[str, int, str, str] | None = None


def answer(world: Group, questions: Questions) -> None:
    """Run in a process of its own: each call, one after the other. Raises what the code raises."""
    broken: list[Refused] = []
    close_book(questions.answers_are_in, broken)
    refuse_answer_files(broken)
    for index, (name, arguments) in enumerate(questions.calls):
        try:
            with world.region(QUESTION):
                function = questions.code.load(name, len(arguments))
                if index == 0:
                    refuse_processes(broken)
                told = _asked(questions, name, function, arguments, broken)
        except BaseException:
            if not broken:
                raise
        if broken:
            told = Answer("", "", broken[0].name, str(broken[0]), astuple(broken[0].site))
        _leave(Path(questions.folder, f"answer-{index}"), told)
        if broken:
            raise broken[0]


def _asked(
    questions: Questions,
    name: str,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    broken: list[Refused],
) -> Answer:
    before = copy.deepcopy(arguments) if questions.arguments_stay else arguments
    value = function(*arguments)
    if questions.takes_iterators and isinstance(value, Iterator):
        value = list(itertools.islice(value, _MOST_YIELDED))
    if arguments != before:
        broken.append(_changed(name, function))
    return Answer(_literal(value), type(value).__name__)


def _changed(name: str, function: Callable[..., Any]) -> ChangedArguments:
    code = getattr(function, "__code__", None)
    site = Site(code.co_filename, code.co_firstlineno, name) if code else Site("", 0, name)
    return ChangedArguments(
        f"after {name} its arguments are not what they were before: they are the caller's, who "
        "asks about them again. Work on a copy of a list or a dict, or add up without one",
        site,
    )


def read_answer(folder: str, index: int) -> Answer | None:
    """In the driver: what came of a call; None where it did not come to its end."""
    try:
        fields = plain_data.loads(Path(folder, f"answer-{index}").read_bytes())
    except FileNotFoundError:
        return None
    return Answer(*fields)


def _leave(path: Path, told: Answer) -> None:
    path.with_suffix(".part").write_bytes(plain_data.dumps(list(astuple(told))))
    os.replace(path.with_suffix(".part"), path)


def _literal(value: Any) -> str:
    """The value as text that ast.literal_eval reads; empty where that cannot be."""
    try:
        text = repr(_plain(value, depth=0))
    except ValueError:  # it is no plain data, or an integer of thousands of digits
        return ""
    return text if len(text) <= _MOST_CHARACTERS else ""


def _plain(value: Any, depth: int) -> Any:
    """The value of Python's own types, for numpy's numbers, a defaultdict or a named tuple as well.

    Raises ValueError where it is no plain data.

    depth: how deep in others it lies; whatever lies deeper than 10 contains itself.
    """
    if isinstance(value, range) and len(value) <= _MOST_CHARACTERS:
        value = list(value)
    if isinstance(value, dict) and depth <= 10:
        return {_plain(key, depth + 1): _plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple) and depth <= 10:
        kind = list if isinstance(value, list) else tuple
        return kind(_plain(item, depth + 1) for item in value)
    value = plain_data.number(value)
    if type(value) in _PLAIN or (type(value) is float and math.isfinite(value)):
        return value
    raise ValueError(f"a {type(value).__name__} is no plain data")
