"""A server refuses bad sizes, hosts, types and letters, in OpenAI's form and with the limit."""

import json
import socket
from types import SimpleNamespace

import httpx
import pytest
import torch

from labkit import serving
from labkit.model import GPT, GPTConfig
from labkit.serving.byte_text import TextStream, borders
from labkit.serving.guard import MOST_BODY_BYTES
from labkit.serving.openai_api import MOST_STOP_LETTERS
from labkit.serving.requests import Generation, Request
from labkit.serving.scheduler import State
from labkit.serving.server import MAX_WAITING, chunked_prefill_short_first, engine_of

CONFIG = GPTConfig(context=64, num_layers=1, hidden=16, num_heads=2)
JSON = {"Content-Type": "application/json"}
ONE = b'{"model": "tiny", "prompt": "a", "max_tokens": 1}'


@pytest.fixture(scope="module")
def url():
    with serving.serve(GPT(CONFIG), name="tiny") as server:
        yield server.url


def post(url, content, headers=JSON, path="/v1/completions"):
    """The status, and the error in OpenAI's form; the server serves the next request."""
    answer = httpx.post(url + path, content=content, headers=headers)
    if answer.status_code == 200:
        return 200, SimpleNamespace(message="", param=None)
    error = answer.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error" and len(answer.content) < 2000
    assert httpx.post(url + "/v1/completions", content=ONE, headers=JSON).status_code == 200
    return answer.status_code, SimpleNamespace(**error)


def test_a_body_is_bounded_before_it_is_parsed(url):
    longest = ONE[:-1] + b', "user": "' + b"x" * (MOST_BODY_BYTES - len(ONE) - 12) + b'"}'
    assert len(longest) == MOST_BODY_BYTES
    assert post(url, longest)[0] == 200
    status, error = post(url, longest + b" ")
    assert status == 413 and f"{MOST_BODY_BYTES:,}" in error.message
    status, _ = post(url, b"{" * (2 * MOST_BODY_BYTES))
    assert status == 413
    # In chunks, without a Content-Length; the answer comes after all of them.
    assert post(url, iter([b" " * 65_536] * 100))[0] == 413
    assert post(url, iter([ONE[:9], ONE[9:]]))[0] == 200


def test_a_body_that_says_it_has_many_gigabytes_is_refused_at_once(url):
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=600) as connection:
        head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Length: {10**12}\r\n\r\n"
        connection.sendall(head.encode())
        assert b" 413 " in connection.recv(100)


def test_headers_are_bounded(url):
    try:
        answer = httpx.post(
            url + "/v1/completions", content=ONE, headers={**JSON, "X": "x" * 10**6}
        )
        assert answer.status_code in (400, 431)
    except httpx.TransportError:  # the connection was closed before all of it was sent
        pass
    assert post(url, ONE)[0] == 200


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LOCALHOST:1234", 200),
        ("127.0.0.1:80", 200),
        ("[::1]:80", 200),
        ("evil.example", 400),
        ("localhost.evil.example", 400),
        ("127.0.0.1.evil.example", 400),
        ("10.0.0.1", 400),
        ("", 400),
    ],
)
def test_a_page_of_another_host_cannot_use_the_server(url, host, status):
    found, error = post(url, ONE, {**JSON, "Host": host})
    assert found == status and (status == 200 or "127.0.0.1" in error.message)


def test_a_server_for_all_addresses_answers_to_addresses_and_its_own_name():
    with serving.serve(GPT(CONFIG), name="tiny", host="0.0.0.0") as server:
        url = server.url.replace("0.0.0.0", "127.0.0.1")
        for host, status in {
            "10.1.2.3:80": 200,
            socket.gethostname(): 200,
            "evil.example": 400,
        }.items():
            assert httpx.get(url + "/health", headers={"Host": host}).status_code == status


@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "text/plain", ""])
def test_another_content_type_learns_what_to_send(url, kind):
    status, error = post(url, ONE, {"Content-Type": kind})
    assert status == 400 and "Content-Type: application/json" in error.message


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"model": "\ud800"}, "model", "unicode"),
        ({"stop": "\ud800"}, "stop", "unicode"),
        ({"\ud800": 1}, None, ""),
        ({"model": "x" * 900_000}, "model", "1000"),
        ({"x" * 900_000: 1}, "x" * 97 + "...", "unknown"),
        ({"stop": "x" * (MOST_STOP_LETTERS + 1)}, "stop", f"{MOST_STOP_LETTERS}"),
        ({"stop": ["x"] * 5}, "stop", "4"),
        ({"n": 128}, "n", f"up to {MAX_WAITING}"),
        ({"n": 10**30}, "n", f"up to {MAX_WAITING}"),
        ({"n": 33, "prompt": ["a", "b"]}, "n", "up to 32 for 2 prompts"),
        ({"prompt": ["a"] * 65}, "prompt", f"{MAX_WAITING}"),
        ({"prompt": [""] * 250_000}, "prompt", "250000 prompts"),
        ({"prompt": [[]] * 250_000}, None, "250002 lists and objects"),
        ({"prompt": [None] * 150_000}, "prompt", "150000 prompts"),
        ({"prompt": "a" * 60, "max_tokens": 5}, None, "max_tokens=5"),
        ({"max_tokens": 2**70}, "max_tokens", ""),
        ({"top_k": 2**70}, "top_k", ""),
        ({"seed": 2**70}, "seed", ""),
        ({"temperature": float("nan")}, "temperature", ""),
        ({"temperature": float("inf")}, "temperature", ""),
        ({"top_p": float("nan")}, "top_p", ""),
        ({"best_of": 1000}, "best_of", ""),
        ({"echo": True}, "echo", ""),
        ({"logit_bias": {str(i): 1 for i in range(50_000)}}, "logit_bias", "50000 entries"),
        ({f"f{i}": 1 for i in range(50_000)}, None, "50003 fields"),
    ],
)
def test_each_field_is_bounded_and_its_name_is_said(url, fields, param, words):
    body = {"model": "tiny", "prompt": "a", "max_tokens": 1, **fields}
    status, error = post(url, json.dumps(body).encode())
    assert (status, error.param) == (400, param) and words in error.message


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([{"role": "user", "content": "a"}] * 1025, "1025 messages"),
        ([{"role": "user", "content": [{"type": "text", "text": "a"}] * 2000}], "2000 parts"),
    ],
)
def test_a_chat_has_a_bounded_number_of_messages_and_parts(url, messages, words):
    body = json.dumps({"model": "tiny", "messages": messages}).encode()
    status, error = post(url, body, path="/v1/chat/completions")
    assert (status, error.param) == (400, "messages") and words in error.message


