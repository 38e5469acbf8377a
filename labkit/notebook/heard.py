"""What the progress store has to say, beside the answer that it is about, and not in a log.

rating, heard = listen(lambda: grade(card, said))
heard.is_unwritten          nothing was stored
heard.html                  what happened, in words

A ProgressWarning of a widget's button would go where nobody looks.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from typing import TypeVar

from labkit.progress import ProgressWarning, log

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Heard:
    """The store's own words; none where all went well."""

    messages: tuple[str, ...] = ()

    @property
    def is_unwritten(self) -> bool:
        """Whether something was to be stored, and could not be."""
        return any(log.NOT_WRITTEN in each for each in self.messages)

    @property
    def is_unread(self) -> bool:
        """Whether something was to be read, and could not be."""
        return any(log.NOT_READ in each for each in self.messages)

    @property
    def html(self) -> str:
        """A paragraph for each message; "" for none."""
        return "".join(f"<p><b>Progress.</b> {escape(each)}</p>" for each in self.messages)


def listen(call: Callable[[], Result]) -> tuple[Result, Heard]:
    """What `call` returns, and what the store said meanwhile. Other warnings go their way.

    Where `call` raises, all of them do: there is no answer then for them to stand beside.
    """
    caught: list[warnings.WarningMessage] = []
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", ProgressWarning)
            result = call()
    except BaseException:
        _pass_on(caught)
        raise
    said = [each for each in caught if issubclass(each.category, ProgressWarning)]
    _pass_on([each for each in caught if each not in said])
    return result, Heard(tuple(dict.fromkeys(str(each.message) for each in said)))


def _pass_on(caught: list[warnings.WarningMessage]) -> None:
    for each in caught:
        warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)
