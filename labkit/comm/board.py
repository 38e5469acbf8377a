"""The board: small notes between hosts, kept in torch's TCPStore.

It serves the people around a run (who failed, who has returned), never the run's own tensors. The
store lives on host 0, and may be lost at any moment without a packet that says so; then a call to
it blocks in C++. So every question is asked on a thread of its own, and given up after two seconds.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar

import torch.distributed as dist

from labkit.comm.environment import Environment

T = TypeVar("T")
_PATIENCE_S = 2.0
_PATIENCE_FOR_LARGE_S = 30.0


def open_store(environment: Environment, timeout_s: float) -> dist.TCPStore:
    """A connection to the job's store. RuntimeError when it is not there within `timeout_s`."""
    hosts_it = environment.rank == 0 and not environment.agent_has_store
    return dist.TCPStore(
        environment.master_addr,
        environment.master_port,
        is_master=hosts_it,
        timeout=timedelta(seconds=timeout_s),
        wait_for_workers=False,
        multi_tenant=True,
    )


class Board:
    """Notes under the name of one attempt. A lost board answers None, and stays lost."""

    def __init__(self, store: dist.Store, name: str) -> None:
        """`name` is the attempt's own: the store outlives it."""
        self._store = dist.PrefixStore(name, store)
        self.is_lost = False

    def post(self, key: str, note: bytes) -> None:
        """Pin a note; an older one under the same key is replaced."""
        self._ask(lambda: self._store.set(key, note), _PATIENCE_FOR_LARGE_S)  # type: ignore[arg-type]

    def read(self, key: str) -> bytes | None:
        """The note under `key`, or None."""
        if not self._ask(lambda: self._store.check([key]), _PATIENCE_S):
            return None
        return self._ask(lambda: bytes(self._store.get(key)), _PATIENCE_FOR_LARGE_S)

    def count(self, key: str, more: int = 0) -> int | None:
        """Add `more` to a number that begins at 0; its value then."""
        return self._ask(lambda: self._store.add(key, more), _PATIENCE_S)

    def _ask(self, question: Callable[[], T], patience_s: float) -> T | None:
        if self.is_lost:
            return None
        answers: list[T] = []

        def ask() -> None:
            try:
                answers.append(question())
            except RuntimeError:  # torch's DistError: the connection is broken
                self.is_lost = True

        thread = threading.Thread(target=ask, name="board", daemon=True)
        thread.start()
        thread.join(patience_s)
        if thread.is_alive():
            self.is_lost = True
        return answers[0] if answers else None