def test_a_chats_error_names_the_field_that_it_gave(url):
    for field in ("max_tokens", "max_completion_tokens"):
        body = {"model": "tiny", "messages": [{"role": "user", "content": "a"}], field: 99}
        _, error = post(url, json.dumps(body).encode(), path="/v1/chat/completions")
        assert f" {field}=99" in error.message


@pytest.mark.parametrize(
    "text",
    ["[" * 500_000, '{"a":' * 150_000, '{"seed": ' + "9" * 900_000 + "}", '"' + '\\"' * 400_000],
)
def test_deep_long_or_open_json_is_refused(url, text):
    assert post(url, text.encode())[0] == 400


def test_brackets_in_a_text_are_no_lists(url):
    body = {"model": "tiny", "prompt": "a", "max_tokens": 1, "user": '[{"\\' * 2000}
    assert post(url, json.dumps(body).encode())[0] == 200


class Counted(str):
    """A stop string that counts how often a letter of it is looked at."""

    looks = 0

    def __getitem__(self, at):
        Counted.looks += 1
        return super().__getitem__(at)


@pytest.mark.parametrize("stop", ["a" * 1000 + "b", "ab" * 500 + "c", "aab" * 300 + "aac"])
def test_a_stop_string_costs_a_few_steps_for_each_letter(stop):
    """A letter of the stop string or of the text; a text that almost matches is the worst case."""
    Counted.looks = 0
    borders.cache_clear()
    counted = Counted(stop)
    text = (stop[:-1] * 3)[:2000].encode()
    for _ in range(4):  # answers to one request
        stream = TextStream([counted])
        for token in text:
            stream.push(token, is_last=False)
    assert not stream.is_stopped
    assert Counted.looks < 5 * (len(stop) + 4 * len(text))


def test_a_call_for_many_answers_gets_all_and_leaves_places_for_others():
    engine = engine_of(GPT(CONFIG, dtype=torch.float64))
    at_once = []
    step = engine.step

    def counted_step():
        at_once.append(len(engine.waiting) + len(engine.running))
        return step()

    engine.step = counted_step
    with serving.serve(engine, name="tiny") as server:
        body = {"model": "tiny", "prompt": "a", "max_tokens": 3, "n": 20, "temperature": 0}
        answer = httpx.post(server.url + "/v1/completions", json=body).json()
        refused = httpx.post(
            server.url + "/v1/completions", json={**body, "prompt": ["a", "a" * 65]}
        )
    texts = [choice["text"] for choice in answer["choices"]]
    assert len(texts) == 20 and len(set(texts)) == 1
    assert answer["usage"]["completion_tokens"] == 60
    assert 1 < max(at_once) <= 8
    assert refused.status_code == 400  # n=20 of a prompt that fits, and of one that does not
    assert not engine.has_work and not any(engine.cache.pool.references)


def test_a_short_prompt_does_not_wait_behind_long_ones():
    engine = engine_of(GPT(CONFIG))
    prompts = [[1] * 60, [2] * 60, [3] * 4]
    waiting = [Generation(i, Request(prompt, 2)) for i, prompt in enumerate(prompts)]
    plan = chunked_prefill_short_first(
        State(waiting, [], engine.cache), max_running=8, token_budget=20
    )
    assert {chunk.generation.id: chunk.num_tokens for chunk in plan.chunks} == {0: 10, 1: 6, 2: 4}
    plan = chunked_prefill_short_first(
        State(waiting[:1], [], engine.cache), max_running=8, token_budget=20
    )
    assert [chunk.num_tokens for chunk in plan.chunks] == [20]


@pytest.mark.parametrize("port", [-1, 65_536, 99_999])
def test_a_port_that_cannot_be_is_refused(port):
    with (
        pytest.raises(ValueError, match=f"port={port}: 0 to 65535"),
        serving.serve(GPT(CONFIG), port=port),
    ):
        pass


def test_a_port_in_use_is_named_with_the_way_out(url):
    port = int(url.rpartition(":")[2])
    with (
        pytest.raises(OSError, match=rf"{port} .*in use.*--port 0"),
        serving.serve(GPT(CONFIG), port=port),
    ):
        pass
