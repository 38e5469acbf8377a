"""Models with experts, or latent attention, as dense ones that keep as many activations.

    experts            the MLP of a token: k + shared experts, side by side
    latent attention   all heads' keys and values, expanded; a head has the mean of the sizes of its
                       query, key and value, rounded up

What the formulas for dense layers then leave out (inputs of each expert, the compressed keys) is
added where it counts.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

from labkit.calc.models.model_config import ModelConfig


@lru_cache(maxsize=256)
def like_dense(config: ModelConfig, num_experts: int) -> ModelConfig:
    """A dense model with the same attention, its MLP as wide as so many experts; 0: its own."""
    none = {"num_experts": 0, "top_k": 0, "shared_experts": 0, "dense_layers": 0}
    changed: dict[str, Any] = none | {"expert_ffn": None, "router_bias": False}
    if num_experts:
        changed["ffn"] = num_experts * config.expert_features
    if config.is_latent:
        of_key = config.features_per_head + config.rope_head_dim
        changed |= {"kv_heads": None, "head_dim": -(-(2 * of_key + config.value_head_dim) // 3)}
        changed |= {"kv_lora_rank": 0, "q_lora_rank": 0, "rope_head_dim": 0, "value_head_dim": 0}
    return replace(config, **changed)
