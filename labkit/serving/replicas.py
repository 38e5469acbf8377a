"""Engines in processes of their own, each of which fails and restarts alone.

    this process                               rank 0 of replica 0      its other ranks
    send(0, Add(7, request))    -- TCP -->     add
    events() -> 0, [Output..]   <--------      step                     follow
                                               killed                   ended with their run
    events() -> 0, None         <- closed -
    ready == [1], then [0, 1]   <--------      starts again             start again

A replica is a labkit run with one or more ranks: `make_engine(world, *args)` is called on each of
them. Rank 0 reports after every pass, and twice a second when there is nothing to do.

- When a process ends, the kernel closes its connection, within milliseconds.
- A replica that is silent for `patience_s` is killed: it is frozen, or one of its ranks is. While
  it makes its engine the limit is `start_patience_s` instead.
- When a rank dies, the run ends with all of its ranks, and a new one starts, up to `restarts` times
  in a row. After a minute of service the count begins again.
- All reports of a replica are delivered before the None of its end. So the caller knows which
  tokens are lost. A Router (request_router.py) moves the requests to another replica.

Wire: pickles over TCP on 127.0.0.1 with a secret key (multiprocessing.connection).
"""

from __future__ import annotations

import contextlib
import itertools
import math
import queue
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing import AuthenticationError
from multiprocessing.connection import (
    Client,
    Connection,
    Listener,
    answer_challenge,
    deliver_challenge,
)
from typing import Any, NamedTuple, Self

from labkit.comm import Group
from labkit.launch import RunError, RunTimeout
from labkit.launch.request import LONGEST_TIMEOUT_S, check_args, check_function
from labkit.launch.run import RunThread
from labkit.model import GPTConfig
from labkit.serving.on_ranks import Leader, follow
from labkit.serving.requests import Request
from labkit.serving.serving_engine import Engine, EngineClient, Output, QueueFull

_BEAT_S = 0.5
"""Seconds between reports of a replica without work."""
_STEADY_S = 60.0
"""After serving for so long, a replica may fail `restarts` times again."""


class Add(NamedTuple):
    """To a replica: serve this request. Its outputs have this id."""

    id: int
    request: Request


class Cancel(NamedTuple):
    """To a replica: give up this request."""

    id: int


class _Ready(NamedTuple):
    """From a replica, once its engine is made."""

    config: GPTConfig
    capacity: float
    num_pages: int


class _Report(NamedTuple):
    """From a replica, after a pass. counts: since the report before."""

    outputs: list[Output]
    num_free_pages: int
    counts: Counter[str]


class _Place(NamedTuple):
    """Address of a replica's driver, and the replica's number."""

    address: Any
    key: bytes
    number: int


