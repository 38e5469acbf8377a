"""Serve a model on this machine, for any client that speaks OpenAI's protocol.

    with serving.serve(model, name="tiny") as server:
        client = openai.OpenAI(base_url=server.url + "/v1", api_key="none")
        client.completions.create(model="tiny", prompt="def ", max_tokens=32).choices[0].text

    threads    yours            uvicorn's event loop                       the engine's
               serve(...)       a task per HTTP request     -- add -->     pass, pass, pass
               ... your code    JSON, or a stream of it     <- tokens --   (engine_thread.py)
               close            (openai_api.py)

The server listens on 127.0.0.1 only, unless you give another host. It knows no passwords and no
users: on another host, everyone who reaches the port can use the model.

It needs the extra `serve` (fastapi, uvicorn). Ranks do not: they use an Engine directly.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from labkit.model import GPT
from labkit.serving.serving_engine import Engine


@dataclass(frozen=True)
class Server:
    """A server that runs. url: such as http://127.0.0.1:8000, without the /v1 of the protocol.

    /v1/completions, /v1/chat/completions, /v1/models    OpenAI's protocol
    /metrics                                             numbers in Prometheus' text format
    /health                                              200 while it serves
    """

    url: str


@contextmanager
def serve(
    model: GPT | Engine,
    *,
    name: str = "labkit",
    host: str = "127.0.0.1",
    port: int = 0,
) -> Iterator[Server]:
    """Serve a model, or an engine that you made, until the `with` block ends.

    model: of bytes, so of 256 tokens. A GPT gets an Engine with pages for 32 of its longest
    sequences, chunked prefill, and 64 places to wait: more requests are refused with status 429.
    name: what clients give as `model`. port: 0 for any that is free.

    At the end of the block, answers that are not complete end with an error.
    ValueError: a model of another vocabulary. OSError: the port is taken.
    ModuleNotFoundError: fastapi or uvicorn is missing.
    """
    raise NotImplementedError
    yield Server("")
