"""What generating keeps of each token that it has seen: its keys and values, in every layer.

    2 L G K b       L layers, G key-value heads of K features, b bytes each: a key and a value
    L (C + R) b     latent attention: one compressed vector, and the rotated part of the key
Papers: Shazeer, arXiv:1911.02150 (one key-value head); Ainslie et al., arXiv:2305.13245 (groups of
heads); DeepSeek-V2, arXiv:2405.04434, section 2.1 (latent).
"""

from __future__ import annotations

from labkit.calc.checked_numbers import check_itemsize
from labkit.calc.models.model_config import ModelConfig
from labkit.calc.models.presets import model
from labkit.calc.result import Result


def kv_cache_bytes_per_token(config: ModelConfig | str, itemsize: int = 2) -> Result:
    """Bytes of one token of one sequence, over all layers; itemsize: bytes of a number.

    kv_cache_bytes_per_token("llama3-8b") == 131_072
    """
    config, itemsize = model(config), check_itemsize(itemsize)
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
