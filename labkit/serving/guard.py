"""Refuse bad requests before they are parsed: ASGI middleware around the application.

    a request  ->  Host?  ->  Content-Type?  ->  a body of at most 1 MiB  ->  FastAPI

Host. A page of evil.example can let its own name point to 127.0.0.1, and then a browser lets the
page read this server's answers ("DNS rebinding"). The Host header still is evil.example, so the
server only answers to its own names.

Body. A long body costs all clients memory and time: parsing JSON blocks the event loop. Bytes are
counted while they arrive, whatever the Content-Length is. A body that is too long is read to its
end and dropped, so that the client can read the answer. A body that never ends is cut off. Lists
and objects are counted before they are made, because Python's garbage collector visits all of them
repeatedly while new ones come: 250,000 empty lists took two seconds.

Headers are bounded by uvicorn's h11, 16 KiB (server.py).
"""

from __future__ import annotations

import ipaddress
import json
import re
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from labkit.serving.openai_api import ApiError

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

MOST_BODY_BYTES = 1 << 20
MOST_CONTAINERS = 4096
"""Lists and objects of a body: more than 1,024 prompts or messages need."""
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*+"?', re.DOTALL)  # never fails, so it is linear
_MOST_DROPPED_BYTES = 64 << 20
_EVERY_ADDRESS = ("0.0.0.0", "::", "")


class Guard:
    """Answers with status 400 or 413 in OpenAI's form, or hands the request on."""

    def __init__(self, app: App, host: str) -> None:
        """host: where the server listens."""
        self.app, self._host = app, host
        self._names = {"localhost", "127.0.0.1", "::1", host.lower()}
        if host in _EVERY_ADDRESS:  # then clients use any name or address of this machine
            self._names |= {socket.gethostname().lower()}

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve a request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        try:
            self._require_own_name(headers.get(b"host", ""))
            _require_length(headers)
            body = await _body(receive)
            _require_json(headers, body)
            _require_few_containers(body)
        except ApiError as error:
            await _answer(send, error)
            return
        pending: list[Message] = [{"type": "http.request", "body": body}]

        async def replay() -> Message:
            return pending.pop() if pending else await receive()

        await self.app(scope, replay, send)

    def _require_own_name(self, given: str) -> None:
        name = _without_port(given)
        if name in self._names or (self._host in _EVERY_ADDRESS and _is_address(name)):
            return
        raise ApiError(
            400,
            f"the Host header is {given!r:.100}, and this server answers to "
            f"{', '.join(sorted(self._names - {''}))}: use one of these in the URL, or start the "
            "server with that name as --host",
        )


def _without_port(host: str) -> str:
    """Return 127.0.0.1 of 127.0.0.1:8000, and ::1 of [::1]:8000."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _require_length(headers: dict[bytes, str]) -> None:
    """Raise 413 at once for a Content-Length too long to be read and dropped."""
    length = headers.get(b"content-length", "0")
    if length.isdecimal() and int(length[:20]) > _MOST_DROPPED_BYTES:
        raise _too_long()


def _too_long() -> ApiError:
    return ApiError(
        413,
        f"the body has more than the {MOST_BODY_BYTES:,} bytes that a request may have: send a "
        "shorter prompt, or several requests",
    )


async def _body(receive: Receive) -> bytes:
    """Return the whole body. ApiError if it is too long, after it has ended."""
    parts, nbytes, goes_on = list[bytes](), 0, True
    while goes_on and nbytes <= _MOST_DROPPED_BYTES:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ApiError(499, "the client has gone")
        part = message.get("body", b"")
        nbytes += len(part)
        parts.append(part)
        if nbytes > MOST_BODY_BYTES:
            parts.clear()
        goes_on = message.get("more_body", False)
    if nbytes > MOST_BODY_BYTES:
        raise _too_long()
    return b"".join(parts)


def _require_json(headers: dict[bytes, str], body: bytes) -> None:
    given = headers.get(b"content-type", "")
    kind = given.partition(";")[0].strip().lower()
    if body and kind != "application/json":
        raise ApiError(
            400,
            f"the Content-Type header is {given!r:.100}: send Content-Type: application/json, as "
            "with curl -H 'Content-Type: application/json'",
        )


def _require_few_containers(body: bytes) -> None:
    found = body.count(b"[") + body.count(b"{")
    if found > MOST_CONTAINERS:  # in texts they do not count
        outside = _STRING.sub(b"", body)
        found = outside.count(b"[") + outside.count(b"{")
    if found > MOST_CONTAINERS:
        raise ApiError(
            400, f"the body has {found} lists and objects, and may have {MOST_CONTAINERS}"
        )


async def _answer(send: Send, error: ApiError) -> None:
    body = json.dumps(error.body).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
