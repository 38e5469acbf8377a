"""OpenAI's protocol: completions and chats, whole or as a stream, over HTTP.

    POST /v1/completions         {"model": "tiny", "prompt": "def ", "max_tokens": 32}
    POST /v1/chat/completions    {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}

    whole       {"choices": [{"text": "main():", "finish_reason": "length", ...}], "usage": ...}
    a stream    data: {"choices": [{"text": "main", ...}]}          server-sent events: an event
                data: {"choices": [{"text": "():", ...}]}           for each part with text
                data: [DONE]

Errors are {"error": {"message", "type", "param", "code"}} with these statuses, or an event if the
stream has started:

    400  a field that is wrong, or not supported      404  another model, another URL
    413  a body above 1 MiB (guard.py)                503  the engine has failed or is closing
    429  too many requests wait: Retry-After

Every field is bounded. A list is checked up to its first wrong item, because a body of 1 MiB can
have 300,000 of them. An error quotes only a short part of a body.

A client that goes away cancels its requests. Reference:
https://platform.openai.com/docs/api-reference
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import Annotated, Any, Literal

from fastapi.exceptions import RequestValidationError
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    model_validator,
)

from labkit.serving.byte_text import encode, encode_chat
from labkit.serving.engine_thread import EngineEnded, TextDelta
from labkit.serving.requests import Request
from labkit.serving.serving_engine import QueueFull, TooLong

MOST_STOP_LETTERS = 1024
MOST_ANSWERS = 1024
"""Most answers of one call, if the engine has no bound of its own."""
MOST_MESSAGES = 1024
"""Most messages of one chat, counting the parts of messages that have several."""
_MOST_TOKENS = 2**31 - 1
_MOST_FIELDS = 64


class _Body(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _null_is_the_default(cls, body: Any) -> Any:
        if not isinstance(body, dict):
            return body
        if len(body) > _MOST_FIELDS:
            raise ValueError(f"{len(body)} fields, more than {_MOST_FIELDS}")
        return {k: v for k, v in body.items() if v is not None}


class StreamOptions(_Body):
    """include_usage: a last event counts tokens."""

    include_usage: bool = False
    include_obfuscation: bool = False  # accepted: there is none


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _as_few(value: Any) -> Any:
    if isinstance(value, dict) and len(value) > _MOST_FIELDS:
        raise ValueError(f"{len(value)} entries, more than {_MOST_FIELDS}")
    return value


def _as_few_prompts(value: Any) -> Any:
    if isinstance(value, list) and len(value) > MOST_ANSWERS and not isinstance(value[0], int):
        raise ValueError(f"{len(value)} prompts, more than {MOST_ANSWERS}")
    return value


def _as_few_messages(value: Any) -> Any:
    if isinstance(value, list):
        contents = [each.get("content") for each in value if isinstance(each, dict)]
        num_parts = sum(len(each) for each in contents if isinstance(each, list))
        if len(value) + num_parts > MOST_MESSAGES:
            raise ValueError(
                f"{len(value)} messages and {num_parts} parts of them, more than {MOST_MESSAGES}"
            )
    return value


# JSON can have half of a surrogate pair. pydantic refuses it when it counts a bounded text.
Name = Annotated[str, Field(max_length=1000)]
Stop = Annotated[str, Field(min_length=1, max_length=MOST_STOP_LETTERS)]
Stops = Annotated[list[Stop], Field(max_length=4), BeforeValidator(_as_list)]
NumTokens = Annotated[int, Field(ge=1, le=_MOST_TOKENS)]
Tokens = Annotated[list[int], Field(fail_fast=True)]
Prompts = (
    Annotated[list[str], Field(fail_fast=True)] | Annotated[list[Tokens], Field(fail_fast=True)]
)
Prompt = Annotated[str | Tokens | Prompts, BeforeValidator(_as_few_prompts)]


class Body(_Body):
    """The fields of both calls. A Literal field supports no other value."""

    model: Name
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: int = Field(1, ge=1)  # server.py has the upper bound
    temperature: float = Field(1.0, ge=0, le=2)
    top_p: float = Field(1.0, ge=0, le=1)
    top_k: NumTokens | None = None  # not OpenAI's; as in vLLM
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    stop: Stops = []
    max_tokens: NumTokens | None = None
    user: str | None = None
    frequency_penalty: Literal[0] = 0
    presence_penalty: Literal[0] = 0
    logit_bias: Annotated[dict[str, Literal[0]], BeforeValidator(_as_few)] = {}

    @model_validator(mode="after")
    def _options_need_a_stream(self) -> Body:
        if self.stream_options and not self.stream:
            raise ValueError("stream_options is allowed only with stream=true")
        return self


class CompletionBody(Body):
    """The body of POST /v1/completions. A list of prompts gives as many answers, times n."""

    prompt: Prompt = ""
    best_of: Literal[1] = 1
    echo: Literal[False] = False
    suffix: Literal[""] = ""

    def prompts(self) -> list[list[int]]:
        """Return the tokens of each prompt."""
        given: Any = self.prompt
        if isinstance(given, str) or not given or isinstance(given[0], int):
            given = [given]
        return [encode(each) if isinstance(each, str) else each for each in given]


class TextPart(_Body):
    """An item of a message's content, if that is a list."""

    type: Literal["text"]
    text: str


