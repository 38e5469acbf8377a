"""Which files of a folder were saved.

    with Saves(folder) as saves:
        saves.handle        becomes readable after a save
        saves.take()        {"scan.py"}

Editors write in place, or write another file and rename it; both are changes of the name. Several
of them, less than a tenth of a second apart, are one save.
"""

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

_TOGETHER_MS = 100
_LONGEST_MS = 1600
_LOOK_UP_MS = 200
_END_S = 2.0


class Saves:
    """Watches one folder, but not those in it, for the length of a block."""

    def __init__(self, folder: Path) -> None:
        """The folder is there, and may be a link."""
        self._folder = folder.resolve()
        self._is_over = threading.Event()

    def __enter__(self) -> Self:
        # It brings anyio, for which other commands need not wait.
        from watchfiles import watch

        changes = watch(
            self._folder,
            watch_filter=lambda _, path: path.endswith(".py"),
            debounce=_LONGEST_MS,
            step=_TOGETHER_MS,
            rust_timeout=_LOOK_UP_MS,
            yield_on_timeout=True,
            stop_event=self._is_over,
            raise_interrupt=False,
            recursive=False,
        )
        first = next(changes)  # from here on every save is seen
        self.handle, self._pipe = os.pipe()
        os.set_blocking(self.handle, False)
        self._tell(first)
        self._thread = threading.Thread(
            target=self._follow, args=(changes,), name="saves", daemon=True
        )
        self._thread.start()
        return self

    def take(self) -> set[str]:
        """The names of the files that were saved since this was last asked."""
        told = b""
        with contextlib.suppress(BlockingIOError):
            while more := os.read(self.handle, 65_536):
                told += more
        return set(os.fsdecode(told).split("/")) - {""}

    def _follow(self, changes: Iterator[set[tuple[Any, str]]]) -> None:
        for changed in changes:
            self._tell(changed)
        os.close(self._pipe)

    def _tell(self, changed: set[tuple[Any, str]]) -> None:
        for _, path in changed:
            os.write(self._pipe, os.fsencode(f"{Path(path).name}/"))  # which no name can contain

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_over.set()
        self._thread.join(_END_S)
        os.close(self.handle)
