"""Measure a serving engine with small GPTs: passes, waits, cached tokens, and what changes them.

Ranks, fewer bits, drafts and shared prefixes change them. Counts come from float64, so that a token
depends on no machine's rounding.
"""

import os
import random
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from labkit import Group
from labkit.interview.real_run import real_run, run
from labkit.model import GPT, GPTConfig
from labkit.serving import (
    Arrival,
    ContiguousCache,
    Decoder,
    DisaggregatedEngine,
    Engine,
    Int8PagedCache,
    Load,
    PagedCache,
    Request,
    Sampling,
    ScheduledTokens,
    SpeculativeEngine,
    by_prefix,
    chunked_prefill,
    continuous,
    least_loaded,
    poisson_trace,
    preempting,
    prefill,
    replay,
    round_robin,
    static_batches,
)
from labkit.serving.caches import KVCache
from labkit.serving.parallel_decoders import TensorParallelDecoder
from labkit.serving.quantized import rounded
from labkit.serving.scheduler import Scheduler
from labkit.tensor_parallel import parallelize

# float64: a sampled token depends on no machine's rounding.
_CONFIG = GPTConfig(num_layers=1, hidden=32, num_heads=2, ffn=64, rotary=True)
_DTYPE = torch.float64
_TWO_LAYERS = GPTConfig(num_layers=2, hidden=32, num_heads=4, ffn=64, rotary=True)
_DRAFT = GPTConfig(num_layers=1, hidden=16, num_heads=2, ffn=32, rotary=True)


@real_run
def forward_passes(lengths: tuple[int, ...], slots: int, continuous: bool) -> int:
    """Return the engine's forward passes until every request has its tokens.

    A pass has at most `slots` requests. lengths: tokens that each request wants, in the order of
    arrival, after a prompt of one token. continuous: a request starts when a slot is free; False:
    when all requests of the last batch have ended.
    """
    return len(_of_lengths(lengths, slots, 0, continuous).num_tokens)


@real_run
def passes_to_first_token(
    lengths: tuple[int, ...], slots: int, every: int, continuous: bool
) -> float:
    """Return the mean number of passes from a request's arrival to its first token.

    every: passes between two arrivals. See `forward_passes` for the other arguments.
    """
    waits = _of_lengths(lengths, slots, every, continuous).waits
    return sum(waits) / len(waits)


@real_run
def passes_beside_a_prompt(prompt: int, token_budget: int) -> tuple[int, int]:
    """Return the tokens of the largest pass, and the passes from a prompt to its first token.

    prompt: its number of tokens. Seven other requests decode. token_budget: the most tokens of a
    pass with chunked prefill; 0: no chunked prefill.
    """
    trace = [Arrival(0, Request([0], max_new_tokens=200))] * 7
    trace.append(Arrival(1, Request([0] * prompt, max_new_tokens=1)))
    scheduler: Scheduler = partial(chunked_prefill, token_budget=token_budget)
    served = _served(trace, scheduler if token_budget else preempting)
    return max(served.num_tokens), int(served.waits[-1])


