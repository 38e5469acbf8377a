"""A server and OpenAI's own client: answers, streams, stops, errors, load, clients that go away."""

import asyncio
import inspect
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace

import httpx
import openai
import pytest
import torch

from labkit import serving
from labkit.model import GPT, GPTConfig
from labkit.serving import (
    Decoder,
    Engine,
    PagedCache,
    Request,
    Sampling,
    SpeculativeEngine,
    Timing,
    preempting,
)
from labkit.serving.byte_text import END, TextStream, encode, encode_chat
from labkit.serving.engine_thread import EngineThread, Histogram, ServerMetrics
from labkit.serving.server import engine_of

CONFIG = GPTConfig(context=200, num_layers=1, hidden=16, num_heads=2)
MODEL = GPT(CONFIG, dtype=torch.float64)
with torch.no_grad():  # larger weights, so that answers are not one token again and again
    for name, weight in MODEL.named_parameters():
        weight.mul_(20 if weight.dim() == 2 and "token" not in name else 1)
CHAT = [{"role": "system", "content": "S"}, {"role": "user", "content": "né"}]


@contextmanager
def serving_of(engine, **options):
    """A server of this engine and a client: .ask(prompt, ...), .chat(...), .url, .engine."""
    with (
        serving.serve(engine, name="tiny") as server,
        openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client,
    ):
        yield SimpleNamespace(
            url=server.url,
            client=client,
            engine=engine,
            ask=partial(client.completions.create, model="tiny"),
            chat=partial(client.chat.completions.create, model="tiny", messages=CHAT),
        )


@pytest.fixture(scope="module")
def gpt():
    """A server of a GPT, for all tests that leave nothing behind."""
    with serving_of(engine_of(MODEL)) as server:
        yield server


class Script:
    """A decoder that answers with given bytes, one per pass and request, whatever it is asked."""

    def __init__(self, answer, before_pass=lambda: None):
        self.model, self.answer, self.before_pass = MODEL, answer, before_pass
        self.prompts = {}

    def __call__(self, batch, cache):
        self.before_pass()
        cache.commit(batch)
        logits_SV = torch.zeros(len(batch), 256)
        for row_V, entry in zip(logits_SV, batch):
            begin = self.prompts.setdefault(entry.sequence, entry.end)
            row_V[self.answer[(entry.end - begin) % len(self.answer)]] = 1000
        return logits_SV


def scripted(answer, before_pass=lambda: None, **options):
    cache = PagedCache(CONFIG, 40)
    return serving_of(Engine(Script(answer, before_pass), cache, preempting, **options))


def expected(prompt, max_tokens, seed, temperature=1.0):
    """The text of an engine that serves nothing else, and how many tokens it has."""
    request = Request(prompt, max_tokens, Sampling(temperature, seed=seed), frozenset([END]))
    [tokens] = engine_of(MODEL).generate([request])
    text = TextStream()
    return "".join(text.push(t, i == len(tokens) - 1) for i, t in enumerate(tokens)), len(tokens)


