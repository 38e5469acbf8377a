"""Text for a model of bytes: prompts and chats as tokens, and answers as text, token by token.

    a prompt     né             6e c3 a9              a token is a byte of UTF-8
    a chat       user: né       f9 6e c3 a9 ff fa     role, text, end; role of the answer
    an answer    6e   c3  a9  ff
    its text     n    -   é   -

Special tokens are bytes that UTF-8 never uses (RFC 3629), so no text of a user can contain them. A
chat template of plain text, such as "user: ...", lets a user write the assistant's lines, too.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from functools import lru_cache

END = 0xFF  # end of a text or of a turn: answers stop here
ROLES = {"system": 0xF8, "developer": 0xF8, "user": 0xF9, "assistant": 0xFA}


def encode(text: str) -> list[int]:
    """Return the tokens of a prompt. An empty text becomes END: the text before it has ended."""
    return _bytes(text) or [END]


def encode_chat(turns: Iterable[tuple[str, str]]) -> list[int]:
    """Return the tokens of a chat, (role, text) by turn, up to where the assistant's next turn
    begins."""
    tokens = []
    for role, text in turns:
        tokens += [ROLES[role], *_bytes(text), END]
    return [*tokens, ROLES["assistant"]]


def _bytes(text: str) -> list[int]:
    return list(text.encode(errors="replace"))  # JSON can have half of a pair of surrogates


class TextStream:
    """The text of an answer whose tokens come one by one, up to the first stop string.

    Text is held back while it may be part of a character or of a stop string:

        stop "END"    tokens   a    E    N    T    E    N    D
                      text     a    -    -    ENT  -    -    stopped

    All parts joined are the text. Bytes that are not UTF-8 become U+FFFD. Work: a few steps for
    each letter of the text and of a stop string.
    """

    def __init__(self, stops: Sequence[str] = ()) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._searches, self._held = [_Search(stop, borders(stop)) for stop in stops], ""
        self.is_stopped = False

    def push(self, token: int, is_last: bool) -> str:
        """Return the text that this token completes. is_last: nothing is held back any more."""
        content = b"" if token == END else bytes([token])
        new = self._decoder.decode(content, is_last)
        text = self._held + new
        begins = [len(self._held) + at for each in self._searches for at in each.push(new)]
        if begins:
            self.is_stopped = True
            return text[: min(begins)]
        num_held = 0 if is_last else max((each.num_matched for each in self._searches), default=0)
        self._held = text[len(text) - num_held :]
        return text[: len(text) - num_held]


class _Search:
    """A search for one stop string in a text that comes letter by letter.

    num_matched: the longest beginning of the stop string that the text ends with. The next letter
    makes it one longer, or it falls back to a shorter beginning, by the borders:

        stop "aab"    text  a a a b     matched  1 2 2 3

    Knuth, Morris and Pratt, "Fast Pattern Matching in Strings", 1977.
    """

    def __init__(self, stop: str, borders: Sequence[int]) -> None:
        self._stop, self._borders, self.num_matched = stop, borders, 0

    def push(self, text: str) -> list[int]:
        """Return the starts of the first match that ends in this text, counted from its first
        letter."""
        for at, letter in enumerate(text):
            self.num_matched = _extended(self._stop, self._borders, self.num_matched, letter)
            if self.num_matched == len(self._stop):
                return [at + 1 - len(self._stop)]
        return []


def _extended(stop: str, borders: Sequence[int], matched: int, letter: str) -> int:
    """Return how many letters match after one more."""
    while matched and stop[matched] != letter:
        matched = borders[matched - 1]
    return matched + (stop[matched] == letter)


@lru_cache(maxsize=64)
def borders(stop: str) -> tuple[int, ...]:
    """Return, for each beginning of a stop string, the longest shorter one that it ends with.

    All answers to one request share them.
    """
    found = [0]
    for letter in stop[1:]:
        found.append(_extended(stop, found, found[-1], letter))
    return tuple(found)
