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

END = 0xFF  # of a text or of a turn: answers stop here
ROLES = {"system": 0xF8, "developer": 0xF8, "user": 0xF9, "assistant": 0xFA}


def encode(text: str) -> list[int]:
    """The tokens of a prompt. Before a text without any tokens, another one has ended."""
    return _bytes(text) or [END]


def encode_chat(turns: Iterable[tuple[str, str]]) -> list[int]:
    """The tokens of a chat, (role, text) by turn, up to where the assistant's next turn begins."""
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

    The parts together are the text, in a stream and otherwise. Bytes that are no UTF-8 become
    U+FFFD, as everywhere.
    """

    def __init__(self, stops: Sequence[str] = ()) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._stops, self._held = stops, ""
        self.is_stopped = False

    def push(self, token: int, is_last: bool) -> str:
        """The text that this token completes. is_last: nothing is held back any more."""
        content = b"" if token == END else bytes([token])
        text = self._held + self._decoder.decode(content, is_last)
        ends = [at for stop in self._stops if (at := text.find(stop)) >= 0]
        if ends:
            self.is_stopped = True
            return text[: min(ends)]
        num_held = 0 if is_last else max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - num_held :]
        return text[: len(text) - num_held]


def _overlap(text: str, stop: str) -> int:
    """How many letters at the end of the text are the beginning of the stop string."""
    return next((n for n in range(len(stop) - 1, 0, -1) if text.endswith(stop[:n])), 0)
