"""An engine in a thread of its own, asked by many tasks of an event loop.

    event loop                                       engine thread
    async for part in ask(requests)  -- calls -->    add, cancel       between two passes
        ...                                          engine.step()     a pass
                                     <-- parts --    token -> text     to each asker's queue

A pass takes milliseconds or more. An event loop that waited for it would serve no other client
meanwhile. Only the engine's thread uses the engine, so the engine needs no locks. A task whose
client has gone closes its iterator, and the request's pages are free before the next pass.

The thread also turns tokens into text. A request that reaches a stop string ends in that pass.

One call can ask for many answers. The engine has at most 8 of them at a time, a quarter of what
`labkit serve` runs, and the others wait here: another client's request does not wait for all.
"""

from __future__ import annotations

import asyncio
import time
import traceback
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, SimpleQueue
from threading import Thread
from typing import NamedTuple

from labkit.serving.byte_text import TextStream
from labkit.serving.metrics import Timing
from labkit.serving.prometheus import ServerMetrics
from labkit.serving.requests import Request
from labkit.serving.serving_engine import EngineClient, Output, QueueFull, require_servable

_MOST_OF_A_CALL = 8
_BEAT_S = 0.5
"""How often an engine without work makes a step."""


class EngineEnded(RuntimeError):
    """The engine has failed or was closed, and the answer is not complete."""


class Part(NamedTuple):
    """One more token of an answer: the text that it completes, perhaps none.

    choice: of which request, among those asked together. finish_reason: with the last token.
    """

    choice: int
    text: str
    finish_reason: str | None


@dataclass(eq=False)
class _Answer:
    """A request that is being served, and where its parts go."""

    choice: int
    request: Request
    text: TextStream
    send: Callable[[Part | Exception], None]
    timing: Timing = field(default_factory=lambda: Timing(time.perf_counter()))
    id: int = -1


class EngineThread:
    """Steps an engine while it has work, and gives each asker its parts."""

    def __init__(self, engine: EngineClient) -> None:
        self.engine = engine
        self.metrics = ServerMetrics(engine)
        self.ended: str | None = None  # why no request is served any more
        self._is_open = True
        self._answers: dict[int, _Answer] = {}
        self._later: list[list[_Answer]] = []  # by call, those that the engine does not have yet
        self._calls: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._thread = Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    async def ask(
        self, requests: Sequence[Request], stops: Sequence[str] = ()
    ) -> AsyncGenerator[Part]:
        """The parts of all answers, as passes compute them.

        All requests are taken, or none. Errors come with the first part: those of `Engine.add`,
        and EngineEnded. EngineEnded and RuntimeError, an error of this request, can come later.
        Closing the iterator cancels what has not ended.
        """
        parts: asyncio.Queue[Part | Exception] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def send(part: Part | Exception) -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody listens
                loop.call_soon_threadsafe(parts.put_nowait, part)

        answers = [_Answer(i, each, TextStream(stops), send) for i, each in enumerate(requests)]
        num_open = len(answers)
        self._calls.put(partial(self._add, answers))
        try:
            while num_open:
                part = await parts.get()
                if isinstance(part, Exception):
                    raise part
                yield part
                num_open -= part.finish_reason is not None
        finally:
            self._calls.put(partial(self._cancel, answers))

    def end(self, why: str) -> None:
        """End all answers with EngineEnded, also those that are asked for from now on."""
        self._calls.put(partial(self._end, why))

    def close(self) -> None:
        """End the thread. No task may ask afterwards."""
        self._calls.put(partial(setattr, self, "_is_open", False))
        self._thread.join()

    def _run(self) -> None:
        while self._is_open:
            try:
                self._make_calls()
                if self.ended is None:
                    self._add_later()
                    self._deliver(self.engine.step())
                    self.metrics.look_at(self.engine)
            except Exception as error:
                traceback.print_exc()
                self.end(f"the engine failed with {type(error).__name__}: {error}")

    def _make_calls(self) -> None:
        """Make all calls that have come. Without answers to compute, wait for one a while.

        The engine makes a step afterwards, also without work: it finds ranks that have died.
        """
        wait_s = 0.0 if self._answers or self._later else _BEAT_S
        with suppress(Empty):
            while True:
                self._calls.get(timeout=wait_s)()
                wait_s = 0.0

    def _add(self, answers: Sequence[_Answer]) -> None:
        ids: list[int] = []
        try:
            if self.ended is not None:
                raise EngineEnded(self.ended)
            for answer in answers:
                require_servable(answer.request, self.engine.config, self.engine.capacity)
            for answer in answers[:_MOST_OF_A_CALL]:
                ids.append(self.engine.add(answer.request))
        except (EngineEnded, QueueFull, ValueError) as error:
            self.metrics.ends["refused"] += len(answers)
            answers[0].send(error)
            for id in ids:
                self.engine.cancel(id)
            return
        except Exception as error:
            answers[0].send(EngineEnded(str(error)))
            raise
        for answer, id in zip(answers, ids, strict=False):
            self._begin(answer, id)
        if len(answers) > len(ids):
            self._later.append([*answers[len(ids) :]])

    def _begin(self, answer: _Answer, id: int) -> None:
        answer.id = id
        self._answers[id] = answer
        self.metrics.num_prompt_tokens += len(answer.request.prompt)

    def _add_later(self) -> None:
        """Give the engine the next answers of calls that have room for more, if it takes them."""
        num_begun = Counter(answer.send for answer in self._answers.values())
        for waiting in self._later:
            with suppress(QueueFull):
                while waiting and num_begun[waiting[0].send] < _MOST_OF_A_CALL:
                    self._begin(waiting[0], self.engine.add(waiting[0].request))
                    num_begun[waiting[0].send] += 1
                    del waiting[0]
        self._later = [waiting for waiting in self._later if waiting]

    def _cancel(self, answers: Sequence[_Answer], end: str = "cancelled") -> None:
        gone = answers[0].send
        self._later = [waiting for waiting in self._later if waiting[0].send is not gone]
        for answer in answers:
            if self._answers.pop(answer.id, None) is not None:
                self.engine.cancel(answer.id)
                self.metrics.ends[end] += 1

    def _end(self, why: str) -> None:
        self.ended = self.ended or why
        answers, self._answers = self._answers, {}
        self._later = []
        for answer in answers.values():
            answer.send(EngineEnded(self.ended))
            self.metrics.ends["error"] += 1
        for id in answers:
            self.engine.cancel(id)
        self.metrics.look_at(self.engine)

    def _deliver(self, outputs: Sequence[Output]) -> None:
        now_s = time.perf_counter()
        for output in outputs:
            answer = self._answers.get(output.id)
            if answer is None:
                continue  # a speculative pass gives several tokens, and one has ended the text
            if output.token is None:
                answer.send(RuntimeError(output.error))
                self._cancel([answer], "error")
                continue
            self.metrics.count_token(answer.timing, now_s)
            reason = output.finish_reason
            text = answer.text.push(output.token, is_last=reason is not None)
            if answer.text.is_stopped:
                reason = "stop"
                self.engine.cancel(output.id)
            answer.send(Part(answer.choice, text, reason))
            if reason is not None:
                del self._answers[output.id]
                self.metrics.ends[reason] += 1
