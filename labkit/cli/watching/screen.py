"""What `labkit watch` shows: text that scrolls, and below it lines that change in place.

Nothing is erased but those lines, so that verdicts and hints stay to be read and copied.
"""

import contextlib
from collections.abc import Iterator
from datetime import datetime

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.rule import Rule
from rich.text import Text

KEYS = {
    "h": "hint",
    "s": "solution",
    "n": "next",
    "p": "previous",
    "r": "check again",
    "e": "file",
    "l": "list",
    "q": "quit",
}


class Screen:
    """A terminal, for the length of a block.

    out: what is printed there scrolls by above the lines below.
    """

    def __init__(self, out: Console) -> None:
        """out: of a terminal."""
        self.out = out
        self._below: RenderableType = ""
        self._shown: tuple[object, ...] = ()
        self._live = self._new_live()

    def _new_live(self) -> Live:
        # Another thread that draws would do so in the middle of a suspension, too.
        return Live(
            get_renderable=lambda: self._below,
            console=self.out,
            auto_refresh=False,
            transient=True,
        )

    def __enter__(self) -> "Screen":
        self._live.start()
        return self

    def __exit__(self, *raised: object) -> None:
        with contextlib.suppress(OSError):  # the terminal is closed
            self._live.stop()

    @contextlib.contextmanager
    def given_back(self) -> Iterator[None]:
        """The terminal without the lines below, for the length of a block."""
        self._live.stop()
        try:
            yield
        finally:
            self._live = self._new_live()
            self._live.start()
            self._live.refresh()

    def show_below(self, *lines: Text) -> None:
        """Put these in place of the lines below; nothing is drawn where they are there already."""
        shown = (self.out.width, *lines)
        if shown != self._shown:
            self._below, self._shown = Group("", *lines), shown
            self._live.refresh()

    def heading(self, text: str) -> None:
        """A line across, with a word on what follows and the time of day."""
        title = Text(f"{text}, {datetime.now():%H:%M:%S}", style="dim")
        self.out.print()
        self.out.print(Rule(title, align="left", style="dim"))


def keys_lines(width: int) -> list[Text]:
    """The keys and what they do, in lines of at most `width` columns, broken between two keys."""
    lines = [Text()]
    for key, meaning in KEYS.items():
        word = Text.assemble((key, "bold"), (f" {meaning}", "dim"))
        if lines[-1] and len(lines[-1]) + 2 + len(word) > width:
            lines.append(Text())
        lines[-1].append("  " if lines[-1] else "").append_text(word)
    return lines
