"""Serve a model on this machine, for any client that speaks OpenAI's protocol.

    with serving.serve(model, name="tiny") as server:
        client = openai.OpenAI(base_url=server.url + "/v1", api_key="none")
        client.completions.create(model="tiny", prompt="def ", max_tokens=32).choices[0].text

    threads    yours            uvicorn's event loop                       the engine's
               serve(...)       a task per HTTP request     -- ask -->     pass, pass, pass
               ... your code    JSON, or a stream of it     <- parts --    (engine_thread.py)
               close            (openai_api.py)

    POST /v1/completions, /v1/chat/completions     GET /v1/models, /metrics, /health

The server listens on 127.0.0.1 only, unless you give another host. It has no passwords: on another
host, anyone who reaches the port can use the model. Requests are bounded (guard.py, openai_api.py),
so that one client cannot keep the others waiting.

`labkit serve` makes its engine with `engine_for`: in this process, or in replicas of one or more
ranks:

    num_replicas=2, tp=2         replica 0    rank 0  rank 1      half of the heads each
    this process -> Router ->    replica 1    rank 0  rank 1      the same model

Tensor parallelism makes one request faster, replicas serve more of them, and a replica that fails
restarts alone while the other one goes on with its requests.

It needs the extra `serve` (fastapi, uvicorn). Ranks do not: they use an Engine directly.
"""

from __future__ import annotations

import asyncio
import errno
import math
import secrets
import socket
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from threading import Thread
from typing import Any, TypeVar

from labkit import arguments
from labkit.comm import Group
from labkit.model import GPT
from labkit.serving.byte_text import END
from labkit.serving.caches import PagedCache
from labkit.serving.decoder import Decoder, store_head_by_inputs
from labkit.serving.engine_thread import EngineThread
from labkit.serving.guard import Guard
from labkit.serving.openai_api import (
    MOST_ANSWERS,
    ApiError,
    ChatBody,
    CompletionBody,
    Reply,
    api_error,
    field_error,
)
from labkit.serving.parallel_decoders import TensorParallelDecoder
from labkit.serving.replicas import Replicas
from labkit.serving.request_router import Router, by_prefix
from labkit.serving.requests import Request, Sampling
from labkit.serving.scheduler import Chunk, Plan, State, preempting
from labkit.serving.serving_engine import Engine, EngineClient
from labkit.tensor_parallel import HeadShares, parallelize

T = TypeVar("T")
DEFAULT_CHAT_TOKENS = 1024  # or fewer, where the model ends before
MOST_HEADER_BYTES = 16 << 10


@dataclass(frozen=True)
class Server:
    """A running server. url: such as http://127.0.0.1:8000, without the /v1 of the protocol."""

    url: str


@contextmanager
def serve(
    model: GPT | EngineClient, *, name: str = "labkit", host: str = "127.0.0.1", port: int = 0
) -> Iterator[Server]:
    """Serve a model, or an engine that you made, until the `with` block ends.

    model: with a vocabulary of 256 tokens, the bytes. A GPT gets an Engine with pages for 32 of its
    longest sequences, chunked prefill, and 64 places to wait: more requests are refused with status
    429. name: the `model` of clients' requests. port: 0 for any that is free.

    At the end of the block, answers that are not complete end with an error.
    ValueError: a model of another vocabulary, or no port. OSError: the port is taken.
    """
    arguments.whole("port", port, "0 to 65535; 0 is any that is free", least=0, most=65535)
    if model.config.vocab != 256:
        raise ValueError(
            f"the model has {model.config.vocab} tokens, and the server's are bytes; "
            "use GPTConfig(vocab=256)"
        )
    with _listener(host, port) as listener:
        engine = EngineThread(engine_of(model) if isinstance(model, GPT) else model)
        server = uvicorn.Server(
            uvicorn.Config(
                Guard(make_app(engine, name), host),
                http="h11",
                h11_max_incomplete_event_size=MOST_HEADER_BYTES,
                ws="none",
                lifespan="off",
                log_level="warning",
                timeout_graceful_shutdown=5,  # a client may have stopped reading
            )
        )
        thread = Thread(target=server.run, args=([listener],), name="server", daemon=True)
        thread.start()
        try:
            shown = f"[{host}]" if ":" in host else host
            yield Server(f"http://{shown}:{listener.getsockname()[1]}")
        finally:
            engine.end("the server is closing")
            server.should_exit = True
            thread.join()
            engine.close()