class Message(_Body):
    """A turn of a chat."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[TextPart], Field(fail_fast=True)] = ""


class ChatBody(Body):
    """The body of POST /v1/chat/completions."""

    messages: Annotated[
        list[Message], Field(min_length=1, fail_fast=True), BeforeValidator(_as_few_messages)
    ]
    max_completion_tokens: NumTokens | None = None
    logprobs: Literal[False] = False

    def prompts(self) -> list[list[int]]:
        """Return the tokens of the chat."""
        turns = []
        for each in self.messages:
            parts = each.content
            text = parts if isinstance(parts, str) else "".join(part.text for part in parts)
            turns.append((each.role, text))
        return [encode_chat(turns)]


class Reply:
    """A client's reply: the answers to one call, all at once or event by event."""

    def __init__(self, body: CompletionBody | ChatBody, requests: Sequence[Request]) -> None:
        self._is_chat, options = isinstance(body, ChatBody), body.stream_options
        self._counts_tokens = options is not None and options.include_usage
        self._num_answers, self._num_tokens = len(requests), 0
        self._num_prompt_tokens = sum(len(each.prompt) for each in requests) // body.n
        kind = "chat.completion" if self._is_chat else "text_completion"
        self._head = {
            "id": f"{'chatcmpl' if self._is_chat else 'cmpl'}-{secrets.token_hex(12)}",
            "object": kind + (".chunk" if self._is_chat and body.stream else ""),
            "created": int(time.time()),
            "model": body.model,
        }

    async def whole(self, parts: AsyncIterator[TextDelta]) -> dict[str, Any]:
        """Return the body of a reply that is not a stream."""
        texts, reasons = [""] * self._num_answers, [""] * self._num_answers
        async for part in parts:
            self._num_tokens += 1
            texts[part.choice] += part.text
            reasons[part.choice] = part.finish_reason or ""
        choices = [
            self._choice(i, {"role": "assistant", "content": text, "refusal": None}, reasons[i])
            for i, text in enumerate(texts)
        ]
        return {**self._head, "choices": choices, "usage": self._usage()}

    async def events(
        self, first: TextDelta, parts: AsyncGenerator[TextDelta]
    ) -> AsyncIterator[str]:
        """Yield the events of a stream, from its first part on; an error is one, too."""
        part: TextDelta | None = first
        async with aclosing(parts):
            try:
                for i in range(self._num_answers if self._is_chat else 0):
                    yield self._event([self._choice(i, {"role": "assistant", "content": ""}, None)])
                while part is not None:
                    self._num_tokens += 1
                    if part.text or part.finish_reason:
                        delta = {"content": part.text} if part.text else {}
                        yield self._event([self._choice(part.choice, delta, part.finish_reason)])
                    part = await anext(parts, None)
            except RuntimeError as error:
                yield f"data: {json.dumps(api_error(error).body)}\n\n"
                return
        if self._counts_tokens:
            yield self._event([], self._usage())
        yield "data: [DONE]\n\n"

    def _choice(self, index: int, message: dict[str, Any], reason: str | None) -> dict[str, Any]:
        key = "delta" if self._head["object"] == "chat.completion.chunk" else "message"
        said = {key: message} if self._is_chat else {"text": message.get("content", "")}
        return {"index": index, **said, "logprobs": None, "finish_reason": reason}

    def _event(self, choices: list[dict[str, Any]], usage: dict[str, int] | None = None) -> str:
        counted = {"usage": usage} if self._counts_tokens else {}
        return f"data: {json.dumps({**self._head, 'choices': choices, **counted})}\n\n"

    def _usage(self) -> dict[str, int]:
        return {
            "prompt_tokens": self._num_prompt_tokens,
            "completion_tokens": self._num_tokens,
            "total_tokens": self._num_prompt_tokens + self._num_tokens,
        }


class ApiError(Exception):
    """An error for a client: a status, and a body in OpenAI's form."""

    def __init__(
        self, status: int, message: str, param: str | None = None, code: str | None = None
    ) -> None:
        message, param = _shown(message, 1000), param and _shown(param, 100)
        super().__init__(message)
        kind = {429: "rate_limit_error", 500: "server_error", 503: "server_error"}
        self.status = status
        self.body = {
            "error": {
                "message": message,
                "type": kind.get(status, "invalid_request_error"),
                "param": param,
                "code": code,
            }
        }


def _shown(text: str, most: int) -> str:
    """Return a client's text for a message: cut to `most` letters, all encodable in UTF-8."""
    text = text.encode(errors="backslashreplace").decode()
    return text if len(text) <= most else f"{text[: most - 3]}..."


def api_error(error: RuntimeError | ValueError, limit: str = "max_tokens") -> ApiError:
    """Return an engine's error for a client. limit: the client's field for `max_new_tokens`."""
    message = str(error).replace("max_new_tokens", limit)
    if isinstance(error, QueueFull):
        return ApiError(429, message, code="rate_limit_exceeded")
    if isinstance(error, TooLong):
        return ApiError(400, message, code="context_length_exceeded")
    if isinstance(error, ValueError):
        return ApiError(400, message)
    return ApiError(503 if isinstance(error, EngineEnded) else 500, message)


def field_error(error: RequestValidationError) -> ApiError:
    """Return the error for the first wrong field of a body."""
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return ApiError(400, f"the body is not JSON: {first['ctx']['error']}")
    names = [str(each) for each in first["loc"][1:]]
    param = names[0] if names else None
    if first["type"] == "extra_forbidden":
        message = f"{'.'.join(names):.200} is unknown, or this server does not support it"
        return ApiError(400, message, param, "unknown_parameter")
    return ApiError(400, f"{'.'.join(names)[:200] or 'the body'}: {first['msg']}", param)