def until(condition):
    """Wait for what another thread does."""
    for _ in range(6000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError(f"a minute has passed: {inspect.getsource(condition)}")


def is_free(engine):
    """No request is served, and all pages are free."""
    return not engine.has_work and not any(engine.cache.pool.references)


def texts(stream):
    """The text of each choice of a stream, its last finish_reason, and the usage."""
    found, reasons, usage = {}, {}, None
    for event in stream:
        usage = event.usage or usage
        for choice in event.choices:
            delta = getattr(choice, "delta", None)
            text = choice.text if delta is None else delta.content
            found[choice.index] = found.get(choice.index, "") + (text or "")
            reasons[choice.index] = choice.finish_reason or reasons.get(choice.index)
    return found, reasons, usage


@pytest.mark.parametrize("seed", [0, 1, -7])
def test_an_answer_is_the_engines_and_a_stream_has_the_same_text(gpt, seed):
    text, num_tokens = expected(encode("def "), 40, seed)
    whole = gpt.ask(prompt="def ", max_tokens=40, seed=seed)
    assert (whole.object, whole.model, whole.choices[0].text) == ("text_completion", "tiny", text)
    usage = whole.usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (4, num_tokens)
    assert usage.total_tokens == 4 + num_tokens
    options = {"stream": True, "stream_options": {"include_usage": True}}
    found, reasons, of_stream = texts(gpt.ask(prompt="def ", max_tokens=40, seed=seed, **options))
    assert found == {0: text} and reasons == {0: whole.choices[0].finish_reason}
    assert of_stream == usage


def test_a_chat_is_answered_whole_and_as_a_stream(gpt):
    prompt = encode_chat([("system", "S"), ("user", "né")])
    text, num_tokens = expected(prompt, 30, seed=5)
    whole = gpt.chat(seed=5, max_completion_tokens=30)
    assert whole.object == "chat.completion"
    assert (whole.choices[0].message.role, whole.choices[0].message.content) == ("assistant", text)
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (len(prompt), num_tokens)
    events = list(gpt.chat(seed=5, max_tokens=30, stream=True))
    assert {event.object for event in events} == {"chat.completion.chunk"}
    assert len({event.id for event in events}) == 1
    assert events[0].choices[0].delta.role == "assistant"
    assert texts(events)[:2] == ({0: text}, {0: whole.choices[0].finish_reason})


def test_a_chat_without_a_limit_goes_on_to_the_models_end(gpt):
    whole = gpt.chat(seed=1, temperature=0)
    assert whole.usage.total_tokens == CONFIG.context or whole.choices[0].finish_reason == "stop"


def test_choices_have_seeds_one_after_another(gpt):
    prompts = ["ab", encode("c")]  # one by one: a list is of texts or of tokens
    for options in ({}, {"stream": True}):
        answer = gpt.ask(prompt=prompts[:1] * 2, n=2, seed=3, max_tokens=9, **options)
        found = texts(answer)[0] if options else {c.index: c.text for c in answer.choices}
        assert found == {i: expected(encode("ab"), 9, 3 + i % 2)[0] for i in range(4)}
        assert options or answer.usage.prompt_tokens == 4
    assert (
        gpt.ask(prompt=prompts[1], seed=3, max_tokens=9).choices[0].text
        == (expected(encode("c"), 9, 3)[0])
    )


def test_without_a_seed_answers_differ_and_greedy_ones_do_not(gpt):
    drawn = {gpt.ask(prompt="a", max_tokens=30).choices[0].text for _ in range(3)}
    assert len(drawn) == 3
    for greedy in ({"temperature": 0}, {"top_p": 0}, {"extra_body": {"top_k": 1}}):
        text = gpt.ask(prompt="a", max_tokens=30, **greedy).choices[0].text
        assert text == expected(encode("a"), 30, 0, temperature=0)[0]


@pytest.mark.parametrize("stop", ["END", ["no", "END"]])
def test_an_answer_ends_before_a_stop_string_in_the_pass_that_completes_it(stop):
    with scripted("é EN END €".encode()) as server:
        whole = server.ask(prompt="x", max_tokens=50, stop=stop)
        assert (whole.choices[0].text, whole.choices[0].finish_reason) == ("é EN ", "stop")
        assert whole.usage.completion_tokens == len("é EN END".encode())
        streamed = server.ask(prompt="x", max_tokens=50, stop=stop, stream=True)
        assert texts(streamed)[:2] == ({0: "é EN "}, {0: "stop"})
        until(lambda: is_free(server.engine))


def test_tokens_that_a_speculative_pass_gives_behind_a_stop_string_do_not_count():
    text, num_tokens = expected(encode("x"), 30, 0, temperature=0)
    stop = text[3]
    model = Decoder(MODEL)
    cache, draft_cache = (PagedCache(CONFIG, 40, dtype=torch.float64) for _ in range(2))
    engine = SpeculativeEngine(model, cache, preempting, draft=model, draft_cache=draft_cache)
    with serving_of(engine) as server:
        whole = server.ask(prompt="x", max_tokens=30, temperature=0, stop=stop)
        assert whole.choices[0].text == text[: text.index(stop)]
        assert whole.usage.completion_tokens < num_tokens
        assert server.ask(prompt="x", max_tokens=30, temperature=0).choices[0].text == text
        assert is_free(engine) and not any(draft_cache.pool.references)


def test_a_character_is_sent_whole_and_half_of_one_at_the_end_is_replaced():
    with scripted("é€".encode()) as server:
        stream = server.ask(prompt="x", max_tokens=4, stream=True)
        assert [event.choices[0].text for event in stream] == ["é", "\ufffd"]


def test_the_token_that_ends_a_text_is_not_in_it():
    with scripted([*b"ab", END]) as server:
        whole = server.chat()
        choice = whole.choices[0]
        assert (choice.message.content, choice.finish_reason) == ("ab", "stop")
        assert whole.usage.completion_tokens == 3


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"temperature": 2.5}, "temperature", None),
        ({"temperature": "hot"}, "temperature", None),
        ({"top_p": 1.5}, "top_p", None),
        ({"n": 0}, "n", None),
        ({"max_tokens": 0}, "max_tokens", None),
        ({"stop": ["a"] * 5}, "stop", None),
        ({"stop": ""}, "stop", None),
        ({"frequency_penalty": 1.0}, "frequency_penalty", None),
        ({"logprobs": 1}, "logprobs", "unknown_parameter"),
        ({"nonsense": 1}, "nonsense", "unknown_parameter"),
        ({"stream_options": {"include_usage": True}}, None, None),
        ({"prompt": []}, None, None),
        ({"prompt": [256]}, None, None),
        ({"prompt": "a" * 190, "max_tokens": 11}, None, "context_length_exceeded"),
        ({"prompt": "a" * 190, "max_tokens": 11, "stream": True}, None, "context_length_exceeded"),
        ({"n": 65}, "n", None),  # more than may wait
    ],
)
def test_a_wrong_field_is_named(gpt, fields, param, code):
    with pytest.raises(openai.BadRequestError) as caught:
        gpt.ask(prompt="a", extra_body=fields)
    error = caught.value
    assert (error.type, error.param, error.code) == ("invalid_request_error", param, code)