class Replicas:
    """Engines in processes of their own; use them in a `with`, or close() them.

    config: the model's sizes. ids: of the next requests. used_pages: by replica that serves now, as
    last reported. counts: as in EngineClient, for all replicas together. errors: by replica that is
    not started again.
    """

    config: GPTConfig

    def __init__(
        self,
        make_engine: Callable[..., Engine],
        num_replicas: int,
        args: Sequence[Any] = (),
        *,
        num_ranks: int = 1,
        restarts: int = 3,
        patience_s: float = 10.0,
        start_patience_s: float = 600.0,
    ) -> None:
        """Start them, and wait until all are ready. Raises the error of one that cannot start.

        num_ranks: of each replica. restarts: the failures of a replica that another start follows.
        A start that served for more than a minute sets the count to 0, so that failures far apart
        do not add up. The end of a run after its longest time, a week, is no failure.
        patience_s: a longer silence ends a replica. start_patience_s: the longest time to make its
        engine on all its ranks.
        """
        check_function(make_engine)
        check_args(args)
        self.used_pages: dict[int, int] = {}
        self.errors: dict[int, Exception] = {}
        self.counts: Counter[str] = Counter()
        # One Router after another may use these replicas: a late token is never the next one's.
        self.ids = itertools.count()
        self._patience_s, self._start_patience_s = patience_s, start_patience_s
        self._is_closed = False
        self._capacities: dict[int, float] = {}
        self._ready: dict[int, tuple[Connection, int]] = {}
        self._news: queue.SimpleQueue[tuple[int, Connection | None, Any]] = queue.SimpleQueue()
        self._key, self._listener = secrets.token_bytes(32), Listener(("127.0.0.1", 0))
        self._address = self._listener.address
        threading.Thread(target=self._accept, daemon=True).start()
        self._lives = []
        for number in range(num_replicas):
            place = _Place(self._address, self._key, number)
            ended = partial(self._note, number, None)
            self._lives.append(_Life(num_ranks, (make_engine, place, *args), restarts, ended))
            self._lives[-1].start()
        try:
            while len(self._ready) < num_replicas:
                self.events(_BEAT_S)
                for error in self.errors.values():
                    raise error
        except BaseException:
            self.close()
            raise

    @property
    def ready(self) -> list[int]:
        """The numbers of the replicas that serve now."""
        return sorted(self._ready)

    @property
    def capacity(self) -> float:
        """The slots of the smallest cache: a request that fits there can move to any replica."""
        return min(self._capacities.values())

    @property
    def num_free_pages(self) -> int:
        """Free pages of all replicas that serve now, as last reported."""
        return sum(num - self.used_pages[i] for i, (_, num) in self._ready.items())

    @property
    def is_over(self) -> bool:
        """No replica serves, and none will be started again."""
        return len(self.errors) == len(self._lives)

    @property
    def pids(self) -> list[list[int]]:
        """The processes of each replica, by rank; none while it does not run."""
        return [list(life.pids) for life in self._lives]

    @property
    def num_starts(self) -> list[int]:
        """Starts of each replica."""
        return [life.num_starts for life in self._lives]

    def send(self, number: int, what: Add | Cancel) -> None:
        """Send to a replica that is ready. If it has just ended, `events` reports that."""
        with contextlib.suppress(OSError):
            self._ready[number][0].send(what)

    def events(self, wait_s: float) -> list[tuple[int, list[Output] | None]]:
        """Return the replicas' events in order; wait up to wait_s seconds for the first.

        An event is (replica, outputs), or (replica, None) if the replica lost its requests.
        """
        events: list[tuple[int, list[Output] | None]] = []
        with contextlib.suppress(queue.Empty):
            news = self._news.get(timeout=wait_s)
            while True:
                events += self._take(*news)
                news = self._news.get_nowait()
        return events

    def _take(
        self, number: int, connection: Connection | None, what: Any
    ) -> list[tuple[int, list[Output] | None]]:
        was_ready = number in self._ready
        is_newest = was_ready and self._ready[number][0] is connection
        if isinstance(what, _Report) and is_newest:
            self.used_pages[number] = self._ready[number][1] - what.num_free_pages
            self.counts += what.counts
            return [(number, what.outputs)]
        if isinstance(what, _Ready):
            assert connection is not None
            self.config, self._capacities[number] = what.config, what.capacity
            self._ready[number], self.used_pages[number] = (connection, what.num_pages), 0
            return (
                [(number, None)] if was_ready else []
            )  # the None of the earlier start comes later
        if isinstance(what, Exception):
            self.errors[number] = what
        elif what is None and is_newest:
            del self._ready[number], self.used_pages[number]
            return [(number, None)]
        return []

    def close(self) -> None:
        """End all replicas. Their requests are lost."""
        self._is_closed = True
        for life in self._lives:
            life.end()
        with contextlib.suppress(OSError):
            Client(self._address).close()  # wakes the thread that accepts

    def __enter__(self) -> Self:
        """Use them in a `with`, which closes them."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close them."""
        self.close()

    def _accept(self) -> None:
        with self._listener:
            while not self._is_closed:
                with contextlib.suppress(OSError):
                    connection = self._listener.accept()
                    threading.Thread(target=self._hear, args=(connection,), daemon=True).start()

    def _hear(self, connection: Connection) -> None:
        """Pass on the messages of one start of a replica, until its connection closes."""
        number = None
        with connection, contextlib.suppress(OSError, EOFError, AuthenticationError):
            deliver_challenge(connection, self._key)
            answer_challenge(connection, self._key)
            number = connection.recv()
            life = self._lives[number]
            if connection.poll(self._start_patience_s):
                self._note(number, connection, connection.recv())
                life.ready_s = time.monotonic()
                while connection.poll(self._patience_s):
                    self._note(number, connection, connection.recv())
            life.kill()
        if number is not None:
            self._note(number, connection, None)

    def _note(self, number: int, connection: Connection | None, what: Any) -> None:
        """Keep a message for `events`. Any thread may call this."""
        self._news.put((number, connection, what))


