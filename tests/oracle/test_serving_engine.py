"""Any traffic through the engine gives each request the tokens of naive generation, in float64."""

from dataclasses import replace
from functools import partial
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.model import GPT, GPTConfig
from labkit.serving import (
    ContiguousCache,
    Decoder,
    Engine,
    NoCache,
    PagedCache,
    QueueFull,
    Request,
    Sampling,
    SwappingEngine,
    chunked_prefill,
    continuous,
    poisson_trace,
    preempting,
    priorities,
    static_batches,
)
from labkit.serving.plain import generate
from labkit.serving.requests import sample

CONFIG = GPTConfig(vocab=19, context=40, num_layers=1, hidden=8, num_heads=2, num_kv_heads=1)
MODEL = GPT(CONFIG, dtype=torch.float64)
TWO_LAYERS = GPT(replace(CONFIG, num_layers=2), dtype=torch.float64)
with torch.no_grad():  # larger weights, so that answers are not one token again and again
    for name, weight in [*MODEL.named_parameters(), *TWO_LAYERS.named_parameters()]:
        weight.mul_(20 if weight.dim() == 2 and "token" not in name else 1)
CACHES = {
    "none": lambda: NoCache(CONFIG),
    "regions": lambda: ContiguousCache(CONFIG, 80, torch.float64),
    "pages": lambda: PagedCache(CONFIG, 11, 3, torch.float64),
}
SCHEDULERS = [
    static_batches,
    continuous,
    preempting,
    partial(chunked_prefill, token_budget=9),
    partial(priorities, token_budget=9, max_running=4),
]
TOKEN_BYTES = 2 * 1 * 1 * 4 * 8  # keys and values, layers, heads, features, bytes of float64
ENGINES = [Engine, partial(SwappingEngine, max_host_bytes=25 * TOKEN_BYTES)]
LADDER = [
    (cache, scheduler)
    for cache in CACHES
    for scheduler in SCHEDULERS
    if cache != "none" or scheduler in SCHEDULERS[:3]
]
REQUESTS = st.builds(
    Request,
    # Prompts that begin alike share pages.
    prompt=st.builds(
        lambda same, own: [*range(same), *own],
        st.sampled_from([0, 7, 12]),
        st.lists(st.integers(0, 18), min_size=1, max_size=8),
    ),
    max_new_tokens=st.sampled_from([1, 5, 12]),
    sampling=st.builds(
        Sampling,
        temperature=st.sampled_from([0.0, 0.7, 1.5]),
        top_k=st.sampled_from([None, 5]),
        top_p=st.sampled_from([1.0, 0.8]),
        seed=st.integers(0, 99),
    ),
    stop=st.sampled_from([frozenset(), frozenset({3, 4})]),
    priority=st.integers(0, 1),
)


@torch.no_grad()
def naive(request, model=MODEL):
    """One request, all of its tokens in every forward of the model itself."""
    tokens, generator = list(request.prompt), torch.Generator().manual_seed(request.sampling.seed)
    for _ in range(request.max_new_tokens):
        logits_V = model(torch.tensor([tokens]))[0, -1]
        tokens.append(sample(logits_V, request.sampling, generator))
        if tokens[-1] in request.stop:
            break
    return tokens[len(request.prompt) :]


@pytest.mark.parametrize("max_running", [1, 2, 3, 4, 9])
def test_the_plain_rung_gives_the_tokens_of_naive_generation(max_running):
    prompts = [[*range(n)] or [18] for n in (5, 1, 0, 12, 3, 7)]
    num_new = [4, 9, 1, 2, 7, 5]
    expected = [naive(Request(*each), TWO_LAYERS) for each in zip(prompts, num_new)]
    assert generate(TWO_LAYERS, prompts, num_new, max_running) == expected


@settings(max_examples=60)
@given(
    st.sampled_from(LADDER),
    st.sampled_from(ENGINES),
    st.lists(REQUESTS, min_size=2, max_size=7),
    st.integers(0, 2**32).map(Random),
)
def test_any_traffic_gives_the_tokens_of_naive_generation(rung, kind, requests, random):
    """Requests come between steps; some are cancelled while others go on."""
    cache, scheduler = rung
    engine, answers = kind(Decoder(MODEL), CACHES[cache](), scheduler), {}
    coming, cancelled = list(requests), set()
    while coming or engine.has_work:
        if coming and random.random() < 0.7:
            answers[engine.add(coming.pop())] = []
        for output in engine.step():
            answers[output.id].append(output.token)
        if random.random() < 0.03:
            number = random.randrange(len(requests))
            engine.cancel(number)
            cancelled.add(number)
    for number, request in enumerate(reversed(requests)):
        expected = naive(request)
        if number in cancelled:
            expected = expected[: len(answers[number])]
        assert answers[number] == expected
    assert engine.cache.num_free_pages == CACHES[cache]().num_free_pages


