"""What a serving engine gains from ranks, fewer bits, drafts and shared prefixes, with small GPTs.

Counts come from float64, so that a token depends on no machine's rounding.
"""

import os
import random
from collections.abc import Sequence

import torch
from torch import Tensor

from labkit import Group
from labkit.interview.runs.real_run import real_run, run
from labkit.model import GPT, GPTConfig
from labkit.serving import (
    ContiguousCache,
    Decoder,
    DisaggregatedEngine,
    Engine,
    Int8PagedCache,
    Load,
    PagedCache,
    Piece,
    Request,
    Sampling,
    SpeculativeEngine,
    by_prefix,
    least_loaded,
    preempting,
    prefill,
    round_robin,
)
from labkit.serving.caches import KVCache
from labkit.serving.parallel_decoders import TensorParallelDecoder
from labkit.serving.quantized import rounded
from labkit.tensor_parallel import parallelize

_CONFIG = GPTConfig(num_layers=2, hidden=32, num_heads=4, ffn=64, rotary=True)
_DRAFT = GPTConfig(num_layers=1, hidden=16, num_heads=2, ffn=32, rotary=True)
_DTYPE = torch.float64


class _Counting(Decoder):
    """Counts passes, tokens, tokens of prompts, and the most of one request in a pass."""

    def __init__(self) -> None:
        super().__init__(GPT(_CONFIG, seed=0, dtype=_DTYPE))
        self.num_passes = self.num_tokens = self.num_prompt_tokens = self.longest_piece = 0

    def __call__(self, pieces: Sequence[Piece], cache: KVCache) -> Tensor:
        sizes = [len(piece.tokens) for piece in pieces]
        self.num_passes += 1
        self.num_tokens += sum(sizes)
        self.num_prompt_tokens += sum(size for size in sizes if size > 1)
        self.longest_piece = max(self.longest_piece, *sizes)
        return super().__call__(pieces, cache)


@real_run
def passes_of_a_request(prompt: int, answer: int) -> tuple[int, int]:
    """Passes of an engine that serves one request, and the tokens that it computes in them."""
    return run(_passes_of_a_request, 1, (prompt, answer)).values[0]


def _passes_of_a_request(world: Group, prompt: int, answer: int) -> tuple[int, int]:
    decoder = _Counting()
    Engine(decoder, _pages(_CONFIG), preempting).generate([Request([0] * prompt, answer)])
    return decoder.num_passes, decoder.num_tokens


@real_run
def speculation(temperature: float, num_drafts: int) -> tuple[float, float]:
    """Acceptance rate, and tokens of a pass with all its drafts: 8 requests of 40 tokens.

    The draft model has half the layers, half the features, and other random parameters.
    """
    return run(_speculation, 1, (temperature, num_drafts)).values[0]


def _speculation(world: Group, temperature: float, num_drafts: int) -> tuple[float, float]:
    engine = _speculative(num_drafts)
    engine.generate(
        Request([number], 40, Sampling(temperature, seed=number)) for number in range(8)
    )
    return engine.acceptance_rate, engine.tokens_per_check


@real_run
def greedy_answers_kept(num_drafts: int) -> int:
    """Of 8 greedy answers of 40 tokens, how many are the same with drafts and without."""
    return run(_greedy_answers_kept, 1, (num_drafts,)).values[0]


def _greedy_answers_kept(world: Group, num_drafts: int) -> int:
    requests = [Request([number, 255 - number], 40) for number in range(8)]
    plain = Engine(_decoder(), _pages(_CONFIG), preempting).generate(requests)
    drafted = _speculative(num_drafts).generate(requests)
    return sum(one == other for one, other in zip(plain, drafted, strict=True))


@real_run
def prompt_tokens_computed(num_requests: int, prefix: int, own: int, shares: bool) -> int:
    """Tokens of prompts that an engine computes: a common prefix, and some of each request's own.

    The first request comes a pass before the others. shares: pages of 16 tokens, shared by prefix;
    else contiguous regions.
    """
    return run(_prompt_tokens_computed, 1, (num_requests, prefix, own, shares)).values[0]


