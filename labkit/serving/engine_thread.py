"""An engine in its own thread for many tasks of an event loop, and its metrics.

    event loop                                       engine thread
    async for part in ask(requests)  -- calls -->    add, cancel       between two passes
        ...                                          engine.step()     a pass
                                     <-- parts --    token -> text     to each asker's queue

A pass takes milliseconds or more. An event loop that waited for it would serve no other client
meanwhile. Only the engine's thread uses the engine, so the engine needs no locks. A task whose
client has gone closes its iterator, and the request's pages are free before the next pass.

The thread also turns tokens into text. A request that reaches a stop string ends in that pass.

One call can ask for many answers. The engine has at most 8 of them at a time, a quarter of what
`labkit serve` runs. The others wait here, so that other clients' requests do not wait for all.

ServerMetrics has the measures of metrics.py in Prometheus' text format:

    labkit_time_to_first_token_seconds_bucket{le="0.01"} 3      3 requests waited 10 ms or less
    labkit_time_to_first_token_seconds_bucket{le="0.025"} 9     these 3, and 6 more
    labkit_requests_waiting 4

Prometheus reads the page every few seconds. Buckets are counts, so those of several replicas can be
added, and percentiles are estimated from the sums. Percentiles of replicas cannot be averaged.
https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

import asyncio
import math
import time
import traceback
from bisect import bisect_left
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, SimpleQueue
from threading import Thread
from typing import NamedTuple

from labkit.serving.byte_text import TextStream
from labkit.serving.metrics import Timing
from labkit.serving.requests import Request
from labkit.serving.serving_engine import EngineClient, Output, QueueFull, require_servable

_MOST_OF_A_CALL = 8
_BEAT_S = 0.5
"""Seconds between steps of an engine without work."""


class EngineEnded(RuntimeError):
    """The engine has failed or was closed, and the answer is not complete."""


class TextDelta(NamedTuple):
    """The text that one more token of an answer completes, perhaps none.

    choice: the index of its request in the call. finish_reason: with the last token, else None.
    """

    choice: int
    text: str
    finish_reason: str | None


class EngineThread:
    """Steps an engine while it has work, and sends each caller of `ask` its parts."""

    def __init__(self, engine: EngineClient) -> None:
        self.engine = engine
        self.metrics = ServerMetrics(engine)
        self.ended: str | None = None  # why no request is served any more
        self._is_open = True
        self._answers: dict[int, _Answer] = {}
        self._later: list[list[_Answer]] = []  # by call, answers that the engine does not have yet
        self._calls: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._thread = Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    async def ask(
        self, requests: Sequence[Request], stops: Sequence[str] = ()
    ) -> AsyncGenerator[TextDelta]:
        """Yield the parts of all answers, as passes compute them.

        All requests are accepted, or none. The first part raises the errors of `Engine.add`, and
        EngineEnded. Later parts can raise EngineEnded, and RuntimeError for a failed request.
        Closing the iterator cancels unfinished answers.
        """
        parts: asyncio.Queue[TextDelta | Exception] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def send(part: TextDelta | Exception) -> None:
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
        """End all answers with EngineEnded, later ones included."""
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
        """Make all waiting calls. Without answers to compute, first wait a while for a call.


        The engine makes a step afterwards even without work, which detects ranks that have died.
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
        """Give the engine the next answers of calls with fewer than _MOST_OF_A_CALL there."""
        num_started = Counter(answer.send for answer in self._answers.values())
        for waiting in self._later:
            with suppress(QueueFull):
                while waiting and num_started[waiting[0].send] < _MOST_OF_A_CALL:
                    self._begin(waiting[0], self.engine.add(waiting[0].request))
                    num_started[waiting[0].send] += 1
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
                continue  # a speculative pass gives several tokens, and one ended the text
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
            answer.send(TextDelta(answer.choice, text, reason))
            if reason is not None:
                del self._answers[output.id]
                self.metrics.ends[reason] += 1


@dataclass(eq=False)
class _Answer:
    """A request of a call, and the function that sends its parts."""

    choice: int
    request: Request
    text: TextStream
    send: Callable[[TextDelta | Exception], None]
    timing: Timing = field(default_factory=lambda: Timing(time.perf_counter()))
    id: int = -1


BOUNDS_S = (*(m * 10.0**e for e in (-3, -2, -1, 0) for m in (1, 2.5, 5)), 10.0, math.inf)
ENDS = ("stop", "length", "cancelled", "refused", "error")  # outcomes of requests


class Histogram:
    """Counts of values that are at most each bound, and the sum of the values."""

    def __init__(self) -> None:
        self.counts, self.sum = [0] * len(BOUNDS_S), 0.0

    def observe(self, value: float) -> None:
        """Count a value in the bucket with the smallest bound that is not below it."""
        self.counts[bisect_left(BOUNDS_S, value)] += 1
        self.sum += value

    def lines(self, name: str) -> Iterator[str]:
        """Yield a line per bucket, which counts the earlier buckets too; then sum and count."""
        total = 0
        for bound, count in zip(BOUNDS_S, self.counts, strict=True):
            total += count
            yield f'{name}_bucket{{le="{"+Inf" if bound == math.inf else f"{bound:g}"}"}} {total}'
        yield f"{name}_sum {self.sum}"
        yield f"{name}_count {total}"


class ServerMetrics:
    """Latencies, tokens and outcomes since the start; the engine's state after its last pass."""

    def __init__(self, engine: EngineClient) -> None:
        self._num_pages = engine.num_free_pages
        self.ttft, self.itl = Histogram(), Histogram()
        self.num_prompt_tokens, self.num_answer_tokens = 0, 0
        self.ends = Counter(dict.fromkeys(ENDS, 0))
        self.look_at(engine)

    def count_token(self, timing: Timing, now_s: float) -> None:
        """Count one more token of a request."""
        timing.token_s.append(now_s)
        self.num_answer_tokens += 1
        if len(timing.token_s) == 1:
            self.ttft.observe(timing.ttft_s)
        else:
            self.itl.observe(now_s - timing.token_s[-2])

    def look_at(self, engine: EngineClient) -> None:
        """Note the engine's state after a pass. Only the engine's thread may call this."""
        self._now = {
            "requests_running gauge": len(engine.running),
            "requests_waiting gauge": len(engine.waiting),
            "cache_pages gauge": self._num_pages,
            "cache_pages_free gauge": engine.num_free_pages,
            "preemptions_total counter": engine.counts["preemptions"],
            "prompt_tokens_cached_total counter": engine.counts["prompt_tokens_cached"],
        }

    def __str__(self) -> str:
        families: dict[str, Histogram | Counter[str] | int] = {
            "time_to_first_token_seconds histogram": self.ttft,
            "inter_token_latency_seconds histogram": self.itl,
            "prompt_tokens_total counter": self.num_prompt_tokens,
            "answer_tokens_total counter": self.num_answer_tokens,
            "requests_total counter": self.ends,
            **self._now,
        }
        lines = []
        for family, value in families.items():
            name = f"labkit_{family.split()[0]}"
            lines.append(f"# TYPE labkit_{family}")
            if isinstance(value, Histogram):
                lines += value.lines(name)
            elif isinstance(value, Counter):
                lines += [f'{name}{{end="{end}"}} {count}' for end, count in sorted(value.items())]
            else:
                lines.append(f"{name} {value}")
        return "\n".join([*lines, ""])