def _listener(host: str, port: int) -> socket.socket:
    """Return a socket that listens. OSError says what to do where the port is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        text = f"port {port} of {host} is in use: give another one; --port 0 takes any that is free"
        raise OSError(error.errno, text) from None


def make_app(engine: EngineThread, name: str) -> FastAPI:
    """Make the web application. name: of the model."""
    app = FastAPI(openapi_url=None)
    card = {
        "id": name,
        "object": "model",
        "created": int(time.time()),
        "owned_by": "labkit",
        # As in vLLM. JSON has no infinity for a model without a limit.
        "max_model_len": None
        if engine.engine.max_model_len == math.inf
        else engine.engine.max_model_len,
    }

    def require_model(id: str) -> None:
        if id != name:
            message = f"The model `{id:.100}` does not exist; this server has `{name}`"
            raise ApiError(404, message, "model", "model_not_found")

    @app.post("/v1/completions")
    async def complete(body: CompletionBody, http: HttpRequest) -> Response:
        require_model(body.model)
        return await answer(engine, http, body, body.max_tokens or 16)

    @app.post("/v1/chat/completions")
    async def chat(body: ChatBody, http: HttpRequest) -> Response:
        require_model(body.model)
        [prompt] = body.prompts()
        room = max(1, min(engine.engine.max_model_len - len(prompt), DEFAULT_CHAT_TOKENS))
        limit = body.max_completion_tokens or body.max_tokens or int(room)
        return await answer(engine, http, body, limit)

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [card]}

    @app.get("/v1/models/{id:path}")
    async def model(id: str) -> dict[str, Any]:
        require_model(id)
        return card

    @app.get("/health")
    async def health() -> dict[str, str]:
        if engine.ended is not None:
            raise ApiError(503, engine.ended)
        return {"status": "ok"}

    @app.get("/metrics")
    async def metrics() -> Response:
        return PlainTextResponse(str(engine.metrics), media_type="text/plain; version=0.0.4")

    _answer_errors(app)
    return app


def _answer_errors(app: FastAPI) -> None:
    """Answer every error in OpenAI's form, also those of FastAPI."""

    @app.exception_handler(ApiError)
    async def of_api(http: HttpRequest, error: ApiError) -> Response:
        # openai's client waits this long, and tries twice more.
        headers = {"Retry-After": "1"} if error.status == 429 else None
        return JSONResponse(error.body, error.status, headers)

    @app.exception_handler(RequestValidationError)
    async def of_field(http: HttpRequest, error: RequestValidationError) -> Response:
        return await of_api(http, field_error(error))

    @app.exception_handler(HTTPException)
    async def of_url(http: HttpRequest, error: HTTPException) -> Response:
        message = f"{error.detail}: {http.method} {http.url.path}"
        return await of_api(http, ApiError(error.status_code, message))


async def answer(
    engine: EngineThread, http: HttpRequest, body: CompletionBody | ChatBody, max_tokens: int
) -> Response:
    """Return the response to one call. If its client goes away, the answers are cancelled."""
    seed = secrets.randbits(62) if body.seed is None else body.seed
    prompts = body.prompts()
    _require_few(len(prompts), body.n, engine.engine.most_unfinished)
    requests = [
        Request(
            prompt,
            max_tokens,
            # Some clients give top_p=0 for the most likely token.
            Sampling(body.temperature, body.top_k, max(body.top_p, 1e-9), seed + i),
            frozenset([END]),
        )
        for prompt in prompts
        for i in range(body.n)
    ]
    parts = engine.ask(requests, body.stop)
    reply = Reply(body, requests)
    try:
        if not body.stream:
            return JSONResponse(await until_disconnect(http, reply.whole(parts)))
        # Wait for the first part before the stream begins: a refused request needs another status,
        # and a generator that has not started would not be closed.
        first = await until_disconnect(http, anext(parts))
    except (RuntimeError, ValueError) as error:
        is_chat = isinstance(body, ChatBody) and body.max_completion_tokens is not None
        limit = "max_completion_tokens" if is_chat else "max_tokens"
        raise api_error(error, limit) from error
    return StreamingResponse(reply.events(first, parts), media_type="text/event-stream")


def _require_few(num_prompts: int, n: int, limit: int | None) -> None:
    """Raise 400, before any work, for more answers to one call than can be unfinished at once."""
    most = MOST_ANSWERS if limit is None else limit
    if num_prompts > most:
        message = f"prompt has {num_prompts} prompts, and this server takes {most} at once"
        raise ApiError(400, message, "prompt")
    if n * num_prompts > most:
        which = f" for {num_prompts} prompts" if num_prompts > 1 else ""
        message = f"n={n}, and this server takes n up to {most // num_prompts}{which}"
        raise ApiError(400, message, "n")


