"""Keys as they are pressed, without Enter."""

import contextlib
import os
import re
import signal
import termios
import tty
from types import TracebackType
from typing import Self

END = "\x04"  # Ctrl-D; also what a terminal that is gone is read as
# What an arrow or F5 sends, and Alt with another key: the last character is a letter, but no key.
_SEVERAL = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|O.|[^[O])?")


class Keyboard:
    """A terminal in cbreak mode (no echo, no lines; Ctrl-C still signals) for a block."""

    def __init__(self, descriptor: int) -> None:
        """descriptor: of a terminal, as standard input is one."""
        self.descriptor = descriptor
        self._before = termios.tcgetattr(descriptor)

    def __enter__(self) -> Self:
        self.grab()
        return self

    def grab(self) -> None:
        """Keys come one by one from here on."""
        tty.setcbreak(self.descriptor, termios.TCSADRAIN)

    def give_back(self) -> None:
        """The terminal is as it was found; keys that nobody read are not the shell's."""
        # From the background, where this may be by now, setting a terminal stops a process.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
        try:
            with contextlib.suppress(termios.error):  # it is closed
                termios.tcflush(self.descriptor, termios.TCIFLUSH)
                termios.tcsetattr(self.descriptor, termios.TCSANOW, self._before)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    @property
    def is_gone(self) -> bool:
        """Whether the terminal was closed: nothing can be shown there any more."""
        try:
            termios.tcgetattr(self.descriptor)
        except termios.error:
            return True
        return False

    def read(self) -> str:
        """The keys pressed since the last call; END once no more can come.

        Call it when the descriptor is readable. Arrows and the like are left out.
        """
        try:
            pressed = os.read(self.descriptor, 1024)
        except OSError:
            return END
        if not pressed:
            return END
        return _SEVERAL.sub("", pressed.decode(errors="ignore")).lower()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.give_back()
