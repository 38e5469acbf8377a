"""The board: small notes between hosts, kept in torch's TCPStore.

It serves the people around a run (who failed, who has returned), never the run's own tensors. The
store lives on host 0, and may be lost at any moment without a packet that says so; then a call to
it blocks in C++. So every question is asked on a thread of its own, and its answer may come late.
A broken connection is opened again, a few times, before the board counts as lost.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TypeVar

import torch.distributed as dist

from labkit.hosts.environment import Environment

T = TypeVar("T")
PAUSES_S = (0.5, 1.0, 2.0)
"""Pause before a broken connection is opened again."""
LOST_AFTER_S = 10.0
"""Without an answer."""
_PATIENCE_S = 2.0
_PATIENCE_FOR_LARGE_S = 30.0
_WATCH_S = 3600.0
# The store cuts the connection of one that sends more than 8 MiB at once.
_PIECE_BYTES = 4 * 2**20


def open_store(
    environment: Environment, timeout_s: float, *, is_guest: bool = False
) -> dist.TCPStore:
    """A connection to the job's store. RuntimeError when it is not there within `timeout_s`.

    is_guest: never start the store here.
    """
    hosts_it = environment.rank == 0 and not environment.agent_has_store and not is_guest
    return dist.TCPStore(
        environment.master_addr,
        environment.master_port,
        is_master=hosts_it,
        timeout=timedelta(seconds=timeout_s),
        wait_for_workers=False,
        multi_tenant=True,
    )


class NoAnswer(Exception):
    """The board has not said in time whether there is such a note: it may be there."""


class Notice:
    """A note that somebody waits for."""

    content: bytes | None = None
    """The content; None until it has arrived."""


class Line:
    """A connection to the store, opened again when it breaks."""

    def __init__(self, connect: Callable[[], dist.Store]) -> None:
        """connect: makes a connection, or raises RuntimeError within seconds."""
        self._connect = connect
        self._store: dist.Store | None = None

    def ask(self, question: Callable[[dist.Store], T]) -> T:
        """The answer, some time. RuntimeError when the connection cannot be had again."""
        for pause_s in (*PAUSES_S, None):
            try:
                if self._store is None:
                    self._store = self._connect()
                return question(self._store)
            except RuntimeError:  # torch's DistError: the connection is broken
                self._store = None
                if pause_s is None:
                    raise
                time.sleep(pause_s)
        raise AssertionError("the last attempt returns or raises")


class Board:
    """Notes under the name of one attempt. A lost board answers nothing, and stays lost.

    A question whose answer is late gets none, and those after it are not even asked until that one
    has come: whoever must know asks again. The board counts as lost when the answer has not come
    within 10 s (for large notes 30 s).
    """

    def __init__(self, connect: Callable[[], dist.Store], name: str) -> None:
        """connect: as for a Line. `name` is the attempt's own: the store outlives it."""
        self._connect = lambda: dist.PrefixStore(name, connect())
        self._line = Line(self._connect)
        self._open: threading.Thread | None = None
        self._open_until_s = 0.0
        self.is_lost = False

    def post(self, key: str, note: bytes) -> bool:
        """Pin a note of any size; an older one is replaced. False: not known to be there."""
        pieces = [note[at : at + _PIECE_BYTES] for at in range(0, len(note), _PIECE_BYTES)]

        def pin(store: dist.Store) -> bool:
            for number, piece in enumerate(pieces):
                store.set(f"{key}/{number}", piece)  # type: ignore[arg-type]
            store.set(key, str(len(pieces)))
            return True

        patience_s = _PATIENCE_FOR_LARGE_S if len(note) > _PIECE_BYTES else _PATIENCE_S
        return self._ask(pin, patience_s) is True

    def read(
        self, key: str, parse: Callable[[bytes], T], within_s: float = _PATIENCE_FOR_LARGE_S
    ) -> T | None:
        """Return the note under `key`; None where there is none, and for a damaged one.

        parse: raises ValueError for a damaged note, such as one of several pieces that is read
        while another takes its place: whoever wrote it will pin another. Raises NoAnswer.
        """
        deadline_s = time.monotonic() + within_s
        is_there = self._ask(lambda store: store.check([key]), min(_PATIENCE_S, within_s))
        if is_there is False:
            return None
        left_s = max(deadline_s - time.monotonic(), 0)
        note = self._ask(lambda store: _note(store, key), left_s) if is_there else None
        if note is None:
            raise NoAnswer
        try:
            return parse(note)
        except ValueError:
            return None

    def count(self, key: str) -> int | None:
        """Add 1 to a number that begins at 0; its value then. None: not known, or not added."""
        return self._ask(lambda store: store.add(key, 1), _PATIENCE_S)

    def set_once(self, key: str, word: str) -> bool:
        """Pin some KiB of text, unless there is one under the same key: the first one stays.

        False: not known that there is one now.
        """
        is_there = self._ask(lambda store: bool(store.compare_set(key, "", word)), _PATIENCE_S)
        return is_there is True

    def ping(self) -> bool:
        """Ask for a sign of life; False once the board is lost."""
        self._ask(lambda store: store.check(["any"]), _PATIENCE_S)
        return not self.is_lost

    def watch(self, key: str) -> Notice:
        """Wait for what `set_once` pins, without asking again and again."""
        return self._notice([key], lambda store: bytes(store.get(key)))

    def watch_all(self, keys: Sequence[str]) -> Notice:
        """Wait until all of several notes are pinned; what comes is empty."""
        return self._notice(keys, lambda store: b"")

    def _notice(self, keys: Sequence[str], read: Callable[[dist.Store], bytes]) -> Notice:
        notice = Notice()
        line = Line(self._connect)  # its own: a connection that waits answers nothing else

        def wait(store: dist.Store) -> bytes:
            while True:
                try:
                    store.wait(list(keys), timedelta(seconds=_WATCH_S))
                except dist.DistStoreError:  # an hour has passed
                    continue
                return read(store)

        def watch() -> None:
            try:
                notice.content = line.ask(wait)
            except RuntimeError:
                self.is_lost = True

        threading.Thread(target=watch, name="notice", daemon=True).start()
        return notice

    def _ask(self, question: Callable[[dist.Store], T], patience_s: float) -> T | None:
        """The answer, or None when it does not come in time; the thread goes on meanwhile."""
        if self.is_lost or not self._is_free():
            return None
        answers: list[T] = []

        def ask() -> None:
            try:
                answers.append(self._line.ask(question))
            except RuntimeError:
                self.is_lost = True

        self._open = threading.Thread(target=ask, name="board", daemon=True)
        self._open_until_s = time.monotonic() + max(patience_s, LOST_AFTER_S)
        self._open.start()
        self._open.join(patience_s)
        return answers[0] if answers else None

    def _is_free(self) -> bool:
        """Return whether the question before has its answer; waits a little for it."""
        if self._open is None:
            return True
        self._open.join(_PATIENCE_S)
        if not self._open.is_alive():
            return True
        if time.monotonic() > self._open_until_s:
            self.is_lost = True
        return False


def _note(store: dist.Store, key: str) -> bytes:
    return b"".join(bytes(store.get(f"{key}/{n}")) for n in range(int(store.get(key))))
