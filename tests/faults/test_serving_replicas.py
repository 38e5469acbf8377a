"""Replicas in real processes: killed, frozen, broken. Each answer has its tokens, each one once."""

import os
import signal
import threading
import time
from dataclasses import replace

import pytest
import torch

from labkit import RankError
from labkit.model import GPT, GPTConfig
from labkit.serving import (
    Decoder,
    Engine,
    PagedCache,
    Replicas,
    Request,
    Router,
    Sampling,
    by_prefix,
    least_loaded,
    preempting,
    round_robin,
    serve,
)
from labkit.serving.parallel_decoders import TensorParallelDecoder
from labkit.serving.replicas import Add
from labkit.serving.request_router import AllReplicasFailed
from labkit.tensor_parallel import parallelize

CONFIG = GPTConfig(vocab=19, context=64, num_layers=1, hidden=8, num_heads=2, num_kv_heads=2)
POISON = 13


def make_engine(world, poison=None, vocab=19, pass_s=0.005):
    """An engine on one rank, or on several; a pass lasts a while."""
    torch.manual_seed(0)
    model = GPT(replace(CONFIG, vocab=vocab), dtype=torch.float64)
    with torch.no_grad():  # larger weights, so that answers are not one token again and again
        for name, weight in model.named_parameters():
            weight.mul_(20 if weight.dim() == 2 and "token" not in name else 1)
    is_parallel = world is not None and world.size > 1
    decoder = TensorParallelDecoder(parallelize(model, world)) if is_parallel else Decoder(model)

    def slow(batch, cache):
        if world is not None:
            time.sleep(pass_s)
        if any(poison in entry.tokens for entry in batch):
            raise ArithmeticError("the poison")
        return decoder(batch, cache)

    slow.model, slow.cache_config = decoder.model, decoder.cache_config
    return Engine(slow, PagedCache(decoder.cache_config, 40, 4, torch.float64), preempting)


REQUESTS = [Request([i, 1, 2], 40, Sampling(i % 2, seed=i)) for i in range(6)]
EXPECTED = make_engine(None).generate(REQUESTS)


def serve_and(router, fail, after=60):
    """Serve all requests; call `fail()` once so many tokens are there. (answers, who had which)."""
    answers = {router.add(request): [] for request in REQUESTS}
    while router.has_work:
        for output in router.step():
            answers[output.id].append(output.token)
        if fail is not None and sum(map(len, answers.values())) >= after:
            had = [(each.id, each.replica, len(each.answer)) for each in router.running]
            fail()
            fail = None
    return list(answers.values()), had


def wait_until_ready(router, num_replicas):
    while len(router.replicas.ready) < num_replicas:
        router.step()


@pytest.fixture(scope="module")
def two():
    with Replicas(make_engine, 2) as replicas:
        yield replicas


@pytest.mark.parametrize("policy", [round_robin, least_loaded, by_prefix])
def test_an_answer_goes_on_at_another_replica_when_its_own_is_killed(two, policy):
    router = Router(two, policy)
    wait_until_ready(router, 2)
    starts = list(two.num_starts)
    answers, had = serve_and(router, lambda: os.kill(two.pids[0][0], signal.SIGKILL))
    assert answers == EXPECTED
    assert router.num_moved == len([1 for _, replica, num in had if replica == 0 and num < 40]) > 0
    wait_until_ready(router, 2)
    assert two.num_starts == [starts[0] + 1, starts[1]]
    assert two.used_pages == {0: 0, 1: 0}


def test_a_cancelled_request_frees_its_pages(two):
    router = Router(two, least_loaded)
    wait_until_ready(router, 2)
    ids = [router.add(request) for request in REQUESTS]
    while sum(two.used_pages.values()) < 6:
        router.step()
    for id in ids:
        router.cancel(id)
    assert not router.has_work
    while any(two.used_pages.values()):
        assert router.step() == []


def test_tokens_for_another_router_are_dropped(two):
    earlier = Router(two, round_robin)
    wait_until_ready(earlier, 2)
    for request in REQUESTS:
        earlier.add(request)
    while not earlier.step():
        pass
    assert Router(two, round_robin).generate(REQUESTS) == EXPECTED


def test_preemptions_of_replicas_are_counted(two):
    router = Router(two, lambda loads, num_before: loads[0].replica)
    wait_until_ready(router, 2)
    before = router.counts["preemptions"]
    assert router.generate(REQUESTS) == EXPECTED  # 66 pages of 40
    assert router.counts["preemptions"] > before


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_replica_of_two_ranks_fails_as_one(how):
    with Replicas(make_engine, 2, num_ranks=2, patience_s=10) as replicas:
        ranks = replicas.pids[0]
        router = Router(replicas, least_loaded)
        answers, had = serve_and(router, lambda: os.kill(ranks[1], how))
        assert answers == EXPECTED
        assert any(replica == 0 and 0 < num < 40 for _, replica, num in had)
        wait_until_ready(router, 2)
        assert not any(map(is_running, ranks))
        assert not set(replicas.pids[0]) & set(ranks)