def _prompt_tokens_computed(
    world: Group, num_requests: int, prefix: int, own: int, shares: bool
) -> int:
    decoder = _Counting()
    cache = _pages(_CONFIG) if shares else ContiguousCache(_CONFIG, 16_000, _DTYPE)
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
    """Tokens of prompts that four replicas compute in all, and the most requests of one replica.

    policy: "round_robin", "least_loaded" or "by_prefix". 64 requests, one in each pass: one of
    eight prefixes of 64 tokens at random, 8 tokens of its own, and an answer of 16 tokens.
    """
    return run(_prompt_tokens_by_policy, 1, (policy,)).values[0]


def _prompt_tokens_by_policy(world: Group, policy: str) -> tuple[int, int]:
    policies = {each.__name__: each for each in (round_robin, least_loaded, by_prefix)}
    decoders = [_Counting() for _ in range(4)]
    engines = [Engine(decoder, _pages(_CONFIG), preempting) for decoder in decoders]
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
def longest_piece(prompt: int, apart: bool) -> int:
    """The most tokens of one request in a pass of rank 0, where 4 requests have such long prompts.

    apart: rank 1 computes prompts, and sends keys and values to rank 0; else there is one rank.
    """
    return run(_longest_piece, 2 if apart else 1, (prompt,)).values[0]


def _longest_piece(world: Group, prompt: int) -> int:
    requests = [Request([number] * prompt, 16) for number in range(4)]
    decoder, cache = _Counting(), _pages(_CONFIG)
    if world.rank == 1:
        prefill(decoder, cache, world)
    elif world.size == 1:
        Engine(decoder, cache, preempting).generate(requests)
    else:
        with DisaggregatedEngine(decoder, cache, preempting, world) as engine:
            engine.generate(requests)
    return decoder.longest_piece


@real_run
def all_reduces_of_a_pass(num_layers: int, num_ranks: int) -> tuple[int, int]:
    """All-reduces of a rank in one pass of a tensor-parallel decoder over four sequences.

    And in how many of four answers of 8 greedy tokens the ranks and one process agree.
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
    """Each rank has an engine, and all make the same passes."""
    model = parallelize(GPT(config, seed=0, dtype=_DTYPE), world)
    decoder = TensorParallelDecoder(model)
    engine = Engine(decoder, _pages(decoder.cache_config), preempting)
    answers = engine.generate(requests)
    return requests[0].max_new_tokens, answers


@real_run
def int8_cache_share(head_dim: int) -> float:
    """Bytes of a cache of 8 bits, scales included, over those of one in bfloat16."""
    config = GPTConfig(num_layers=1, hidden=2 * head_dim, num_heads=2, rotary=True)
    caches = [PagedCache(config, 4, dtype=torch.bfloat16), Int8PagedCache(config, 4)]
    wide, narrow = (sum(tensor.nbytes for tensor in cache.tensors) for cache in caches)
    return narrow / wide


@real_run
def quantization_error(bits: int, group: int, outlier: int = 1) -> float:
    """Relative error of X W^T where W is rounded to `bits`, each `group` inputs with a scale.

    W: 1024 x 1024 normal numbers, one in 1024 of them `outlier` times as large; X: 256 rows. The
    error is the norm of the difference over the norm of the exact product, both in float32.
    """
    generator = torch.Generator().manual_seed(0)
    weight_OI = torch.randn(1024, 1024, generator=generator)
    x_BI = torch.randn(256, 1024, generator=generator)
    weight_OI.view(-1)[torch.randperm(2**20, generator=generator)[:1024]] *= outlier
    exact_BO = x_BI @ weight_OI.T
    return ((x_BI @ rounded(weight_OI, bits, group).T - exact_BO).norm() / exact_BO.norm()).item()


def _decoder(config: GPTConfig = _CONFIG) -> Decoder:
    return Decoder(GPT(config, seed=0, dtype=_DTYPE))


def _pages(config: GPTConfig) -> PagedCache:
    return PagedCache(config, 1000, page_size=16, dtype=_DTYPE)


def _speculative(num_drafts: int) -> SpeculativeEngine:
    return SpeculativeEngine(
        _decoder(),
        _pages(_CONFIG),
        preempting,
        draft=Decoder(GPT(_DRAFT, seed=1, dtype=_DTYPE)),
        draft_cache=_pages(_DRAFT),
        num_drafts=num_drafts,
    )
