"""An asyncio loop on a clock that only waiting moves: a sleep of a second takes no time.

What happens between two timers takes none of its seconds, on the slowest machine.
"""

import asyncio
import selectors


class _Selector(selectors.DefaultSelector):
    """Moves the clock where others would wait for it."""

    now_s = 0.0

    def select(self, timeout=None):
        self.now_s += max(timeout or 0.0, 0.0)
        return super().select(0)


def _virtual_loop():
    selector = _Selector()
    loop = asyncio.SelectorEventLoop(selector)
    loop.time = lambda: selector.now_s
    return loop


def run_virtually(coroutine):
    """As asyncio.run, and what it returns."""
    with asyncio.Runner(loop_factory=_virtual_loop) as runner:
        return runner.run(coroutine)
