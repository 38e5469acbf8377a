"""The KV cache: keys and values of all earlier tokens, in every layer.

    2 L G K b       L layers, G key-value heads of K features, b bytes each: a key and a value
    L (C + R) b     latent attention: one compressed vector, and the rotated part of the key

A request of s tokens holds, by the kind of a layer (`cache_bytes`):

    full         s tokens
    window       min(s, W) tokens
    recurrent    one state of fixed size, whatever s
    none         nothing

Tensor parallelism cuts the G heads, and copies them where there are more ranks than heads; a latent
cache has no heads, and is whole on every rank.

A request holds room for more tokens than it has. A contiguous cache holds room for the longest
answer, a paged one for less than a page more:

    pass       1          2          3                 # cached   . filled later   ~ never filled
    longest    ##..~~~~   ###.~~~~   ####~~~~          prompt 2, answer 3, at most 8 tokens
    pages      ##         ###.       ####              pages of two tokens

Papers: Shazeer, arXiv:1911.02150 (one key-value head); Ainslie et al., arXiv:2305.13245 (groups of
heads); DeepSeek-V2, arXiv:2405.04434, section 2.1 (latent).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence

from labkit import arguments
from labkit.calc.models import Layer, ModelConfig, model
from labkit.calc.result import Result, total
from labkit.calc.units import number_text


def kv_cache_bytes_per_token(config: ModelConfig | str, itemsize: float = 2) -> Result:
    """Return the bytes of one token of one sequence, over all layers that keep tokens.

    itemsize: bytes of a number, 0.5 for 4 bits. Layers with a window keep no more than the last
    tokens: see `cache_bytes`.
    kv_cache_bytes_per_token("llama3-8b") == 131_072
    """
    config, itemsize = model(config), checked_itemsize(itemsize)
    layers = sum(kind.mixer in ("full", "window") for kind in config.kinds)
    name, size = "KV cache of one token", number_text(itemsize)
    if config.is_latent:
        features = config.kv_lora_rank + config.rope_head_dim
        return Result(
            layers * features * itemsize,
            "bytes",
            name,
            "L (C + R) b",
            f"{layers} * ({config.kv_lora_rank} + {config.rope_head_dim}) * {size}",
            source="DeepSeek-V2, arXiv:2405.04434",
        )
    heads, features = config.num_kv_heads, config.features_per_head
    return Result(
        2 * layers * heads * features * itemsize,
        "bytes",
        name,
        "2 L G K b",
        f"2 * {layers} * {heads} * {features} * {size}",
        convention="no padding and no pages: what the tokens themselves take",
        source="the model's configuration",
    )


def cache_bytes(
    config: ModelConfig | str,
    tokens: float,
    requests: int = 1,
    *,
    itemsize: float = 2,
    tp: int = 1,
    page_size: int = 1,
) -> Result:
    """Return the bytes that requests of `tokens` tokens hold on one rank, by kind of layer.

    itemsize: bytes of a number, 0.5 for 4 bits. tp: ranks that share the key-value heads.
    page_size: tokens of a page; only whole pages are held.
    str(cache_bytes("llama3-8b", 8192)) == "1.07 GB"
    """
    config, itemsize = model(config), checked_itemsize(itemsize)
    arguments.number("tokens", tokens, "a request has tokens", above=0)
    requests, page_size = (
        arguments.counted(name, each)
        for name, each in (("requests", requests), ("page_size", page_size))
    )
    token = _numbers_of_a_token(config, arguments.counted("tp", tp))
    parts = {}
    for kind, layers in Counter(each.mixer for each in config.kinds).items():
        kept = math.ceil(config.seen_tokens(Layer(kind), tokens) / page_size) * page_size
        numbers: float = kept * token
        how = f"{requests:,} * {layers} layers * {kept:,} tokens * {token:,}"
        if kind == "recurrent":
            numbers = config.recurrent_state / tp
            how = f"{requests:,} * {layers} layers * {config.recurrent_state:,}"
        if numbers:
            parts[f"{kind} layers"] = Result(
                requests * layers * numbers * itemsize,
                "bytes",
                f"{kind} layers",
                substitution=f"{how} * {number_text(itemsize)} B",
            )
    return total(
        f"cache of {requests:,} requests",
        parts,
        formula="requests * layers * tokens kept * 2 G K b",
        convention=f"pages of {page_size} tokens, a window in whole pages",
        source="the model's configuration",
    )


def checked_itemsize(itemsize: float, name: str = "itemsize") -> float:
    """Return the bytes of a number. ValueError for bits, as 16, and for 0."""
    arguments.number(name, itemsize, "bytes of a number, and not bits: 2, 1 or 0.5", above=0)
    if itemsize > 8:
        raise ValueError(
            f"{name}={itemsize!r:.60}: bytes of a number, and not bits; 16 bits are 2 bytes"
        )
    return itemsize


def _numbers_of_a_token(config: ModelConfig, tp: int) -> int:
    """Return the numbers that a layer keeps of a token on the fullest of tp ranks."""
    if config.is_latent:
        return config.kv_lora_rank + config.rope_head_dim
    return 2 * -(-config.num_kv_heads // tp) * config.features_per_head


def contiguous_cache_use(
    prompts: Sequence[int], answers: Sequence[int], max_new_tokens: int
) -> Result:
    """Return the used share of the slots if each request holds its longest length.

    prompts, answers: tokens of each request. The share is over all passes, and a request takes one
    pass for each token of its answer. The last token of an answer is never cached. The parts are
    slots times passes, by kind: `cached`, `reserved` (filled later) and `internal` (never filled).
    float(contiguous_cache_use([2], [3], 6)) == 9 / 24
    """
    arguments.counted("max_new_tokens", max_new_tokens)
    how = f"prompt + {max_new_tokens} slots from the first pass on"
    return _use(prompts, answers, lambda prompt, _: prompt + max_new_tokens, how)


def paged_cache_use(prompts: Sequence[int], answers: Sequence[int], page_size: int) -> Result:
    """Return the used share of the slots if each request holds the pages that its tokens need.

    Pages that requests share are counted for each.
    float(paged_cache_use([2], [3], 2)) == 9 / 10
    """
    page_size = arguments.counted("page_size", page_size)
    how = f"whole pages of {page_size} slots"
    return _use(prompts, answers, lambda _, cached: -(-cached // page_size) * page_size, how)


def _use(
    prompts: Sequence[int], answers: Sequence[int], held_by: Callable[[int, int], int], how: str
) -> Result:
    """Return the used share. held_by(prompt, cached): slots that a request holds then."""
    cached = reserved = internal = 0
    for prompt, answer in zip(prompts, answers, strict=True):
        final = prompt + answer - 1
        for now in range(prompt, final + 1):
            held = held_by(prompt, now)
            cached += now
            reserved += min(held, final) - now
            internal += max(0, held - final)
    slots = {"cached": cached, "reserved": reserved, "internal": internal}
    return Result(
        cached / sum(slots.values()),
        "share",
        "used share of the held slots",
        "cached / (cached + reserved + internal)",
        f"{cached:,} / ({cached:,} + {reserved:,} + {internal:,})",
        convention=f"{how}; summed over the passes of {len(prompts)} requests",
        source="Kwon et al., PagedAttention, SOSP 2023, section 3.1",
        parts={kind: Result(num, "", f"slots {kind}") for kind, num in slots.items()},
    )
