"""Serve requests that come at any time: passes of a decoder, planned by a scheduler.

    add(request) -> waiting -> running -> pass, pass, pass -> ended: its pages are free
                       ^          |
                       +----------+  preempted: no pages, but its tokens stay

    engine = Engine(Decoder(model), PagedCache(model.config, num_pages=64), continuous)
    engine.add(Request(prompt=[1, 2, 3], max_new_tokens=8))
    while engine.has_work:
        for output in engine.step():
            print(output.id, output.token, output.finish_reason)

It adds to plain.py: requests that come while others run, sampling, caches of a limited size, and
a choice of schedulers.

One step is one pass. It returns the new tokens, so that a caller can send each one at once.

Answers do not depend on the traffic. The decoder computes each sequence from its own tokens, and
each request draws from a random generator of its own. One exception: another batch can add sums in
another order, which can change a token in float32 if two logits are almost equal.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from labkit import arguments
from labkit.model import GPTConfig
from labkit.serving.caches import KVCache
from labkit.serving.decoder import Decoder
from labkit.serving.requests import Generation, Request, ScheduledTokens, sample
from labkit.serving.scheduler import Chunk, Plan, Scheduler, State


class QueueFull(RuntimeError):
    """The queue is full. A client asks again later; a server answers 429."""


class TooLong(ValueError):
    """A request has more tokens than the model has positions or the cache has slots."""


class Output(NamedTuple):
    """The next token of an answer, or the error that ends it.

    finish_reason: "stop" or "length" with the last token; "error" without a token; else None.
    """

    id: int
    token: int | None
    finish_reason: str | None
    error: str = ""

    def required_token(self) -> int:
        """Return the token. RuntimeError: the answer has ended with an error."""
        if self.token is None:
            raise RuntimeError(f"request {self.id} has no next token: {self.error}")
        return self.token


class EngineClient(ABC):
    """An engine as a caller sees it: one in this process, or those of a Router in others.

    config: the model's sizes. capacity: the most tokens of a request that is alone in the cache.
    most_unfinished: the most requests that it accepts when it has none; None: any number. waiting,
    running: the requests that have not ended. counts: since the start, of "preemptions", and of
    "prompt_tokens_cached", which were found in the cache and not computed.
    """

    config: GPTConfig
    capacity: float
    most_unfinished: int | None = None
    counts: Counter[str]
    waiting: list[Any]
    running: list[Any]

    @property
    @abstractmethod
    def num_free_pages(self) -> int:
        """Pages of the cache that no request holds; the sum over several engines."""

    @property
    def max_model_len(self) -> float:
        """The most tokens of one request, prompt and answer."""
        return min(self.capacity, self.config.max_positions or math.inf)

    @property
    def has_work(self) -> bool:
        """Return whether a request waits or runs."""
        return bool(self.waiting or self.running)

    @abstractmethod
    def add(self, request: Request) -> int:
        """Put a request into the queue; returns its id. ValueError, QueueFull: it is refused."""

    @abstractmethod
    def cancel(self, id: int) -> None:
        """Give up a request. Nothing happens if it has ended already."""

    @abstractmethod
    def step(self) -> list[Output]:
        """Return the next tokens as soon as there are any; the list may be empty."""

    def generate(self, requests: Iterable[Request]) -> list[list[int]]:
        """Return the answers to these requests, all added now, in their order.

        Tokens of requests that were added before are computed, too, and dropped.
        RuntimeError: one of them ends with an error. After any error, all of them are cancelled.
        """
        ids: list[int] = []
        answers = defaultdict(list)
        try:
            ids.extend(self.add(request) for request in requests)
            while self.has_work:
                for output in self.step():
                    answers[output.id].append(output.required_token())
        except BaseException:  # an interrupted notebook cell, too
            for id in ids:
                self.cancel(id)
            raise
        return [answers[id] for id in ids]


class Engine(EngineClient):
    """Requests in one cache, with the passes of one scheduler."""

    def __init__(
        self,
        decoder: Decoder,
        cache: KVCache,
        scheduler: Scheduler,
        *,
        max_waiting: int | None = None,
    ) -> None:
        """max_waiting: `add` refuses a request while this many wait. None: it never does."""
        self.decoder, self.cache, self.scheduler = decoder, cache, scheduler
        self.config, self.capacity = decoder.model.config, cache.capacity
        self.max_waiting = self.most_unfinished = max_waiting
        self.counts = Counter()
        self.waiting: list[Generation] = []
        self.running: list[Generation] = []
        self._ids = itertools.count()

    @property
    def num_free_pages(self) -> int:
        """Like EngineClient."""
        return self.cache.num_free_pages

    def add(self, request: Request) -> int:
        """Put a request into the queue; returns its id.

        ValueError if no pass could serve it: it has no tokens, or some outside the vocabulary.
        TooLong: it has more tokens than the model has positions or the cache has slots.
        QueueFull: `max_waiting` requests wait already.
        """
        require_servable(request, self.config, self.capacity)
        require_room("max_waiting", self.max_waiting, len(self.waiting))
        generation = Generation(next(self._ids), request)
        self.waiting.append(generation)
        return generation.id

    def cancel(self, id: int) -> None:
        """Give up a request and its pages. Nothing happens if it has ended already."""
        for queue in (self.waiting, self.running):
            queue[:] = [each for each in queue if each.id != id]
        self.cache.free(id)

    def step(self) -> list[Output]:
        """Run one pass and return the new tokens; a prompt that needs more passes has none yet.

        A request whose next token cannot be drawn ends with an error; the others go on. If the
        decoder raises, tokens are as before, and the step can be repeated.
        RuntimeError: the scheduler planned nothing although there is work, or more than fits.
        """
        if not self.has_work:
            return []
        while (plan := self._plan()).preempt:
            self._preempt(plan.preempt)
        if not plan.chunks:
            raise RuntimeError(
                f"the scheduler planned no tokens, with {len(self.waiting)} waiting and "
                f"{len(self.running)} running; it must admit or continue at least one"
            )
        for chunk in (
            plan.chunks
        ):  # share all prefixes before any page is taken, which could be one of theirs
            self._admit(chunk.generation)
        batch = [self._scheduled(chunk) for chunk in plan.chunks]
        outputs: list[Output] = []
        for chunk, entry, logits in zip(plan.chunks, batch, self._logits(batch), strict=True):
            generation = chunk.generation
            if self.cache.num_cached(generation.id) < entry.end < len(generation.tokens):
                raise RuntimeError(
                    f"a chunk of request {generation.id}'s prompt is not in the cache afterwards, "
                    f"so the prompt would never end: {type(self.cache).__name__} needs a scheduler "
                    "that computes whole prompts, such as preempting"
                )
            if entry.end == len(generation.tokens):  # else the next token is known already
                outputs += self._next(generation, logits)
                if outputs[-1].finish_reason == "error":
                    self.cache.unpublish(generation.id)
                if outputs[-1].finish_reason:
                    self.cancel(generation.id)
        return outputs

    def _plan(self) -> Plan:
        return self.scheduler(State(self.waiting, self.running, self.cache))

    def _logits(self, batch: list[ScheduledTokens]) -> Sequence[Tensor]:
        """Run the pass. Returns for each entry the argument of `_next`."""
        return list(self.decoder(batch, self.cache))

    def _next(self, generation: Generation, logits_V: Tensor) -> list[Output]:
        """Draw the next token and append it."""
        try:
            token = sample(logits_V, generation.request.sampling, generation.generator)
        except ValueError as error:
            return [Output(generation.id, None, "error", str(error))]
        generation.tokens.append(token)
        return [Output(generation.id, token, generation.finish_reason)]

    def _fill(self, generation: Generation) -> None:
        """Fill the cache with the tokens of an admitted generation that need no computing."""
        num_found = self.cache.share_prefix(generation.id, generation.tokens)
        if len(generation.tokens) == len(
            generation.request.prompt
        ):  # else it was preempted or moved
            self.counts["prompt_tokens_cached"] += num_found

    def _preempt(self, generation: Generation) -> None:
        """Free its pages, and put it at the front of the queue."""
        self.cancel(generation.id)
        self.waiting.insert(0, generation)
        self.counts["preemptions"] += 1

    def _admit(self, generation: Generation) -> None:
        """Move it from waiting to running, if it waits."""
        if generation in self.waiting:
            self.waiting.remove(generation)
            self.running.append(generation)
            self._fill(generation)

    def _scheduled(self, chunk: Chunk) -> ScheduledTokens:
        """Return tokens of a chunk. Room for all tokens of its generation is reserved at once."""
        generation, id = chunk.generation, chunk.generation.id
        if not self.cache.reserve(id, len(generation.tokens), generation.longest):
            raise RuntimeError(
                f"the scheduler planned request {id} with {len(generation.tokens)} tokens, and "
                f"the cache has {self.cache.num_free_pages} free pages; ask pages_needed before"
            )
        start = self.cache.num_cached(id)
        return ScheduledTokens(id, generation.tokens[start : start + chunk.num_tokens], start)


def require_room(name: str, limit: int | None, number: int) -> None:
    """Raise QueueFull if there are `limit` requests or more. limit: None for no limit."""
    if limit is not None and number >= limit:
        raise QueueFull(
            f"the limit is {name}={limit}, and {number} requests are there; ask again when some "
            "have been served"
        )


def require_servable(request: Request, config: GPTConfig, capacity: float) -> None:
    """Raise ValueError if no pass could ever serve the request. capacity: slots of the cache.

    TooLong: it has more tokens than the model has positions or the cache has slots.
    """
    prompt = request.prompt
    arguments.whole("max_new_tokens", request.max_new_tokens, "1 or more tokens")
    if not prompt:
        raise ValueError("the prompt is empty: give at least one token to continue")
    if wrong := [token for token in prompt if not 0 <= token < config.vocab]:
        raise ValueError(f"token {wrong[0]} is outside 0..{config.vocab - 1} of the model")
    limits = {
        "positions of the model": config.max_positions,
        "slots of the cache": capacity,
    }
    longest = len(prompt) + request.max_new_tokens
    for what, limit in limits.items():
        if limit is not None and longest > limit:
            raise TooLong(
                f"{len(prompt)} tokens of prompt and max_new_tokens={request.max_new_tokens} "
                f"are {longest}, more than the {limit} {what}; shorten one of them"
            )
