"""A router sends each request to a replica, and to another one if that replica fails.

    add(request) -> policy -> replica 1     tokens  a b c     killed
                              replica 0                 d e f     the same answer, each token once

Which replica? A policy is a pure function of the router's knowledge of each replica's load.

    round_robin     the next one. Even in requests, not in tokens: answers differ in length
    least_loaded    the one that has the fewest tokens left to compute
    by_prefix       the one that was sent the longest part of the prompt before, and so has it in
                    its cache; but only among those whose load is near the least

Without the last condition, requests with one popular prefix would all go to one replica.

If a replica fails, its requests go on at another one. The router has kept the tokens so far. The
other replica gets them as `Request.prior_output`, computes keys and values of all tokens in a pass,
as after a preemption, and draws with the request's seed where the first one stopped. If three
replicas in a row fail before they return a token of a request, the request ends with an error: it
may be the cause.

Paper: Srivatsa et al., "Preble", arXiv:2407.00023 (by prefix, with a bound on imbalance; SGLang's
router has one, too).
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from labkit.serving.pages import prefix_keys
from labkit.serving.replicas import Add, Cancel, Replicas
from labkit.serving.requests import Request
from labkit.serving.serving_engine import EngineClient, Output, require_room, require_servable

_WAIT_S = 0.02
_MOST_FAILURES = 3
_BLOCK = 16  # tokens per prefix key that the router remembers


class AllReplicasFailed(RuntimeError):
    """No replica serves, and none will be started again."""


class Load(NamedTuple):
    """A replica's load, as a policy knows it.

    outstanding_tokens: the most tokens that its requests still need, with prompts. shared_tokens:
    the first tokens of this prompt that it was sent before.
    """

    replica: int
    outstanding_tokens: int
    shared_tokens: int


Policy = Callable[[Sequence[Load], int], int]
"""(loads of all replicas that are ready, number of earlier requests) -> replica.
"""


def round_robin(loads: Sequence[Load], num_before: int) -> int:
    """Return the next replica in turn."""
    return loads[num_before % len(loads)].replica


def least_loaded(loads: Sequence[Load], num_before: int) -> int:
    """Return the replica with the fewest outstanding tokens."""
    return min(loads, key=lambda load: load.outstanding_tokens).replica


def by_prefix(loads: Sequence[Load], num_before: int, *, max_imbalance_tokens: int = 256) -> int:
    """Return the replica with the longest known prefix among those near the least load.

    Of equals, it is the one with the least load."""
    least = min(load.outstanding_tokens for load in loads)
    near = [load for load in loads if load.outstanding_tokens <= least + max_imbalance_tokens]
    return max(near, key=lambda load: (load.shared_tokens, -load.outstanding_tokens)).replica


@dataclass(eq=False)
class RoutedRequest:
    """A request that has not ended, and the tokens of its answer that the router gave out.

    replica: the one that has it; None: it waits for one. num_before: tokens when this replica got
    it. num_failures: replicas in a row that failed before they returned a token of it.
    """

    id: int
    request: Request
    answer: list[int] = field(default_factory=list)
    replica: int | None = None
    num_before: int = 0
    num_failures: int = 0

    @property
    def continuation(self) -> Request:
        """The request, with all tokens of its answer that are known."""
        return replace(self.request, prior_output=[*self.request.prior_output, *self.answer])

    @property
    def has_started(self) -> bool:
        """Return whether its replica gave a token of it."""
        return len(self.answer) > self.num_before

    @property
    def outstanding_tokens(self) -> int:
        """The most tokens that its replica has yet to compute."""
        if not self.has_started:  # its answer so far is computed again, too
            return len(self.request.prompt) + self.request.max_new_tokens
        return self.request.max_new_tokens - len(self.request.prior_output) - len(self.answer)


class Router(EngineClient):
    """Several replicas as one engine. num_moved: answers that went on at another replica."""

    def __init__(
        self, replicas: Replicas, policy: Policy, *, max_unfinished: int | None = None
    ) -> None:
        """max_unfinished: `add` refuses a request while it has this many. None: it never does."""
        self.replicas, self.policy = replicas, policy
        self.max_unfinished = self.most_unfinished = max_unfinished
        self.config, self.capacity = replicas.config, replicas.capacity
        self.counts = replicas.counts
        self.waiting: list[RoutedRequest] = []  # for a replica that is ready
        self.running: list[RoutedRequest] = []  # at a replica, in its queue or in its passes
        self._num_placed = self.num_moved = 0
        # The blocks of tokens that each replica was sent, by prefix key, the latest last.
        self._sent: dict[int, dict[bytes, None]] = defaultdict(dict)

    @property
    def num_free_pages(self) -> int:
        """Like EngineClient."""
        return self.replicas.num_free_pages

    def add(self, request: Request) -> int:
        """Route a request, or let it wait until a replica is ready; returns its id.

        ValueError: no pass could ever serve it. QueueFull: there are `max_unfinished` requests.
        AllReplicasFailed: nothing will serve it.
        """
        require_servable(request, self.config, self.capacity)
        if self.replicas.is_over:
            raise AllReplicasFailed(self._none_is_left())
        require_room("max_unfinished", self.max_unfinished, len(self.waiting) + len(self.running))
        routed = RoutedRequest(next(self.replicas.ids), request)
        self.waiting.append(routed)
        self._place()
        return routed.id

    def cancel(self, id: int) -> None:
        """Give up a request. Nothing happens if it has ended already."""
        for each in self.running:
            if each.id == id and each.replica in self.replicas.ready:
                self.replicas.send(each.replica, Cancel(id))
        for queue in (self.waiting, self.running):
            queue[:] = [each for each in queue if each.id != id]

    def step(self) -> list[Output]:
        """Return the tokens that have come; waits up to 20 ms for the first.

        AllReplicasFailed: nothing serves, and every request has ended.
        """
        outputs = []
        for number, what in self.replicas.events(_WAIT_S):
            outputs += self._lost(number) if what is None else self._received(what)
        self.capacity = self.replicas.capacity  # a start can have fewer pages than the one before
        self._place()
        if self.replicas.is_over:
            reason = self._none_is_left()
            outputs += [Output(each.id, None, "error", reason) for each in self.waiting]
            self.waiting.clear()
            if not (outputs or self.running):
                raise AllReplicasFailed(reason)
        return outputs

    def _place(self) -> None:
        """Send all waiting requests to replicas, if one is ready."""
        while self.waiting and self.replicas.ready:
            routed = self.waiting.pop(0)
            continuation = routed.continuation
            keys = list(_keys(continuation))
            loads = [self._load(number, keys) for number in self.replicas.ready]
            number = self.policy(loads, self._num_placed)
            self._num_placed += 1
            self._remember(number, keys)
            routed.replica, routed.num_before = number, len(routed.answer)
            self.running.append(routed)
            self.replicas.send(number, Add(routed.id, continuation))

    def _load(self, number: int, keys: Sequence[bytes]) -> Load:
        shared = itertools.takewhile(self._sent[number].__contains__, keys)
        outstanding = sum(
            each.outstanding_tokens for each in self.running if each.replica == number
        )
        return Load(number, outstanding, _BLOCK * len(list(shared)))

    def _remember(self, number: int, keys: Iterable[bytes]) -> None:
        """Note that a replica has these blocks; forget the oldest ones beyond its cache."""
        sent = self._sent[number]
        for key in keys:
            sent.pop(key, None)
            sent[key] = None
        while len(sent) * _BLOCK > self.capacity:
            del sent[next(iter(sent))]

    def _received(self, outputs: Sequence[Output]) -> list[Output]:
        """Take in tokens; those of requests that were cancelled meanwhile are dropped."""
        known = {each.id: each for each in self.running}
        outputs = [output for output in outputs if output.id in known]
        for output in outputs:
            routed = known[output.id]
            if output.token is not None:
                routed.answer.append(output.token)
            if output.finish_reason:
                self.running.remove(routed)
                assert routed.replica is not None
                self._remember(routed.replica, _keys(routed.continuation))
        return outputs

    def _lost(self, number: int) -> list[Output]:
        """Put the requests of a failed replica at the front of the queue."""
        self._sent.pop(number, None)
        lost = [each for each in self.running if each.replica == number]
        self.running = [each for each in self.running if each.replica != number]
        self.num_moved += sum(each.has_started for each in lost)
        for each in lost:
            each.replica = None
            each.num_failures = 0 if each.has_started else each.num_failures + 1
        self.waiting[:0] = [each for each in lost if each.num_failures < _MOST_FAILURES]
        reason = (
            f"{_MOST_FAILURES} replicas in a row failed while they had this request, and it may be "
            "the cause"
        )
        return [
            Output(each.id, None, "error", reason)
            for each in lost
            if each.num_failures == _MOST_FAILURES
        ]

    def _none_is_left(self) -> str:
        *_, error = self.replicas.errors.values()
        return (
            f"no replica is left after {sum(self.replicas.num_starts)} starts, and the last one "
            f"ended with {type(error).__name__}; see Replicas.errors, and start new ones"
        )


def _keys(request: Request) -> Iterator[bytes]:
    """Return the prefix keys of its blocks of tokens, prompt and answer."""
    return prefix_keys([*request.prompt, *request.prior_output], _BLOCK)
