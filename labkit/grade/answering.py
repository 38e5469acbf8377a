"""What a process does while it is asked: call the learner's functions, question by question.

Answers leave it as Python literals, so that nothing of the learner's runs in the driver; and what
is worked out by running something instead of thinking is refused.
"""

import math
import os
import sys
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from labkit.comm import Group
from labkit.comm.operation import Site
from labkit.grade import plain_data
from labkit.grade.code import Code
from labkit.grade.rules import BrokenRule

_MOST_CHARACTERS = 100_000
_PLAIN = (bool, int, str, type(None))
# Events of sys.addaudithook that start a process, or reach one.
_REFUSED = {
    "os.exec",
    "os.fork",
    "os.forkpty",
    "os.posix_spawn",
    "os.spawn",
    "os.system",
    "socket.bind",
    "socket.connect",
    "subprocess.Popen",
}

_LABKIT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_NOT_THE_LEARNERS = (os.path.dirname(os.__file__) + os.sep, _LABKIT + os.sep, "<frozen ")


class RanSomething(BrokenRule):
    """Code that should answer started a process, or tried to reach one."""


@dataclass(frozen=True)
class Questions:
    """What is asked. Travels to the process; no answer is in it."""

    code: Code
    calls: tuple[tuple[str, tuple[Any, ...]], ...]
    """(name of the function, its arguments), in order."""
    folder: str


@dataclass(frozen=True)
class Answer:
    """What came of a call, as the process tells it."""

    text: str
    """The returned value as a literal; empty where it was no plain data, or nothing came back."""
    type: str
    """The type of what came back."""
    rule_message: str = ""
    """Why it was refused; empty where it was not."""
    rule_site: tuple[str, int, str, str] | None = None


def answer(world: Group, questions: Questions) -> None:
    """Run in a process of its own: each call, one after the other. Raises what the code raises."""
    broken: list[RanSomething] = []
    for index, (name, arguments) in enumerate(questions.calls):
        function = questions.code.load(name, len(arguments))
        if index == 0:
            _watch(broken)
        try:
            value = function(*arguments)
            text = _literal(value)
            told = Answer(text, type(value).__name__)
        except BaseException:
            if not broken:
                raise
        if broken:
            told = Answer("", "", str(broken[0]), astuple(broken[0].site))
        _leave(Path(questions.folder, f"answer-{index}"), told)
        if broken:
            raise broken[0]


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


def _watch(broken: list[RanSomething]) -> None:
    """From now on, until this process ends."""

    def refuse(event: str, arguments: Sequence[Any]) -> None:
        if event in _REFUSED:
            site = _learners_line()
            message = (
                f"{event} at {site}: the functions are asked what would happen, and find out by "
                "thinking; to see it for yourself, run the program in a notebook"
            )
            broken.append(RanSomething(message, site))
            raise broken[-1]

    sys.addaudithook(refuse)


def _learners_line() -> Site:
    """The innermost line outside of Python's own library, its packages and labkit."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_NOT_THE_LEARNERS):
        frame = frame.f_back
    return Site(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)


def _literal(value: Any) -> str:
    """The value as text that ast.literal_eval reads; empty where that cannot be."""
    try:
        text = repr(value) if _is_plain(value, depth=0) else ""
    except ValueError:  # an integer of thousands of digits
        return ""
    return text if len(text) <= _MOST_CHARACTERS else ""


def _is_plain(value: Any, depth: int) -> bool:
    if depth > 10:  # or it contains itself
        return False
    if type(value) is dict:
        return all(_is_plain(each, depth + 1) for pair in value.items() for each in pair)
    if type(value) in (list, tuple):
        return all(_is_plain(each, depth + 1) for each in value)
    return type(value) in _PLAIN or (type(value) is float and math.isfinite(value))
