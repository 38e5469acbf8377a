"""The rules of each scheduler over random traffic, without a model, and small examples of each."""

from collections import Counter
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.model import GPTConfig
from labkit.serving import (
    ContiguousCache,
    Engine,
    PagedCache,
    Request,
    chunked_prefill,
    continuous,
    preempting,
    priorities,
    static_batches,
)
from labkit.serving.scheduler import Chunk, Plan

CONFIG = GPTConfig(vocab=16, num_layers=1, hidden=1, num_heads=1, context=1000)
MOST_RUNNING, BUDGET, NUM_SLOTS = 3, 5, 24


class FakeDecoder:
    """The next token follows from the last one and its place. Notes the batch of each pass."""

    model = SimpleNamespace(config=CONFIG)

    def __init__(self):
        self.passes = []

    def __call__(self, batch, cache):
        cache.slots(batch)  # ValueError: no room, or not where the cached tokens end
        cache.commit(batch)
        self.passes.append(batch)
        return torch.eye(16)[[next_token(entry.tokens[-1], entry.end) for entry in batch]]


def next_token(last, place):
    return (7 * last + 3 * place + 1) % 16


def answer(request):
    tokens = list(request.prompt)
    for place in range(len(tokens), len(tokens) + request.max_new_tokens):
        tokens.append(next_token(tokens[-1], place))
        if tokens[-1] in request.stop:
            break
    return tokens[len(request.prompt) :]


def pure(scheduler):
    """Asked twice, it plans the same, and changes neither the queues nor the cache."""

    def ask(state):
        before = list(state.waiting), list(state.running), state.cache.num_free_pages
        plan = scheduler(state)
        assert plan == scheduler(state)
        assert before == (list(state.waiting), list(state.running), state.cache.num_free_pages)
        return plan

    return ask


def check(engine, order):
    """Check what holds after each step, whatever the scheduler."""
    running = {each.id for each in engine.running}
    assert len(running) <= MOST_RUNNING
    if engine.running and engine.waiting:
        assert max(map(order, engine.running)) < min(map(order, engine.waiting))
    cache = engine.cache
    if isinstance(cache, PagedCache):
        assert cache._tables.keys() <= running
        tables = [table.pages for table in cache._tables.values()]
        held = Counter(page for table in tables for page in set(table))
        assert sum(held.values()) == sum(map(len, tables))
        assert cache.pool.references == [held[page] for page in range(len(cache.pool.references))]
        assert len(held) + cache.num_free_pages == NUM_SLOTS // cache.page_size
    else:
        assert cache._regions.keys() <= running


def arrival(each):
    return each.id


def priority(each):
    return each.request.priority, each.id


