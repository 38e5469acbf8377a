"""The serving engine with a small GPT: passes, waits and cached tokens."""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from labkit import Group
from labkit.interview.runs.real_run import real_run, run
from labkit.model import GPT, GPTConfig
from labkit.serving import (
    Arrival,
    ContiguousCache,
    Decoder,
    Engine,
    PagedCache,
    Piece,
    Request,
    chunked_prefill,
    continuous,
    poisson_trace,
    preempting,
    replay,
    static_batches,
)
from labkit.serving.caches import KVCache
from labkit.serving.scheduler import Scheduler

# float64: a sampled token depends on no machine's rounding.
_CONFIG = GPTConfig(num_layers=1, hidden=32, num_heads=2, ffn=64, rotary=True)
_DTYPE = torch.float64


@real_run
def forward_passes(lengths: tuple[int, ...], slots: int, continuous: bool) -> int:
    """Forward passes of the engine until every request has its tokens, `slots` requests in a pass.

    lengths: tokens that each request wants, in the order of arrival, after a prompt of one. Static:
    the next begin when all of a batch have ended; continuous: when a slot is free.
    """
    return len(_of_lengths(lengths, slots, 0, continuous).num_tokens)


@real_run
def passes_to_first_token(
    lengths: tuple[int, ...], slots: int, every: int, continuous: bool
) -> float:
    """Passes from a request's arrival to its first token, on average. One arrives in so many."""
    waits = _of_lengths(lengths, slots, every, continuous).waits
    return sum(waits) / len(waits)


@real_run
def passes_beside_a_prompt(prompt: int, token_budget: int) -> tuple[int, int]:
    """Tokens in the largest pass, and passes until the first token after a prompt of so many.

    Seven other requests decode. token_budget: of a pass, with chunked prefill; 0: without it.
    """
    trace = [Arrival(0, Request([0], max_new_tokens=200))] * 7
    trace.append(Arrival(1, Request([0] * prompt, max_new_tokens=1)))
    scheduler: Scheduler = partial(chunked_prefill, token_budget=token_budget)
    served = _served(trace, scheduler if token_budget else preempting)
    return max(served.num_tokens), int(served.waits[-1])


@real_run
def cached_share_and_passes(paged: bool) -> tuple[float, int]:
    """Of the slots that requests hold, the share with keys and values; and the passes of all.

    80 requests wait for 320 slots: pages of 16 and preemption, or a region for the longest answer.
    Prompts have 1 to 31 tokens. Answers may have 64, and most end before, with a stop token.
    """
    trace = [arrival._replace(at_s=0) for arrival in poisson_trace(80, per_second=1)]
    if paged:
        cache: KVCache = PagedCache(_CONFIG, 20, page_size=16, dtype=_DTYPE)
        served = _served(trace, partial(preempting, max_running=100), cache)
    else:
        served = _served(trace, continuous, ContiguousCache(_CONFIG, 320, _DTYPE))
    return served.cached_share, len(served.num_tokens)


class _Served(NamedTuple):
    num_tokens: list[int]
    """Of each pass."""
    waits: list[float]
    """Of each request, the passes from its arrival to its first token."""
    cached_share: float
    """Of all slots that requests hold in a pass, those with keys and values; over all passes."""


def _of_lengths(lengths: tuple[int, ...], slots: int, every: int, is_continuous: bool) -> _Served:
    requests = [Request([0], max_new_tokens=length) for length in lengths]
    trace = [Arrival(every * number, request) for number, request in enumerate(requests)]
    return _served(
        trace, partial(continuous if is_continuous else static_batches, max_running=slots)
    )


def _served(trace: list[Arrival], scheduler: Scheduler, cache: KVCache | None = None) -> _Served:
    """A trace whose clock counts passes, on a rank."""
    cache = cache or PagedCache(_CONFIG, 200, dtype=_DTYPE)
    return run(_replayed, 1, (trace, scheduler, cache)).values[0]


def _replayed(world: Group, trace: list[Arrival], scheduler: Scheduler, cache: KVCache) -> _Served:
    decoder, idle = _Recording(GPT(_CONFIG, seed=0, dtype=_DTYPE)), [0.0]
    timings = replay(
        Engine(decoder, cache, scheduler),
        trace,
        now=lambda: len(decoder.num_tokens) + sum(idle),
        sleep=idle.append,
    )
    share = decoder.cached / decoder.held
    return _Served(decoder.num_tokens, [each.ttft_s for each in timings], share)


class _Recording(Decoder):
    """Notes how many tokens each pass computes, and how many slots are cached and held."""

    def __init__(self, model: GPT) -> None:
        super().__init__(model)
        self.num_tokens: list[int] = []
        self.cached = self.held = 0

    def __call__(self, pieces: Sequence[Piece], cache: KVCache) -> Tensor:
        logits_SV = super().__call__(pieces, cache)
        use = cache.slot_use({piece.sequence: piece.end for piece in pieces}, wanted=0)
        self.num_tokens.append(sum(len(piece.tokens) for piece in pieces))
        self.cached += use.cached
        self.held += use.cached + use.internal
        return logits_SV