def test_fields_that_change_nothing_are_accepted(gpt):
    gpt.ask(
        prompt=["", "a"],
        max_tokens=1,
        seed=None,
        stop=None,
        suffix=None,
        logprobs=None,
        echo=False,
        best_of=1,
        frequency_penalty=0.0,
        presence_penalty=0,
        logit_bias={},
        user="me",
    )
    content = [{"type": "text", "text": "n"}, {"type": "text", "text": "é"}]
    parts = gpt.chat(messages=[CHAT[0], {"role": "user", "content": content}], temperature=0)
    assert parts.choices == gpt.chat(temperature=0).choices


def test_models_and_urls_that_are_not_there(gpt):
    assert [each.id for each in gpt.client.models.list()] == ["tiny"]
    assert gpt.client.models.retrieve("tiny").object == "model"
    assert gpt.client.models.retrieve("tiny").max_model_len == CONFIG.context
    for ask in (partial(gpt.client.models.retrieve, "a/b"), partial(gpt.chat, model="a/b")):
        with pytest.raises(openai.NotFoundError) as caught:
            ask()
        assert caught.value.code == "model_not_found"
    for method, path, status in [("GET", "/v1/nothing", 404), ("GET", "/v1/completions", 405)]:
        answer = httpx.request(method, gpt.url + path)
        error = answer.json()["error"]
        assert (answer.status_code, error["type"]) == (status, "invalid_request_error")


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"model": "tiny", "prompt": "\\ud800"}'])
def test_a_body_that_is_no_request_does_not_trouble_the_server(gpt, body):
    headers = {"Content-Type": "application/json"}
    answer = httpx.post(gpt.url + "/v1/completions", content=body, headers=headers)
    assert answer.status_code == (200 if b"model" in body else 400)
    assert body != b"{" or "JSON" in answer.json()["error"]["message"]


def test_64_requests_at_once_get_the_answers_that_each_would_get_alone(gpt):
    async def all_at_once():
        async with openai.AsyncOpenAI(base_url=gpt.url + "/v1", api_key="none") as client:
            return await asyncio.gather(
                *(
                    client.completions.create(
                        model="tiny", prompt="x" * (1 + i % 9), max_tokens=1 + i % 13, seed=i
                    )
                    for i in range(64)
                )
            )

    for i, whole in enumerate(asyncio.run(all_at_once())):
        text, num_tokens = expected(encode("x" * (1 + i % 9)), 1 + i % 13, i)
        assert (whole.choices[0].text, whole.usage.completion_tokens) == (text, num_tokens)
    assert is_free(gpt.engine)