def is_running(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_request_that_breaks_replicas_ends_with_an_error_and_the_next_are_served():
    with Replicas(make_engine, 2, (POISON,), restarts=1) as replicas:
        router = Router(replicas, round_robin)
        poisoned = router.add(Request([POISON], 5))
        outputs = []
        while router.has_work:
            outputs += router.step()
        assert [output[:3] for output in outputs] == [(poisoned, None, "error")]
        assert replicas.num_starts == [2, 2]
        assert router.generate(REQUESTS[:1]) == EXPECTED[:1]


def test_a_stream_of_a_server_goes_on_when_its_replica_is_killed():
    openai = pytest.importorskip("openai")
    pytest.importorskip("fastapi")
    with Replicas(make_engine, 2, (None, 256, 0.02)) as replicas:
        router = Router(replicas, least_loaded)
        with serve(router) as server:
            client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")
            what = {"model": "labkit", "prompt": "abc", "max_tokens": 60, "seed": 1}
            expected = client.completions.create(**what).choices[0].text
            text = ""
            for number, part in enumerate(client.completions.create(**what, stream=True)):
                text += part.choices[0].text
                if number == 5:
                    (busy,) = [each.replica for each in router.running]
                    os.kill(replicas.pids[busy][0], signal.SIGKILL)
    assert (text, router.num_moved) == (expected, 1)


def test_a_request_that_an_engine_refuses_ends_with_its_error(two):
    starts = list(two.num_starts)
    two.send(0, Add(7, Request([99], 1)))
    outputs = []
    while not outputs and two.num_starts == starts:
        outputs = [output for _, found in two.events(1) for output in found or ()]
    assert [output[:3] for output in outputs] == [(7, None, "error")]
    assert two.num_starts == starts


def test_without_a_replica_requests_end_with_an_error_and_nothing_is_left():
    num_threads = threading.active_count()
    with Replicas(make_engine, 2, restarts=0) as replicas:
        all_pids = sum(replicas.pids, [])
        router = Router(replicas, least_loaded)
        answers = {router.add(request): [] for request in REQUESTS}
        for number, (pid,) in enumerate(replicas.pids):
            while not any(each.replica == number and each.answer for each in router.running):
                for output in router.step():
                    answers[output.id].append(output)
            os.kill(pid, signal.SIGKILL)
        while router.has_work:
            for output in router.step():
                answers[output.id].append(output)
        assert {type(error) for error in replicas.errors.values()} == {RankError}
        assert replicas.used_pages == {}
        with pytest.raises(AllReplicasFailed):
            router.add(REQUESTS[0])
    for outputs, whole in zip(answers.values(), EXPECTED, strict=True):
        assert outputs[-1].finish_reason == "error"
        assert [output.token for output in outputs[:-1]] == whole[: len(outputs) - 1]
    assert not any(map(is_running, all_pids))
    while threading.active_count() > num_threads:
        time.sleep(0.01)


def test_an_engine_that_cannot_be_made_raises_its_error():
    def broken(world):
        raise ZeroDivisionError(f"in rank {world.rank}")

    with pytest.raises(RankError, match="ZeroDivisionError: in rank 0"):
        Replicas(broken, 2, restarts=1)


def serve_until_restarted(replicas):
    """Until the only replica has started again and serves."""
    num_starts = replicas.num_starts[0]
    while replicas.num_starts[0] == num_starts or not replicas.ready:
        replicas.events(0.1)
        assert not replicas.errors


def test_failures_of_a_replica_that_served_for_long_in_between_do_not_add_up(monkeypatch):
    monkeypatch.setattr("labkit.serving.replicas._STEADY_S", 0.0)
    with Replicas(make_engine, 1, restarts=1) as replicas:
        for _ in range(3):
            os.kill(replicas.pids[0][0], signal.SIGKILL)
            serve_until_restarted(replicas)


def test_the_longest_time_of_a_run_is_no_failure(monkeypatch):
    monkeypatch.setattr("labkit.serving.replicas.LONGEST_TIMEOUT_S", 2.0)
    with Replicas(make_engine, 1, restarts=0) as replicas:
        serve_until_restarted(replicas)


def test_to_make_an_engine_may_take_longer_than_a_silence():
    patience_s = 5

    def make_slowly(world):
        engine = make_engine(world)
        time.sleep((patience_s + 1) * world.rank)  # on one rank longer than on the other
        return engine

    with Replicas(make_slowly, 1, num_ranks=2, restarts=0, patience_s=patience_s) as replicas:
        assert Router(replicas, round_robin).generate(REQUESTS[:1]) == EXPECTED[:1]


def test_to_make_an_engine_for_ever_is_a_failure():
    with pytest.raises(RankError):
        Replicas(lambda world: time.sleep(600), 1, restarts=0, start_patience_s=0.5)