@real_run
def cached_share_and_passes(paged: bool) -> tuple[float, int]:
    """Return the share of held slots that contain keys and values, and the number of passes.

    80 requests share 320 slots. paged: pages of 16 and preemption; False: each request holds a
    region for its longest answer. Prompts have 1 to 31 tokens. Answers have at most 64, and most
    end earlier with a stop token.
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
    """New tokens of each pass."""
    waits: list[float]
    """Passes from the arrival to the first token, by request."""
    cached_share: float
    """Share of held slots that contain keys and values, over all passes."""


def _of_lengths(lengths: tuple[int, ...], slots: int, every: int, is_continuous: bool) -> _Served:
    requests = [Request([0], max_new_tokens=length) for length in lengths]
    trace = [Arrival(every * number, request) for number, request in enumerate(requests)]
    return _served(
        trace, partial(continuous if is_continuous else static_batches, max_running=slots)
    )


def _served(trace: list[Arrival], scheduler: Scheduler, cache: KVCache | None = None) -> _Served:
    """Serve the requests of a trace on one rank, with a clock that counts passes."""
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
    """Records the tokens of each pass, and sums up cached slots and held slots."""

    def __init__(self, model: GPT) -> None:
        super().__init__(model)
        self.num_tokens: list[int] = []
        self.cached = self.held = 0

    def __call__(self, batch: Sequence[ScheduledTokens], cache: KVCache) -> Tensor:
        logits_SV = super().__call__(batch, cache)
        use = cache.slot_use({entry.sequence: entry.end for entry in batch}, wanted=0)
        self.num_tokens.append(sum(len(entry.tokens) for entry in batch))
        self.cached += use.cached
        self.held += use.cached + use.internal
        return logits_SV


class _Counting(Decoder):
    """Counts passes, tokens and prompt tokens, and keeps the most tokens of a request in a pass."""

    def __init__(self) -> None:
        super().__init__(GPT(_TWO_LAYERS, seed=0, dtype=_DTYPE))
        self.num_passes = self.num_tokens = self.num_prompt_tokens = self.longest_scheduled = 0

    def __call__(self, batch: Sequence[ScheduledTokens], cache: KVCache) -> Tensor:
        sizes = [len(entry.tokens) for entry in batch]
        self.num_passes += 1
        self.num_tokens += sum(sizes)
        self.num_prompt_tokens += sum(size for size in sizes if size > 1)
        self.longest_scheduled = max(self.longest_scheduled, *sizes)
        return super().__call__(batch, cache)


@real_run
def passes_of_a_request(prompt: int, answer: int) -> tuple[int, int]:
    """Return the passes of an engine that serves one request, and the tokens that they compute."""
    return run(_passes_of_a_request, 1, (prompt, answer)).values[0]


def _passes_of_a_request(world: Group, prompt: int, answer: int) -> tuple[int, int]:
    decoder = _Counting()
    Engine(decoder, _pages(_TWO_LAYERS), preempting).generate([Request([0] * prompt, answer)])
    return decoder.num_passes, decoder.num_tokens


@real_run
def speculation(temperature: float, num_drafts: int) -> tuple[float, float]:
    """Return the acceptance rate, and the tokens per check of `num_drafts` drafts.

    There are 8 requests of 40 tokens. The draft model has half the layers, half the features, and
    other random parameters.
    """
    return run(_speculation, 1, (temperature, num_drafts)).values[0]


def _speculation(world: Group, temperature: float, num_drafts: int) -> tuple[float, float]:
    engine = _speculative(num_drafts)
    engine.generate(
        Request([number], 40, Sampling(temperature, seed=number)) for number in range(8)
    )
    return engine.acceptance_rate, engine.mean_acceptance_length


@real_run
def greedy_answers_kept(num_drafts: int) -> int:
    """Return how many of 8 greedy answers of 40 tokens are the same with drafts and without."""
    return run(_greedy_answers_kept, 1, (num_drafts,)).values[0]


def _greedy_answers_kept(world: Group, num_drafts: int) -> int:
    requests = [Request([number, 255 - number], 40) for number in range(8)]
    plain = Engine(_decoder(), _pages(_TWO_LAYERS), preempting).generate(requests)
    drafted = _speculative(num_drafts).generate(requests)
    return sum(one == other for one, other in zip(plain, drafted, strict=True))


@real_run
def prompt_tokens_computed(num_requests: int, prefix: int, own: int, shares: bool) -> int:
    """Return the prompt tokens that an engine computes.

    Each prompt is a common prefix and `own` tokens of its request. The first request arrives a pass
    before the others. shares: pages of 16 tokens, shared by prefix; False: contiguous regions.
    """
    return run(_prompt_tokens_computed, 1, (num_requests, prefix, own, shares)).values[0]


def _prompt_tokens_computed(
    world: Group, num_requests: int, prefix: int, own: int, shares: bool
) -> int:
    decoder = _Counting()
    cache = _pages(_TWO_LAYERS) if shares else ContiguousCache(_TWO_LAYERS, 16_000, _DTYPE)
    engine = Engine(decoder, cache, preempting)
    for number in range(num_requests):
        engine.add(Request([0] * prefix + [number] * own, max_new_tokens=1))
        if number == 0:
            engine.step()
    while engine.has_work:
        engine.step()
    return decoder.num_prompt_tokens


@real_run
def prompt_tokens_by_policy(policy: str) -> tuple[int, int]:
    """Return the prompt tokens that four replicas compute, and the most requests of a replica.

    policy: "round_robin", "least_loaded" or "by_prefix". 64 requests, one in each pass: one of
    eight prefixes of 64 tokens at random, 8 tokens of its own, and an answer of 16 tokens.
    """
    return run(_prompt_tokens_by_policy, 1, (policy,)).values[0]


def _prompt_tokens_by_policy(world: Group, policy: str) -> tuple[int, int]:
    policies = {each.__name__: each for each in (round_robin, least_loaded, by_prefix)}
    decoders = [_Counting() for _ in range(4)]
    engines = [Engine(decoder, _pages(_TWO_LAYERS), preempting) for decoder in decoders]
    sent: list[list[list[int]]] = [[] for _ in engines]
    draw = random.Random(0)
    for number in range(64):
        prompt = [draw.randrange(8)] * 64 + [draw.randrange(8, 256) for _ in range(8)]
        loads = [
            Load(
                replica,
                sum(each.longest - len(each.tokens) for each in engine.running),
                max((len(os.path.commonprefix([prompt, other])) for other in prompts), default=0),
            )
            for replica, (engine, prompts) in enumerate(zip(engines, sent, strict=True))
        ]
        replica = policies[policy](loads, number)
        sent[replica].append(prompt)
        engines[replica].add(Request(prompt, max_new_tokens=16))
        for engine in engines:
            engine.step()
    return sum(each.num_prompt_tokens for each in decoders), max(map(len, sent))


@real_run
def longest_scheduled(prompt: int, apart: bool) -> int:
    """Return the most tokens of one request in a pass of rank 0.

    There are 4 requests with prompts of `prompt` tokens. apart: rank 1 computes the prompts, and
    sends keys and values to rank 0; False: there is one rank.
    """
    return run(_longest_scheduled, 2 if apart else 1, (prompt,)).values[0]


def _longest_scheduled(world: Group, prompt: int) -> int:
    requests = [Request([number] * prompt, 16) for number in range(4)]
    decoder, cache = _Counting(), _pages(_TWO_LAYERS)
    if world.rank == 1:
        prefill(decoder, cache, world)
    elif world.size == 1:
        Engine(decoder, cache, preempting).generate(requests)
    else:
        with DisaggregatedEngine(decoder, cache, preempting, world) as engine:
            engine.generate(requests)
    return decoder.longest_scheduled


@real_run
def all_reduces_of_a_pass(num_layers: int, num_ranks: int) -> tuple[int, int]:
    """Return a rank's all-reduces in one pass of a tensor-parallel decoder, and equal answers.

    The second number says how many of four greedy answers of 8 tokens equal those of one process.
    """
    config = GPTConfig(num_layers=num_layers, hidden=32, num_heads=4, ffn=64, rotary=True)
    requests = [Request([number, 7], max_new_tokens=8) for number in range(4)]
    result = run(_tensor_parallel, num_ranks, (config, requests))
    alone = Engine(_decoder(config), _pages(config), preempting).generate(requests)
    num_passes, answers = result.values[0]
    of_a_rank = [each for each in result.timeline[0].operations if each.kind == "all_reduce"]
    same = sum(one == other for one, other in zip(alone, answers, strict=True))
    return len(of_a_rank) // num_passes, same


def _tensor_parallel(
    world: Group, config: GPTConfig, requests: list[Request]
) -> tuple[int, list[list[int]]]:
    """Serve the requests with an engine on each rank; return the number of passes, and answers."""
    model = parallelize(GPT(config, seed=0, dtype=_DTYPE), world)
    decoder = TensorParallelDecoder(model)
    engine = Engine(decoder, _pages(decoder.cache_config), preempting)
    answers = engine.generate(requests)
    return requests[0].max_new_tokens, answers


@real_run
def int8_cache_share(head_dim: int) -> float:
    """Return the bytes of an int8 cache with its scales, divided by those of a bfloat16 cache."""
    config = GPTConfig(num_layers=1, hidden=2 * head_dim, num_heads=2, rotary=True)
    caches = [PagedCache(config, 4, dtype=torch.bfloat16), Int8PagedCache(config, 4)]
    wide, narrow = (sum(tensor.nbytes for tensor in cache.tensors) for cache in caches)
    return narrow / wide


@real_run
def quantization_error(bits: int, group: int, outlier: int = 1) -> float:
    """Return the relative error of X W^T for W in `bits`, with a scale for each `group` inputs.

    W has 1024 x 1024 normal numbers, of which one in 1024 is `outlier` times as large; X has 256
    rows. The error is the norm of the difference divided by the norm of the exact product.
    """
    generator = torch.Generator().manual_seed(0)
    weight_OI = torch.randn(1024, 1024, generator=generator)
    x_BI = torch.randn(256, 1024, generator=generator)
    weight_OI.view(-1)[torch.randperm(2**20, generator=generator)[:1024]] *= outlier
    exact_BO = x_BI @ weight_OI.T
    return ((x_BI @ rounded(weight_OI, bits, group).T - exact_BO).norm() / exact_BO.norm()).item()


def _decoder(config: GPTConfig = _TWO_LAYERS) -> Decoder:
    return Decoder(GPT(config, seed=0, dtype=_DTYPE))


def _pages(config: GPTConfig) -> PagedCache:
    return PagedCache(config, 1000, page_size=16, dtype=_DTYPE)


def _speculative(num_drafts: int) -> SpeculativeEngine:
    return SpeculativeEngine(
        _decoder(),
        _pages(_TWO_LAYERS),
        preempting,
        draft=Decoder(GPT(_DRAFT, seed=1, dtype=_DTYPE)),
        draft_cache=_pages(_DRAFT),
        num_drafts=num_drafts,
    )