def test_a_client_that_goes_away_cancels_its_request():
    """After a second without an answer, which takes 8 s, or 2 s for its first part."""
    pause_s, patience = 0.05, httpx.Timeout(60, read=1)
    with scripted(b"a", before_pass=lambda: time.sleep(pause_s)) as server:
        stream = server.ask(prompt="x", max_tokens=150, stream=True)
        next(iter(stream))
        assert server.engine.running
        stream.close()
        until(lambda: is_free(server.engine))
        with pytest.raises(openai.APITimeoutError):
            server.ask(prompt="x", max_tokens=150, n=2, timeout=patience)
        until(lambda: is_free(server.engine))
        pause_s = 2.0  # so that there is no part yet
        with pytest.raises(openai.APITimeoutError):
            server.ask(prompt="x", max_tokens=150, stream=True, timeout=patience)
        pause_s = 0.01
        metrics = partial(httpx.get, server.url + "/metrics")
        until(lambda: 'labkit_requests_total{end="cancelled"} 4' in metrics().text)
        assert 'labkit_requests_total{end="length"} 0' in metrics().text
        assert is_free(server.engine)


def test_more_than_may_wait_are_refused_and_served_when_they_ask_again():
    at_full_speed = threading.Event()
    engine = Engine(
        Script(b"a", partial(at_full_speed.wait, 0.3)),
        PagedCache(CONFIG, 40),
        partial(preempting, max_running=1),
        max_waiting=1,
    )
    with serving_of(engine) as server, ThreadPoolExecutor() as threads:
        runs = server.ask(prompt="x", max_tokens=190, stream=True)
        next(iter(runs))
        waits = threads.submit(server.ask, prompt="x")
        until(lambda: engine.waiting)
        with pytest.raises(openai.RateLimitError) as refused:
            server.ask(prompt="x")
        assert refused.value.response.headers["Retry-After"] == "1"
        assert refused.value.type == "rate_limit_error"
        assert refused.value.code == "rate_limit_exceeded"
        patient = server.client.with_options(max_retries=100).completions
        asks_again = threads.submit(patient.create, model="tiny", prompt="x")
        metrics = partial(httpx.get, server.url + "/metrics")
        refused_again = 'labkit_requests_total{end="refused"} (?!1$)'
        until(lambda: re.search(refused_again, metrics().text, re.M))
        at_full_speed.set()
        assert len(list(runs)) == 189
        for answer in (waits, asks_again):
            assert answer.result().usage.completion_tokens == 16
        assert is_free(engine)


def test_of_answers_that_are_asked_together_all_are_computed_or_none():
    passes = []
    decoder = Script(b"a", lambda: passes.append(None))
    engine = Engine(decoder, PagedCache(CONFIG, 40), preempting, max_waiting=3)
    with serving_of(engine) as server:
        with pytest.raises(openai.BadRequestError):
            server.ask(prompt="x", n=4)
        server.ask(prompt="x", n=3, max_tokens=1)
    assert len(passes) == 1


def test_the_metrics_count_each_token_and_each_gap_between_two_tokens():
    with scripted(b"a") as server:
        for max_tokens in (1, 3, 6):
            server.ask(prompt="xyz", max_tokens=max_tokens)
        page = httpx.get(server.url + "/metrics")
    assert page.headers["content-type"].startswith("text/plain; version=0.0.4")
    values = dict(re.findall(r"^labkit_(\S+) (\S+)$", page.text, re.MULTILINE))
    assert values["time_to_first_token_seconds_count"] == "3"
    assert values["inter_token_latency_seconds_count"] == "7"
    assert values["prompt_tokens_total"] == "9" and values["answer_tokens_total"] == "10"
    assert values['requests_total{end="length"}'] == "3"
    assert values["requests_running"] == values["requests_waiting"] == "0"
    assert values["cache_pages"] == values["cache_pages_free"] == "40"
    for name, count in [("time_to_first_token", 3), ("inter_token_latency", 7)]:
        buckets = [int(v) for key, v in values.items() if key.startswith(f"{name}_seconds_bucket")]
        assert buckets == sorted(buckets) and buckets[-1] == count
        assert 0 < float(values[f"{name}_seconds_sum"]) < 60


def test_the_metrics_count_preemptions_and_prompt_tokens_that_are_not_computed():
    engine = Engine(Decoder(MODEL), PagedCache(CONFIG, 6, 4, torch.float64), preempting)
    for _ in range(3):  # the second one and the third find a page, and compute the last token
        engine.generate([Request(range(8), 1)])
    engine.generate([Request([i], 15) for i in (1, 2)])  # four pages each, of six
    page = str(ServerMetrics(engine))
    assert "labkit_prompt_tokens_cached_total 8\n" in page
    assert "labkit_preemptions_total 1\n" in page


