"""Policies, and a router over replicas that fail at any moment, here without processes."""

from collections import Counter, deque
from itertools import count
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.model import GPT, GPTConfig
from labkit.serving import (
    Decoder,
    Engine,
    Load,
    PagedCache,
    QueueFull,
    Replicas,
    Request,
    Router,
    Sampling,
    by_prefix,
    least_loaded,
    preempting,
    round_robin,
)
from labkit.serving.replicas import Add, _Ready
from labkit.serving.request_router import AllReplicasFailed
from labkit.serving.serving_engine import TooLong

CONFIG = GPTConfig(vocab=19, context=64, num_layers=1, hidden=8, num_heads=2, num_kv_heads=1)
MODEL = GPT(CONFIG, dtype=torch.float64)


def engine_of(num_pages=20):
    return Engine(Decoder(MODEL), PagedCache(CONFIG, num_pages, 4, torch.float64), preempting)


class ReplicasHere:
    """As Replicas, but engines of this process; `fail` and `start` are called by the test."""

    config, capacity = CONFIG, 80

    def __init__(self, num_replicas, restarts=999):
        self.engines, self.own_ids, self.ids = {}, {}, count()
        self.num_starts, self.errors, self.restarts = [0] * num_replicas, {}, restarts
        self.news, self.computed, self.counts = deque(), 0, Counter()
        for number in range(num_replicas):
            self.start(number)

    def start(self, number):
        if number not in self.engines and number not in self.errors:
            self.engines[number], self.own_ids[number] = engine_of(), {}
            self.num_starts[number] += 1

    def fail(self, number):
        """Its last outputs are lost, or not; nothing follows."""
        if self.engines.pop(number, None):
            self.news.append((number, None))
            if self.num_starts[number] > self.restarts:
                self.errors[number] = ConnectionError("it is dead")

    @property
    def ready(self):
        return sorted(self.engines)

    @property
    def is_over(self):
        return len(self.errors) == len(self.num_starts)

    def send(self, number, what):
        engine, ids = self.engines[number], self.own_ids[number]
        if isinstance(what, Add):
            ids[engine.add(what.request)] = what.id
        else:
            for own in [own for own, id in ids.items() if id == what.id]:
                engine.cancel(own)

    def step(self, number, is_lost=False):
        """A pass of a replica. is_lost: it fails before it sends what the pass gave."""
        outputs = self.engines[number].step()
        outputs = [output._replace(id=self.own_ids[number][output.id]) for output in outputs]
        self.fail(number) if is_lost else self.news.append((number, outputs))

    def events(self, wait_s):
        news, self.news = list(self.news), deque()
        return news


REQUESTS = st.builds(
    Request,
    prompt=st.lists(st.integers(0, 18), min_size=1, max_size=20),
    max_new_tokens=st.sampled_from([1, 6, 12]),
    sampling=st.builds(Sampling, temperature=st.sampled_from([0.0, 1.0]), seed=st.integers(0, 9)),
    stop=st.sampled_from([frozenset(), frozenset({3, 4})]),
)


@settings(max_examples=30)
@given(
    st.sampled_from([round_robin, least_loaded, by_prefix]),
    st.lists(REQUESTS, min_size=2, max_size=6),
    st.integers(0, 2**32).map(Random),
)
def test_each_token_is_given_out_once_whenever_replicas_fail(policy, requests, random):
    expected = [engine_of().generate([request])[0] for request in requests]
    replicas = ReplicasHere(3)
    router, answers, ends = Router(replicas, policy), {}, {}
    coming, cancelled = list(requests), set()
    while coming or router.has_work:
        if coming and random.random() < 0.5:
            answers[router.add(coming.pop(0))] = []
        number = random.randrange(3)
        if number not in replicas.ready:
            replicas.start(number)
        else:
            replicas.step(number, is_lost=random.random() < 0.06)
        if random.random() < 0.03:
            cancelled.add(number)
            router.cancel(number)
        if random.random() < 0.7:
            for output in router.step():
                assert output.id not in ends
                if output.token is not None:
                    answers[output.id].append(output.token)
                if output.finish_reason:
                    ends[output.id] = output.finish_reason
    for id, whole in enumerate(expected):
        if id in cancelled or ends[id] == "error":
            whole = whole[: len(answers[id])]
        assert answers[id] == whole
    for engine in replicas.engines.values():
        while engine.has_work:  # work on cancelled requests
            engine.step()
        assert engine.cache.num_free_pages == 20


def test_a_request_ends_with_an_error_after_three_failures_without_a_token():
    replicas = ReplicasHere(2)
    router = Router(replicas, round_robin)
    router.add(Request([1], 9))
    for number, gives_a_token in [
        (0, False),
        (1, False),
        (0, True),
        (1, False),
        (0, False),
        (1, False),
    ]:
        assert [each.replica for each in router.running] == [number]
        if gives_a_token:
            replicas.step(number)
            assert router.step()[0].token is not None
        replicas.fail(number)
        outputs = router.step()
        replicas.start(number)
    assert [(each.id, each.token, each.finish_reason) for each in outputs] == [(0, None, "error")]
    assert "3 replicas" in outputs[0].error
    assert not router.has_work


