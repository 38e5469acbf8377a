"""The KV cache: keys and values of all earlier tokens, in every layer.

    2 L G K b       L layers, G key-value heads of K features, b bytes each: a key and a value
    L (C + R) b     latent attention: one compressed vector, and the rotated part of the key

A request holds room for more tokens than it has. A contiguous cache holds room for the longest
answer, a paged one for less than a page more:

    pass       1          2          3                 # cached   . filled later   ~ never filled
    longest    ##..~~~~   ###.~~~~   ####~~~~          prompt 2, answer 3, at most 8 tokens
    pages      ##         ###.       ####              pages of two tokens

Papers: Shazeer, arXiv:1911.02150 (one key-value head); Ainslie et al., arXiv:2305.13245 (groups of
heads); DeepSeek-V2, arXiv:2405.04434, section 2.1 (latent).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from labkit import arguments
from labkit.calc.models import ModelConfig, model
from labkit.calc.result import Result


def kv_cache_bytes_per_token(config: ModelConfig | str, itemsize: int = 2) -> Result:
    """Return the bytes of one token of one sequence, over all layers. itemsize: bytes of a number.

    kv_cache_bytes_per_token("llama3-8b") == 131_072
    """
    config, itemsize = model(config), arguments.counted("itemsize", itemsize)
    name = "KV cache of one token"
    if config.is_latent:
        features = config.kv_lora_rank + config.rope_head_dim
        return Result(
            config.layers * features * itemsize,
            "bytes",
            name,
            "L (C + R) b",
            f"{config.layers} * ({config.kv_lora_rank} + {config.rope_head_dim}) * {itemsize}",
            source="DeepSeek-V2, arXiv:2405.04434",
        )
    heads, features = config.num_kv_heads, config.features_per_head
    return Result(
        2 * config.layers * heads * features * itemsize,
        "bytes",
        name,
        "2 L G K b",
        f"2 * {config.layers} * {heads} * {features} * {itemsize}",
        convention="no padding and no pages: what the tokens themselves take",
        source="the model's configuration",
    )


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