def test_a_bucket_contains_its_bound_and_all_buckets_before_it():
    histogram = Histogram()
    for value in (0.01, 0.011, 11):
        histogram.observe(value)
    lines = [
        line for line in histogram.lines("t") if re.search('"(0.005|0.01|0.025|10|.Inf)"', line)
    ]
    assert [int(line.split()[-1]) for line in lines] == [0, 1, 2, 2, 3]


def test_the_first_token_is_timed_from_the_arrival_and_the_next_ones_from_the_one_before():
    metrics, timing = ServerMetrics(engine_of(MODEL)), Timing(1.0)
    for now_s in (2.0, 2.5, 2.75):
        metrics.count_token(timing, now_s)
    assert (metrics.ttft.sum, metrics.itl.sum, metrics.num_answer_tokens) == (1.0, 0.75, 3)


def test_logits_that_are_no_numbers_end_one_request():
    def spoil(module, inputs, logits_SV):
        return torch.where(spoiled, torch.nan, logits_SV)

    with serving_of(engine_of(GPT(CONFIG))) as server:
        spoiled = torch.tensor(True)
        hook = server.engine.decoder.model.head.register_forward_hook(spoil)
        with pytest.raises(openai.InternalServerError) as caught:
            server.ask(prompt="x")
        assert caught.value.type == "server_error"
        assert 'labkit_requests_total{end="error"} 1' in httpx.get(server.url + "/metrics").text
        hook.remove()
        server.ask(prompt="x")
        assert is_free(server.engine)


def test_an_engine_that_fails_ends_all_answers_and_health_says_so(capfd):
    passes = []

    def fail():
        passes.append(None)
        if len(passes) > 3:
            raise ConnectionError("a rank is gone")

    with scripted(b"a", fail) as server:
        assert httpx.get(server.url + "/health").status_code == 200
        body = {"model": "tiny", "prompt": "x", "max_tokens": 150, "stream": True}
        events = httpx.post(server.url + "/v1/completions", json=body).text.split("\n\n")
        assert len(events) == 5 and events[-1] == ""  # three tokens, and the error
        assert "a rank is gone" in events[3] and "[DONE]" not in events[3]
        for _ in range(2):
            with pytest.raises(openai.InternalServerError, match="a rank is gone") as caught:
                server.ask(prompt="x")
            assert caught.value.status_code == 503
        assert httpx.get(server.url + "/health").status_code == 503
        assert "labkit_requests_running 0\n" in httpx.get(server.url + "/metrics").text
    assert "ConnectionError" in capfd.readouterr().err  # with its traceback


def test_a_server_that_closes_ends_its_streams_and_leaves_no_page_thread_or_port():
    before = set(threading.enumerate())
    engine = Engine(Script(b"a", partial(time.sleep, 0.01)), PagedCache(CONFIG, 40), preempting)
    with serving.serve(engine, name="tiny") as server:
        client = openai.OpenAI(base_url=server.url + "/v1", api_key="none")
        stream = client.completions.create(model="tiny", prompt="x", max_tokens=150, stream=True)
        next(iter(stream))
    with pytest.raises(openai.APIError, match="closing"):
        list(stream)
    assert is_free(engine) and set(threading.enumerate()) <= before
    with pytest.raises(httpx.ConnectError):
        httpx.get(server.url + "/health")


def test_an_event_loop_that_ends_during_a_pass_leaves_the_engine_to_others():
    async def ask(seconds):
        async with asyncio.timeout(seconds):
            return [part.text async for part in thread.ask([Request([1], 2)])]

    gate = threading.Event()
    engine = Engine(Script(b"ab", gate.wait), PagedCache(CONFIG, 40), preempting)
    thread = EngineThread(engine)
    with pytest.raises(TimeoutError):
        asyncio.run(ask(0.1))
    gate.set()
    assert asyncio.run(ask(60)) == ["a", "b"]
    thread.close()
    assert is_free(engine)


def test_a_model_of_other_tokens_and_a_port_that_is_taken_are_refused(gpt):
    with pytest.raises(ValueError, match="19 tokens"), serving.serve(GPT(GPTConfig(vocab=19))):
        pass
    port = int(gpt.url.rpartition(":")[2])
    with pytest.raises(OSError, match="in use"), serving.serve(MODEL, port=port):
        pass