def test_requests_wait_while_no_replica_is_ready_and_those_that_ran_are_first():
    replicas = ReplicasHere(1)
    router = Router(replicas, least_loaded)
    router.add(Request([1], 9))
    replicas.fail(0)
    router.add(Request([2], 9))
    router.step()
    assert [each.id for each in router.waiting] == [0, 1]
    replicas.start(0)
    router.step()
    assert [(each.id, each.replica) for each in router.running] == [(0, 0), (1, 0)]


def test_when_all_have_failed_too_often_every_request_ends_with_an_error():
    replicas = ReplicasHere(2, restarts=0)
    router = Router(replicas, round_robin)
    router.add(Request([1], 9))
    router.add(Request([2], 9))
    replicas.fail(0)
    assert router.step() == []  # the other one takes it
    replicas.fail(1)
    outputs = router.step()
    assert [(each.id, each.finish_reason) for each in outputs] == [(1, "error"), (0, "error")]
    assert "2 starts" in outputs[0].error
    with pytest.raises(AllReplicasFailed):  # so that a server without requests hears of it
        router.step()
    with pytest.raises(AllReplicasFailed, match="ConnectionError"):
        router.add(Request([3], 9))


def test_what_cannot_be_served_is_refused_before_it_is_sent():
    router = Router(ReplicasHere(1), round_robin, max_unfinished=2)
    with pytest.raises(ValueError, match="64 positions"):
        router.add(Request([1], 64))
    router.add(Request([1], 9))
    first = router.running[0].id
    router.add(Request([1], 9))
    with pytest.raises(QueueFull, match="max_unfinished=2"):
        router.add(Request([1], 9))
    router.cancel(first)
    router.add(Request([1], 9))


def test_the_capacity_is_that_of_the_smallest_replica_also_after_a_restart():
    with Replicas(engine_of, 0) as replicas:
        for number, capacity, expected in [(0, 40, 40), (1, 80, 40), (0, 20, 20), (1, 60, 20)]:
            replicas._note(number, object(), _Ready(CONFIG, capacity, capacity // 4))
            replicas.events(0)
            assert replicas.capacity == expected
    here = ReplicasHere(1)
    router = Router(here, round_robin)
    here.capacity = 8
    router.step()
    with pytest.raises(TooLong):
        router.add(Request([1], 9))


def test_a_conversation_goes_on_where_its_beginning_is_cached():
    """Round robin computes the whole conversation on each replica in turn."""
    beginning, num_computed = [[i] * 17 for i in range(4)], {}
    for policy in (round_robin, by_prefix):
        replicas = ReplicasHere(3)
        router = Router(replicas, policy)
        places = []
        for turn in range(3):
            for number, prompt in enumerate(beginning):
                router.add(Request([*prompt, *[turn] * 16 * turn], 1))
                places.append((number, router.running[-1].replica))
                while router.has_work:
                    for each in replicas.ready:
                        replicas.step(each)
                    router.step()
        num_computed[policy] = len(set(places))
    assert num_computed == {round_robin: 12, by_prefix: 4}


def test_the_loads_are_what_each_replica_has_to_do_and_what_it_was_sent():
    def first(loads, num_before):
        seen.append(loads[0])
        return 0

    seen, replicas = [], ReplicasHere(1)
    router, prompt = Router(replicas, first), [5] * 33
    router.add(Request(prompt, 9))
    router.add(Request([5] * 32 + [6], 9))
    replicas.step(0)
    router.step()  # both have their first token
    router.add(Request([6] * 33, 9))
    router.cancel(0)
    assert len(replicas.engines[0].running) + len(replicas.engines[0].waiting) == 2
    router.cancel(1)
    router.add(Request(prompt, 9))
    replicas.fail(0)
    router.step()
    replicas.start(0)
    router.step()
    assert seen[:4] == [(0, 0, 0), (0, 42, 32), (0, 8 + 8, 0), (0, 42, 32)]
    assert seen[4:] == [(0, 0, 0), (0, 42, 0)]


def test_round_robin_leaves_out_those_that_are_not_ready():
    loads = [Load(0, 99, 0), Load(2, 0, 0), Load(3, 0, 0)]
    assert [round_robin(loads, turn) for turn in range(4)] == [0, 2, 3, 0]
    assert round_robin(loads[:1], 5) == 0


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3)), min_size=1, max_size=5),
    st.integers(0, 5),
)
def test_by_prefix_chooses_the_longest_prefix_near_the_least_load(numbers, bound):
    loads = [Load(replica, *each) for replica, each in enumerate(numbers)]
    chosen = loads[by_prefix(loads, 0, max_imbalance_tokens=bound)]
    least = loads[least_loaded(loads, 0)]
    assert least.outstanding_tokens == min(each.outstanding_tokens for each in loads)
    assert chosen.outstanding_tokens <= least.outstanding_tokens + bound
    for other in loads:
        is_near = other.outstanding_tokens <= least.outstanding_tokens + bound
        is_better = other.shared_tokens > chosen.shared_tokens or (
            other.shared_tokens == chosen.shared_tokens
            and other.outstanding_tokens < chosen.outstanding_tokens
        )
        assert not (is_near and is_better)
