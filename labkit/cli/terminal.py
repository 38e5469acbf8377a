"""The terminal that commands print to."""

import contextlib
import warnings
from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from labkit.arguments import printable


def console(*, stderr: bool = False) -> Console:
    """Made anew for each use: sys.stdout may be another one by then."""
    return Console(stderr=stderr, highlight=False)


@contextlib.contextmanager
def progress_warnings_shown(out: Console) -> Iterator[None]:
    """Print what warnings of a block say about progress, each once and without a line of labkit."""
    from labkit.progress import ProgressWarning  # it takes SQLite with it

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ProgressWarning)
        try:
            yield
        finally:
            found = (str(w.message) for w in caught if issubclass(w.category, ProgressWarning))
            for text in dict.fromkeys(found):
                out.print(Text(f"labkit: {printable(text)}", style="yellow"))


def counted(number: int, noun: str) -> str:
    """`1 card`, `2 cards`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