class _Life(RunThread):
    """Starts one replica, and starts it again when it has failed."""

    def __init__(
        self,
        num_ranks: int,
        args: Sequence[Any],
        restarts: int,
        ended: Callable[[Exception], None],
    ) -> None:
        """args: of `_serve`. ended: called with the error of the last start."""
        super().__init__()
        self._num_ranks, self._args = num_ranks, args
        self._restarts, self._ended = restarts, ended
        self.num_starts = 0
        self.ready_s = math.inf  # when this start began to serve

    def run(self) -> None:
        """Start the replica again and again, until it has failed too often in a row."""
        num_failures = 0
        while not self.is_over:
            self.num_starts += 1
            self.ready_s = math.inf
            try:
                self.launch(_serve, self._num_ranks, self._args, LONGEST_TIMEOUT_S)
            except RunTimeout:
                continue  # no failure: it was a run's longest time
            except Exception as error:
                if time.monotonic() - self.ready_s > _STEADY_S:
                    num_failures = 0
                num_failures += 1
                # Other errors come before any rank starts, so each start would raise them.
                if not isinstance(error, RunError) or num_failures > self._restarts:
                    self._ended(error)
                    return


def _serve(world: Group, make_engine: Callable[..., Engine], place: _Place, *args: Any) -> None:
    """Serve on each rank of a replica, until it is killed."""
    if world.rank:
        follow(_made(make_engine, world, args), world)
        return
    with Client(place.address, authkey=place.key) as connection:
        connection.send(place.number)
        own = _made(make_engine, world, args)
        engine: EngineClient = own if world.size == 1 else Leader(own, world)
        connection.send(_Ready(engine.config, engine.capacity, engine.num_free_pages))
        ids: dict[int, int] = {}  # id in the engine -> id of the request
        while True:
            outputs = _take_in(connection, engine, ids)
            for output in engine.step():
                outputs.append(output._replace(id=ids[output.id]))
                if output.finish_reason:
                    del ids[output.id]
            connection.send(_Report(outputs, engine.num_free_pages, engine.counts))
            engine.counts.clear()


def _made(make_engine: Callable[..., Engine], world: Group, args: Sequence[Any]) -> Engine:
    """Return this rank's engine when all ranks have one, so that no pass waits for it."""
    engine = make_engine(world, *args)
    world.barrier()
    return engine


def _take_in(connection: Connection, engine: EngineClient, ids: dict[int, int]) -> list[Output]:
    """Add and cancel the requests sent since the last pass. Without work, wait a while for one."""
    wait_s, refused = 0.0 if engine.has_work else _BEAT_S, []
    while connection.poll(wait_s):
        wait_s, what = 0.0, connection.recv()
        if isinstance(what, Cancel):
            for own in [own for own, id in ids.items() if id == what.id]:
                engine.cancel(own)
                del ids[own]
            continue
        try:
            ids[engine.add(what.request)] = what.id
        except (
            QueueFull,
            ValueError,
        ) as error:  # an engine can refuse a request that the router accepts
            refused.append(Output(what.id, None, "error", str(error)))
    return refused
