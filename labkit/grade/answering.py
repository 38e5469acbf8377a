"""What a process does while it is asked: call the learner's functions, question by question.

Answers leave it as Python literals, so that nothing of the learner's runs in the driver; and what
is worked out by running something instead of thinking is refused.
"""

import inspect
import math
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from pathlib import Path
from types import FrameType
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

    name = "runs something instead of answering"


class LookedItUp(BrokenRule):
    """Code that should answer called what has the answer."""

    name = "calls the answer itself"


@dataclass(frozen=True)
class Questions:
    """What is asked. Travels to the process; no answer is in it."""

    code: Code
    calls: tuple[tuple[str, tuple[Any, ...]], ...]
    """(name of the function, its arguments), in order."""
    folder: str
    answers_are_in: tuple[str, ...] = ()
    """Packages and modules of labkit that must not be called."""


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
    broken: list[RanSomething | LookedItUp] = []
    for index, (name, arguments) in enumerate(questions.calls):
        function = questions.code.load(name, len(arguments))
        if index == 0:
            _watch(broken)
        try:
            with _closed_book(questions.answers_are_in, broken):
                value = function(*arguments)
            text = _literal(value)
            told = Answer(text, type(value).__name__)
        except BaseException:
            if not broken:
                raise
        if broken:
            told = Answer("", "", broken[0].name, str(broken[0]), astuple(broken[0].site))
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


def _watch(broken: list[RanSomething | LookedItUp]) -> None:
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


@contextmanager
def _closed_book(
    packages: Sequence[str], broken: list[RanSomething | LookedItUp]
) -> Iterator[None]:
    """In this block, a call of a function of labkit's `packages`, or modules, raises LookedItUp."""
    if not packages:
        yield
        return
    paths = [os.path.join(_LABKIT, package) for package in packages]
    closed = tuple(path + end for path in paths for end in (os.sep, ".py"))

    def refuse(frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        # The bodies of modules and classes run when they are imported: that gives no answer away.
        is_function = code.co_flags & inspect.CO_OPTIMIZED
        if event != "call" or not is_function or not code.co_filename.startswith(closed):
            return
        name = f"{frame.f_globals.get('__name__', 'labkit')}.{code.co_name}"
        broken.append(LookedItUp(f"{name} is the answer itself; work it out", _learners_line()))
        raise broken[-1]

    threading.setprofile(refuse)
    sys.setprofile(refuse)
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


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
