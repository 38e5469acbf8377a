"""A call of torch.distributed's functions, from the moment at which it is entered to its end.

    dist.all_reduce(x)                          open, and waited for, until it returns
    work = dist.all_reduce(x, async_op=True)    open; waited for from work.wait() on

So the journal of calls says which of them a rank blocks in, and which it has only begun. Without
that, a rank that has begun a collective and then waits for a file would look as one that waits for
the collective.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from labkit.comm.journal import Journal


class OpenCall:
    """A record in the journal of calls that has no end yet."""

    def __init__(
        self,
        journal: Journal,
        record: int,
        *,
        taken_back: Callable[[int], None] | None,
        ends_by_itself: bool,
    ) -> None:
        """taken_back: called with the record where it is refused.

        ends_by_itself: by a timeout of the program's own, after which it goes on.
        """
        self._journal, self._record = journal, record
        self._taken_back = taken_back
        self.ends_by_itself = ends_by_itself

    def returned(self, result: object) -> None:
        """The function has returned: it is over, or what it returned will say when it is."""
        if isinstance(result, dist.Work):
            _by_work[result] = self
        else:
            self._journal.done(self._record)

    def refused(self) -> None:
        """The function has raised."""
        self._journal.failed(self._record)
        if self._taken_back is not None:
            self._taken_back(self._record)

    def failed(self) -> None:
        """It was carried out, and has not come to a good end."""
        self._journal.failed(self._record)

    def waiting(self) -> None:
        """The rank begins to wait for it."""
        self._journal.waiting(self._record)

    def done(self) -> None:
        """It is over."""
        self._journal.done(self._record)


# The call that a thread is carrying out, whose own wait is inside of torch.
under_way = threading.local()


def is_under_way() -> bool:
    """Whether this thread is carrying out a call."""
    return getattr(under_way, "call", None) is not None


_by_work: weakref.WeakKeyDictionary[dist.Work, OpenCall] = weakref.WeakKeyDictionary()


def install() -> None:
    """Let `wait` of what torch's functions return say so, for all in this process."""
    original = dist.Work.wait
    if hasattr(original, "_says_so"):
        return

    @functools.wraps(original)
    def wait(work: dist.Work, *timeout: Any, **named: Any) -> Any:
        call = _by_work.get(work)
        of_this = call or getattr(under_way, "call", None)
        if timeout or named or (of_this is not None and of_this.ends_by_itself):
            return original(work, *timeout, **named)  # it may end without it: this holds nobody
        if call is None:
            return original(work)
        call.waiting()
        try:
            result = original(work)
        except BaseException:
            call.failed()
            raise
        call.done()
        return result

    wait._says_so = True  # type: ignore[attr-defined]
    dist.Work.wait = wait  # type: ignore[method-assign,assignment]
