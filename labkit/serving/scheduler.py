"""Schedulers choose the tokens of the next pass: five rungs, each with one more idea.

    waiting  g f e  ->  running  d c b a  ->  one batch per pass  ->  a new token each

plain.py is rung 2 with caches that grow without a limit. Here a cache can be full, and the rungs
differ in what happens then.

A scheduler is a pure function from the state to a plan. It changes nothing, so a test calls it
without a model. The engine (serving_engine.py) carries out the plan.

    rung 1  static_batches     a batch starts together; the next one starts when all have ended
    rung 2  continuous         the next generation starts in the pass after another one ended
    rung 3  preempting         nothing is reserved for later; when pages run out, the last one waits
    rung 4  chunked_prefill    a pass has a limit of tokens; long prompts take several passes
    rung 5  priorities         in the order of priority, also against those that run already

    pass     1    2    3    4    5    6         P: a prompt; t: a token; .: an idle place
    static   a P  a t  a t  a t  c P  c t       b ended in pass 2; c waits for the end of a
             b P  b t  .    .    d P  d t
    rung 2   a P  a t  a t  a t  d P  d t
             b P  b t  c P  c t  c t  c t

All rungs admit in order, and stop at the first that does not fit: a small request that overtakes a
large one could make it wait forever. So one rule holds after each pass: every running generation
comes before every waiting one, by arrival or, in rung 5, by priority and then arrival.

Papers: Yu et al., "Orca", OSDI 2022 (rung 2: iteration-level scheduling); Kwon et al.,
"PagedAttention", SOSP 2023, section 4.5 (rung 3); Agrawal et al., "Sarathi-Serve", OSDI 2024
(rung 4: stall-free batches).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from labkit.serving.pages import Pages
from labkit.serving.requests import Generation

if TYPE_CHECKING:
    from labkit.serving.caches import KVCache


@dataclass(frozen=True)
class State:
    """The input of a scheduler. waiting and running are in the order of arrival.

    A preempted generation waits before all that arrived after it. Of the cache a scheduler needs
    only the pages, without keys and values.
    """

    waiting: Sequence[Generation]
    running: Sequence[Generation]
    cache: KVCache | Pages


class Chunk(NamedTuple):
    """Compute at most so many tokens of a generation, the first ones that are not cached."""

    generation: Generation
    num_tokens: int


@dataclass(frozen=True)
class Plan:
    """Either chunks for the next pass, or one generation to preempt before the next question.

    The engine frees the pages of a preempted generation, lets it wait, and calls the scheduler
    again. So the scheduler need not know how many of these pages others share.
    """

    chunks: Sequence[Chunk] = field(default_factory=list)
    preempt: Generation | None = None


Scheduler = Callable[[State], Plan]


def static_batches(state: State, *, max_running: int = 8) -> Plan:
    """Rung 1: admit up to `max_running` when nothing runs. One that ends leaves an idle place."""
    waiting = [] if state.running else state.waiting
    return continuous(replace(state, waiting=waiting), max_running=max_running)


def continuous(state: State, *, max_running: int = 8) -> Plan:
    """Rung 2: admit in every pass, if the longest answers of all that run fit together.

    Most answers end before they use the pages promised to them, so the cache is never full.
    """
    promised = sum(_pages(state, each, each.longest) for each in state.running)
    admitted, room = [], state.cache.num_free_pages - promised
    for each in state.waiting[: max_running - len(state.running)]:
        room -= _pages(state, each, each.longest)
        if room < 0:
            break
        admitted.append(each)
    return Plan([_all_tokens(state, each) for each in [*state.running, *admitted]])


def preempting(state: State, *, max_running: int = 8) -> Plan:
    """Rung 3: admit if the tokens so far fit. If the cache is full, preempt the last one.

    The preempted generation keeps its tokens and loses its pages. When it is admitted again, one
    pass computes keys and values of all its tokens: preemption by recomputation. The first one
    is never preempted, so it ends, and so does the next.
    """
    chunks: list[Chunk] = []
    room = state.cache.num_free_pages
    for each in [*state.running, *state.waiting[: max_running - len(state.running)]]:
        room -= _pages(state, each, len(each.tokens))
        if room < 0:
            return Plan(preempt=state.running[-1]) if each in state.running else Plan(chunks)
        chunks.append(_all_tokens(state, each))
    return Plan(chunks)


def chunked_prefill(state: State, *, max_running: int = 8, token_budget: int = 64) -> Plan:
    """Rung 4: at most `token_budget` tokens in a pass: single tokens first, prompts with the rest.

    A pass takes longer with more tokens, and all that run wait for it. The budget bounds the gap
    between two tokens of an answer, however long other prompts are; a prompt itself takes longer.
    Tokens of a prefix that is cached do not count.
    Choose a budget of at least max_running, or some generations wait although they run. It needs a
    cache that keeps tokens, not NoCache.
    """
    plan = preempting(state, max_running=max_running)

    def has_prompt_to_do(chunk: Chunk) -> bool:
        return chunk.num_tokens > 1 or chunk.generation in state.waiting

    chunks, left = [], token_budget
    for chunk in sorted(plan.chunks, key=has_prompt_to_do):  # which keeps the order of arrival
        if num_tokens := min(chunk.num_tokens, left):
            chunks.append(chunk._replace(num_tokens=num_tokens))
        left -= num_tokens
    return replace(plan, chunks=chunks)


def priorities(state: State, *, max_running: int = 8, token_budget: int = 64) -> Plan:
    """Rung 5: as rung 4, by priority, and within a priority by arrival.

    If a waiting generation that comes before a running one gets no tokens, the last running one is
    preempted, whether places, pages or the budget are short. Requests of a low priority can wait
    forever, as long as others of a higher one arrive.
    """

    def order(each: Generation) -> tuple[int, int]:
        return each.request.priority, each.id

    waiting, running = sorted(state.waiting, key=order), sorted(state.running, key=order)
    state = State(waiting, running, state.cache)
    plan = chunked_prefill(state, max_running=max_running, token_budget=token_budget)
    planned = [chunk.generation for chunk in plan.chunks]
    left_out = [each for each in waiting if each not in planned]
    if left_out and running and order(left_out[0]) < order(running[-1]):
        return Plan(preempt=running[-1])
    return plan


def _pages(state: State, each: Generation, num_tokens: int) -> int:
    """Return how many more pages a generation needs to have room for so many tokens."""
    return state.cache.pages_needed(each.id, num_tokens, each.longest)


def _all_tokens(state: State, each: Generation) -> Chunk:
    """Return all its tokens that are not cached: the rest of a prompt, or one token."""
    num_cached = state.cache.num_cached(each.id) or state.cache.num_found(each.tokens)
    return Chunk(each, len(each.tokens) - num_cached)
