"""Something that is done every second, in the kernel's own event loop and by no thread.

A task of the loop ends with the kernel, never runs beside a cell's code, and is idle while one
runs; so what a tick shows must be computed from a clock, and not from the number of ticks.
"""

import asyncio
from collections.abc import Callable

_SECOND_S = 1.0


class Ticker:
    """Calls `tick` every second for as long as it returns True."""

    def __init__(self, tick: Callable[[], bool]) -> None:
        self._tick = tick
        self._task: asyncio.Task[None] | None = None

    @property
    def is_running(self) -> bool:
        """Whether there is a next tick."""
        return self._task is not None and not self._task.done()

    def start(self) -> None:
        """Tick from now on. Nothing happens without a loop, as in a script, or a second time."""
        if self.is_running:
            return
        try:
            self._task = asyncio.get_running_loop().create_task(self._run())
        except RuntimeError:
            self._task = None

    def stop(self) -> None:
        """No tick after this."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _run(self) -> None:
        try:
            while self._tick():
                await asyncio.sleep(_SECOND_S)
        except KeyboardInterrupt:
            # Out of a task it would end the loop, and with it the kernel.
            return
