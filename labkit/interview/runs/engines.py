"""What a serving engine gains from ranks, fewer bits, drafts and shared prefixes, with small GPTs.

Counts come from float64, so that a token depends on no machine's rounding.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from labkit import Group
from labkit.interview.runs.real_run import real_run, run
from labkit.model import GPT, GPTConfig
from labkit.serving import (
    ContiguousCache,
    Decoder,
    Engine,
    Int8PagedCache,
    PagedCache,
    Piece,
    Request,
    Sampling,
    SpeculativeEngine,
    preempting,
)
from labkit.serving.caches import KVCache
from labkit.serving.parallel_decoders import TensorParallelDecoder
from labkit.serving.quantized import rounded
from labkit.tensor_parallel import parallelize

_CONFIG = GPTConfig(num_layers=2, hidden=32, num_heads=4, ffn=64, rotary=True)
_DRAFT = GPTConfig(num_layers=1, hidden=16, num_heads=2, ffn=32, rotary=True)
_DTYPE = torch.float64


class _Counting(Decoder):
    """Counts the tokens that it computes."""

    num_tokens = 0

    def __call__(self, pieces: Sequence[Piece], cache: KVCache) -> Tensor:
        self.num_tokens += sum(len(piece.tokens) for piece in pieces)
        return super().__call__(pieces, cache)


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
    decoder = _Counting(GPT(_CONFIG, seed=0, dtype=_DTYPE))
    cache = _pages(_CONFIG) if shares else ContiguousCache(_CONFIG, 16_000, _DTYPE)
    engine = Engine(decoder, cache, preempting)
    for number in range(num_requests):
        # Answers of one token: it comes with the prompt's pass, and is never computed.
        engine.add(Request([0] * prefix + [number] * own, max_new_tokens=1))
        if number == 0:
            engine.step()
    while engine.has_work:
        engine.step()
    return decoder.num_tokens


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
def quantization_error(bits: int, group: int) -> float:
    """Relative error of X W^T where W is rounded to `bits`, each `group` inputs with a scale.

    W: 1024 x 1024 normal numbers, X: 256 rows of them. The error is the norm of the difference over
    the norm of the exact product, both in float32.
    """
    generator = torch.Generator().manual_seed(0)
    weight_OI = torch.randn(1024, 1024, generator=generator)
    x_BI = torch.randn(256, 1024, generator=generator)
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