@pytest.mark.parametrize(
    ("room", "num_copied", "num_computed"),
    [
        (
            0,
            0,
            4 * 23 + 21,
        ),  # 27 of the 9 + 15 + 12 + 12 tokens are found in pages that are still full
        (20, 9 + 12 + 12, 4 * 23 + 6),  # the 15 tokens do not fit beside the 9
        (99, 9 + 15 + 12 + 12, 4 * 23),  # each token is computed once
    ],
)
def test_swapping_copies_what_fits_and_recomputes_the_rest(room, num_copied, num_computed):
    """Four requests of 8 pages at the end, in 11 pages: three of them are preempted."""

    def counted(batch, cache):
        nonlocal counts
        counts += sum(len(entry.tokens) for entry in batch)
        return decoder(batch, cache)

    decoder, counts = Decoder(MODEL), 0
    counted.model = MODEL
    requests = [Request([i] * 7, 17) for i in range(4)]
    size = room * TOKEN_BYTES
    engine = SwappingEngine(counted, CACHES["pages"](), preempting, max_host_bytes=size)
    assert engine.generate(requests) == [naive(request) for request in requests]
    assert (engine.swapped_bytes, counts) == (2 * num_copied * TOKEN_BYTES, num_computed)


def test_a_request_that_is_cancelled_leaves_no_copy_in_host_memory():
    engine = SwappingEngine(Decoder(MODEL), CACHES["pages"](), preempting, max_host_bytes=9999)
    for i in range(4):
        engine.add(Request([i] * 7, 17))
    while not engine.host_bytes:
        engine.step()
    for each in list(engine.waiting):
        engine.cancel(each.id)
    assert engine.host_bytes == 0


def test_a_step_that_raised_an_error_can_be_repeated():
    """A prompt of a preempted, shared or new request is computed again, and nothing leaks."""
    random = Random(0)

    def fails_sometimes(batch, cache):
        if random.random() < 0.3:
            raise ConnectionError
        return decoder(batch, cache)

    decoder = Decoder(MODEL)
    fails_sometimes.model = MODEL
    requests = [Request([*range(7), i], 9, Sampling(seed=i)) for i in range(6)]
    engine = Engine(fails_sometimes, CACHES["pages"](), preempting)
    answers = {engine.add(request): [] for request in requests}
    num_failed = 0
    while engine.has_work:
        try:
            outputs = engine.step()
        except ConnectionError:
            num_failed += 1
            continue
        for output in outputs:
            answers[output.id].append(output.token)
    assert num_failed
    assert list(answers.values()) == [naive(request) for request in requests]
    assert engine.cache.num_free_pages == 11


def test_logits_that_are_not_finite_end_only_their_request():
    def breaks_request_1(batch, cache):
        logits_SV = decoder(batch, cache)
        for entry, logits_V in zip(batch, logits_SV, strict=True):
            if entry.sequence == 1 and entry.end == 5:
                logits_V[3] = broken
        return logits_SV

    decoder = Decoder(MODEL)
    breaks_request_1.model = MODEL
    for broken, temperature in [(torch.nan, 0.0), (torch.nan, 1.0), (torch.inf, 1.0)]:
        requests = [Request([i, i, i], 5, Sampling(temperature, seed=i)) for i in range(3)]
        engine = Engine(breaks_request_1, CACHES["pages"](), preempting)
        answers = {engine.add(request): [] for request in requests}
        while engine.has_work:
            for output in engine.step():
                answers[output.id].append(output)
        assert [each.finish_reason for each in answers[1]] == [None, None, "error"]
        assert (answers[1][-1].token, str(broken) in answers[1][-1].error) == (None, True)
        for id, request in enumerate(requests):
            tokens = [each.token for each in answers[id]]
            assert tokens == (naive(request) if id != 1 else [*naive(request)[:2], None])
        assert engine.cache.num_free_pages == 11
        engine = Engine(breaks_request_1, CACHES["pages"](), preempting)
        with pytest.raises(RuntimeError, match=f"request 1 .* {broken}"):
            engine.generate(requests)
        assert (engine.has_work, engine.cache.num_free_pages) == (False, 11)


class WithoutNumbers(Decoder):
    """Where a broken token is, keys, values and logits are nan."""

    broken_token = 18

    def embedded(self, layout):
        x_nD = super().embedded(layout)
        x_nD[layout.tokens_n == self.broken_token] = torch.nan
        return x_nD


def test_keys_and_values_that_are_not_finite_reach_no_other_request():
    good = [Request([1, 2], 6, Sampling(seed=1)), Request([1, 2, 3, 4, 5], 6)]
    decoder = WithoutNumbers(MODEL)
    for cache in CACHES.values():
        engine = Engine(decoder, cache(), preempting)
        engine.add(Request([18], 2))
        ids = [engine.add(request) for request in good]
        outputs = [output for _ in range(6) for output in engine.step()]
        assert outputs[0].finish_reason == "error"
        answers = [[each.token for each in outputs if each.id == id] for id in ids]
        assert answers == [naive(request) for request in good]