SCHEDULERS = {
    "static": (partial(static_batches, max_running=MOST_RUNNING), arrival),
    "continuous": (partial(continuous, max_running=MOST_RUNNING), arrival),
    "preempting": (partial(preempting, max_running=MOST_RUNNING), arrival),
    "chunked": (
        partial(chunked_prefill, max_running=MOST_RUNNING, token_budget=BUDGET),
        arrival,
    ),
    "priorities": (
        partial(priorities, max_running=MOST_RUNNING, token_budget=BUDGET),
        priority,
    ),
}
CACHES = {
    "regions": lambda: ContiguousCache(CONFIG, NUM_SLOTS),
    "pages of 1": lambda: PagedCache(CONFIG, NUM_SLOTS, 1),
    "pages of 3": lambda: PagedCache(CONFIG, NUM_SLOTS // 3, 3),
}
PROMPTS = st.one_of(
    st.integers(1, 12).map(range), st.lists(st.integers(0, 15), min_size=1, max_size=9)
)
REQUESTS = st.builds(
    Request,
    prompt=PROMPTS,
    max_new_tokens=st.integers(1, 12),
    stop=st.frozensets(st.integers(0, 15), max_size=2),
    priority=st.integers(0, 2),
)
EVENTS = st.lists(
    st.one_of(REQUESTS, REQUESTS, st.just("step"), st.integers(0, 9)), min_size=10, max_size=40
)


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@settings(max_examples=60)
@given(cache=st.sampled_from(sorted(CACHES)), events=EVENTS)
def test_rules_hold_after_each_step_and_every_request_ends(scheduler, cache, events):
    """An event is a request, a step, or the id of a request to cancel."""
    schedule, order = SCHEDULERS[scheduler]
    engine = Engine(FakeDecoder(), CACHES[cache](), pure(schedule))
    requests, reasons = {}, {}

    def step():
        for output in engine.step():
            requests[output.id][1].append(output.token)
            reasons[output.id] = output.finish_reason
        check(engine, order)

    for event in events:
        if isinstance(event, Request):
            requests[engine.add(event)] = event, []
        elif event == "step":
            step()
        else:
            engine.cancel(event)
            requests.pop(event, None)
    longest = sum(each.longest for each in [*engine.waiting, *engine.running])
    steps = 0
    while engine.has_work:
        step()
        steps += 1
    # Each pass computes a token of the first one at least: none waits for ever.
    assert steps <= longest
    for number, (request, tokens) in requests.items():
        assert tokens == answer(request)
        assert reasons[number] == ("stop" if tokens[-1] in request.stop else "length")
    assert engine.cache.num_free_pages == CACHES[cache]().num_free_pages
    for batch in engine.decoder.passes:
        assert len(batch) <= MOST_RUNNING
        if scheduler in ("chunked", "priorities"):
            assert sum(len(entry.tokens) for entry in batch) <= BUDGET


def passes(scheduler, requests, num_pages=24, **limits):
    """The passes until all have ended: {id: tokens computed} of each."""
    engine = Engine(FakeDecoder(), PagedCache(CONFIG, num_pages, 1), partial(scheduler, **limits))
    engine.generate(requests)
    return [{entry.sequence: len(entry.tokens) for entry in each} for each in engine.decoder.passes]


def test_a_static_batch_keeps_idle_places_that_continuous_batching_fills():
    requests = [Request([i, 2], num_tokens) for i, num_tokens in enumerate([4, 2, 4, 2])]
    assert passes(static_batches, requests, max_running=2) == [
        *[{0: 2, 1: 2}, {0: 1, 1: 1}, {0: 1}, {0: 1}],
        *[{2: 2, 3: 2}, {2: 1, 3: 1}, {2: 1}, {2: 1}],
    ]
    assert passes(continuous, requests, max_running=2) == [
        *[{0: 2, 1: 2}, {0: 1, 1: 1}, {0: 1, 2: 2}, {0: 1, 2: 1}],
        *[{2: 1, 3: 2}, {2: 1, 3: 1}],
    ]


def test_without_promises_more_run_and_the_last_one_is_computed_again():
    requests = [Request([i, 2], 4) for i in range(2)]
    assert passes(continuous, requests, num_pages=6)[0] == {0: 2}
    assert passes(preempting, requests, num_pages=6) == [
        *[{0: 2, 1: 2}, {0: 1, 1: 1}, {0: 1}, {0: 1}],  # no page left for 1's third token
        *[{1: 3}, {1: 1}],  # the page of its first token is still there
    ]


def test_a_long_prompt_takes_what_single_tokens_leave_of_the_budget():
    requests = [Request([1], 4), Request([2] * 7, 1), Request([3], 1)]
    assert passes(chunked_prefill, requests, token_budget=4) == [
        {0: 1, 1: 3},
        {0: 1, 1: 3},
        {0: 1, 1: 1, 2: 1},
        {0: 1},
    ]


def test_a_prefix_that_is_cached_takes_nothing_of_the_budget():
    decoder = FakeDecoder()
    engine = Engine(decoder, PagedCache(CONFIG, 40, 4), partial(chunked_prefill, token_budget=5))
    prompt = [*range(9)]
    engine.generate([Request(prompt, 1)])
    engine.generate([Request([*prompt, i], 1) for i in range(2)])
    assert [[len(entry.tokens) for entry in each] for each in decoder.passes[2:]] == [[2, 2]]


def test_a_small_request_does_not_overtake_one_that_does_not_fit():
    requests = [Request([1] * 4, 1), Request([2] * 4, 1), Request([3], 1)]
    assert passes(preempting, requests, num_pages=6)[0] == {0: 4}


def test_a_higher_priority_takes_the_place_of_the_last_one():
    decoder = FakeDecoder()
    engine = Engine(decoder, PagedCache(CONFIG, 24, 1), partial(priorities, max_running=2))
    for number in (1, 2):
        engine.add(Request([number], 3, priority=number))
    engine.step()
    engine.add(Request([3], 2, priority=0))
    while engine.has_work:
        engine.step()
    assert [sorted(entry.sequence for entry in each) for each in decoder.passes] == [
        [0, 1],
        [0, 2],
        [0, 2],
        [1],
        [1],
    ]


def test_a_scheduler_that_plans_nothing_is_reported():
    engine = Engine(FakeDecoder(), PagedCache(CONFIG, 4, 1), lambda state: Plan())
    engine.add(Request([1] * 2, 2))
    with pytest.raises(RuntimeError, match="1 waiting and 0 running"):
        engine.step()


def test_a_scheduler_that_plans_more_than_fits_is_reported():
    engine = Engine(FakeDecoder(), PagedCache(CONFIG, 4, 1), greedy_for_room)
    for _ in range(2):
        engine.add(Request([1] * 3, 1))
    with pytest.raises(RuntimeError, match="planned request 1 with 3 tokens"):
        engine.step()


def greedy_for_room(state):
    return Plan([Chunk(each, len(each.tokens)) for each in state.waiting])