async def until_disconnect(http: HttpRequest, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`. If the client goes away, cancel it."""
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(http.receive())
    try:
        await asyncio.wait([task, gone], return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ApiError(499, "the client has gone")
        return task.result()
    finally:
        task.cancel()
        gone.cancel()


try:
    import uvicorn
    from fastapi import FastAPI, Response
    from fastapi import Request as HttpRequest
    from fastapi.exceptions import RequestValidationError
    from fastapi.responses import JSONResponse, PlainTextResponse, StreamingResponse
    from starlette.exceptions import HTTPException
except ModuleNotFoundError as error:
    message = f"{error}: a server needs more packages; pip install 'labkit[serve]'"
    raise ModuleNotFoundError(message, name=error.name) from None

MAX_RUNNING, MAX_WAITING = 32, 64


def engine_of(model: GPT, max_waiting: int | None = MAX_WAITING) -> Engine:
    """Make an engine in this process: pages for 32 longest sequences, chunked prefill."""
    return _engine(Decoder(model), model, max_waiting)


@contextmanager
def engine_for(model: GPT, num_replicas: int, tp: int) -> Iterator[EngineClient]:
    """Make an engine in num_replicas * tp processes for the `with` block; one: in this process.

    tp: the ranks of one replica, tensor parallel. Each rank gets a copy of the model and cuts it.
    ValueError if the ranks cannot share the heads evenly.
    """
    HeadShares(model.config.num_heads, model.config.kv_heads, tp)  # before any process starts
    if num_replicas * tp == 1:
        yield engine_of(store_head_by_inputs(model))
        return
    with Replicas(_on_rank, num_replicas, (model,), num_ranks=tp) as replicas:
        limit = num_replicas * (MAX_RUNNING + MAX_WAITING)
        yield Router(replicas, by_prefix, max_unfinished=limit)


def _on_rank(world: Group, model: GPT) -> Engine:
    is_alone = world.size == 1
    decoder = Decoder(model) if is_alone else TensorParallelDecoder(parallelize(model, world))
    return _engine(decoder, model)  # the router limits requests


def _engine(decoder: Decoder, model: GPT, max_waiting: int | None = None) -> Engine:
    num_pages = MAX_RUNNING * -(-model.config.context // 16)
    weight = next(model.parameters())
    try:
        cache = PagedCache(
            decoder.cache_config, num_pages, dtype=weight.dtype, device=str(weight.device)
        )
    except RuntimeError as error:  # from the allocator
        raise ValueError(
            f"there is no memory for {MAX_RUNNING} sequences of context={model.config.context}, "
            f"{num_pages} pages: {str(error):.100}"
        ) from None
    scheduler = partial(chunked_prefill_short_first, max_running=MAX_RUNNING, token_budget=128)
    return Engine(decoder, cache, scheduler, max_waiting=max_waiting)


def chunked_prefill_short_first(state: State, *, max_running: int, token_budget: int) -> Plan:
    """Schedule as chunked_prefill, but short prompts do not wait for other clients' long ones.

    Single tokens come first. Then the oldest prompt gets half of the remaining budget, so that it
    finishes at some time. The other prompts get the other half, the shortest first.
    """
    plan = preempting(state, max_running=max_running)
    running = set(map(id, state.running))
    is_single = [each.num_tokens == 1 and id(each.generation) in running for each in plan.chunks]
    singles = [each for each, single in zip(plan.chunks, is_single, strict=True) if single]
    prompts = [each for each, single in zip(plan.chunks, is_single, strict=True) if not single]
    left = max(0, token_budget - len(singles))
    # The oldest comes last here, so that it gets its half and what the others leave.
    half = min(prompts[0].num_tokens, -(-left // 2)) if prompts else 0
    given: dict[int, Chunk] = {}
    for chunk in [*sorted(prompts[1:], key=lambda each: each.num_tokens), *prompts[:1]]:
        num_tokens = min(chunk.num_tokens, left if chunk is prompts[0] else left - half)
        left -= num_tokens
        given[id(chunk)] = chunk._replace(num_tokens=num_tokens)
    chunks = [given[id(each)] for each in prompts if given[id(each)].num_tokens]
    return Plan([*singles[:token_budget], *chunks], plan.preempt)