def test_keys_and_values_that_are_not_finite_are_not_found_by_their_prefix_afterwards():
    """A device fails once. The same prompt is served afterwards, from keys computed again."""
    engine = Engine(WithoutNumbers(MODEL), CACHES["pages"](), preempting)
    prompt, engine.decoder.broken_token = [*range(9)], 3
    with pytest.raises(RuntimeError):
        engine.generate([Request(prompt, 4)])
    engine.decoder.broken_token = -1
    assert engine.generate([Request(prompt, 4)]) == [naive(Request(prompt, 4))]


def test_a_page_with_the_prefix_of_an_admitted_request_is_not_taken_in_the_same_pass():
    engine = Engine(Decoder(MODEL), PagedCache(CONFIG, 6, 4, torch.float64), preempting)
    engine.add(Request(list(range(1, 9)), 1))  # its pages are free after the first pass
    engine.add(Request(list(range(10)), 2))
    engine.step()
    engine.add(Request([5, 6, 7, 8], 9))
    engine.step()
    admitted = engine.add(Request([*range(1, 9), 9, 10], 4))
    # The third request takes its second page now: the one that has been free for longest.
    assert admitted in [output.id for output in engine.step()]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_an_answer_continues_at_another_engine_with_the_same_tokens(temperature):
    for num_answered in range(8):
        request = Request([3, 1, 4], 8, Sampling(temperature, seed=5), frozenset({3}))
        expected = naive(request)
        answered = expected[:num_answered]
        if num_answered < len(expected):
            engine = Engine(Decoder(MODEL), CACHES["pages"](), preempting)
            assert (
                engine.generate([replace(request, prior_output=answered)])[0]
                == expected[num_answered:]
            )


def test_a_tiny_temperature_is_greedy():
    logits_V, generator = torch.tensor([1.0, 3.0, 2.0]), torch.Generator()
    assert sample(logits_V, Sampling(temperature=1e-310), generator) == 1


def test_a_full_queue_refuses_and_takes_requests_again_later():
    engine = Engine(Decoder(MODEL), CACHES["pages"](), continuous, max_waiting=2)
    ids = [engine.add(Request([1], 2)), engine.add(Request([2], 2))]
    with pytest.raises(QueueFull, match="max_waiting=2, and 2 requests"):
        engine.add(Request([3], 2))
    with pytest.raises(ValueError, match="empty"):  # never possible: said first
        engine.add(Request([], 2))
    engine.step()
    ids.append(engine.add(Request([3], 2)))
    assert ids == [0, 1, 2]


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (Request([], 1), "the prompt is empty"),
        (Request([1, 19], 1), "token 19 is outside 0..18"),
        (Request([1], 0), "max_new_tokens=0"),
        (Request([1] * 30, 11), "are 41, more than the 40 positions of the model"),
    ],
)
def test_a_request_that_no_pass_could_serve_is_refused(request_, reason):
    engine = Engine(Decoder(MODEL), CACHES["pages"](), preempting)
    with pytest.raises(ValueError, match=reason):
        engine.add(request_)
    assert not engine.has_work


def test_a_request_longer_than_the_cache_is_refused_and_one_as_long_is_served():
    model = GPT(replace(CONFIG, rotary=True))
    engine = Engine(Decoder(model), PagedCache(model.config, 4, 3), preempting)
    with pytest.raises(ValueError, match="are 13, more than the 12 slots of the cache"):
        engine.add(Request([1] * 9, 4))
    assert len(engine.generate([Request([1] * 9, 3)])[0]) == 3


def test_a_poisson_trace_has_its_rate_and_its_lengths():
    trace = poisson_trace(2000, 50.0, vocab=19, mean_prompt=8, mean_answer=4, max_new_tokens=12)
    assert trace == poisson_trace(
        2000, 50.0, vocab=19, mean_prompt=8, mean_answer=4, max_new_tokens=12
    )
    assert 2000 / trace[-1].at_s == pytest.approx(50, rel=0.1)
    lengths = [len(arrival.request.prompt) for arrival in trace]
    assert (min(lengths), max(lengths)) == (1, 15)
    assert sum(lengths) / 2000 == pytest.approx(8, rel=0.1)
    untrained = GPT(CONFIG)
    engine = Engine(
        Decoder(untrained), PagedCache(CONFIG, 400, 3), partial(continuous, max_running=32)
    )
    answers = engine.generate(arrival.request for arrival in trace[:300])
    assert sum(map(len, answers)) / 300 == pytest.approx(4, rel=0.2)


def test_chunks_of_a_prompt_need_a_cache_that_keeps_them():
    scheduler = partial(chunked_prefill, max_running=2, token_budget=4)
    engine = Engine(Decoder(MODEL), NoCache(CONFIG), scheduler)
    engine.add(Request(prompt=[1] * 9, max_new_tokens=2))
    with pytest.raises(RuntimeError, match="request 0's prompt .* NoCache needs a scheduler"):
        engine.step()
