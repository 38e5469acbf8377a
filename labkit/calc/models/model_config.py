"""What of a model decides its size: the numbers that its configuration file holds.

calc.MODELS["llama3-8b"]
dataclasses.replace(calc.MODELS["llama3-8b"], layers=16)
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A decoder-only transformer. ValueError: sizes that no model has, each named with a reason."""

    layers: int
    hidden: int
    heads: int
    vocab: int
    context: int
    """The sequence length of most of its pre-training, in tokens; later stages, and YaRN, go
    further. Of learned positions it is the length of the table, and no sequence is longer. What
    takes a `sequence` takes this one where none is given."""

    kv_heads: int | None = None
    """Key and value heads, shared by groups of query heads; None: as many as `heads`."""
    head_dim: int | None = None
    """Features of a head; None: hidden / heads."""
    ffn: int | None = None
    """Features inside the MLP; None: 4 * hidden."""
    gated: bool = False
    """Three matrices in an MLP (gate, up, down), as in SwiGLU, and not two."""
    tied: bool = True
    """The head is the token embedding, and counts once."""
    biases: bool = True
    """Linear layers and norms have biases."""
    qkv_bias: bool = False
    """Query, key and value have biases where the other layers have none."""
    learned_positions: bool = True
    """A table of positions, and not rotations, which have no parameters."""

    num_experts: int = 0
    """Routed experts in a layer; 0: dense."""
    top_k: int = 0
    """Routed experts that a token goes through."""
    shared_experts: int = 0
    """Experts that every token goes through besides."""
    expert_ffn: int | None = None
    """Features inside one expert; None: as `ffn`."""
    dense_layers: int = 0
    """The first layers that have no experts."""
    router_bias: bool = False
    """A bias for each expert, by which load is balanced."""

    kv_lora_rank: int = 0
    """Multi-head latent attention: features to which keys and values are compressed; 0: none."""
    q_lora_rank: int = 0
    rope_head_dim: int = 0
    """Of a latent head: features that are rotated, whose key all heads share."""
    value_head_dim: int = 0

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if each.type == "bool":
                if not isinstance(value, bool):
                    raise TypeError(f"{each.name}={value!r}: give True or False")
                continue
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"{each.name}={value!r}: give a whole number")
            least = 0 if each.default == 0 else 1
            if value < least:
                raise ValueError(f"{each.name}={value!r}: give a whole number, {least} or more")
        self._check_heads()
        self._check_experts()

    def _check_heads(self) -> None:
        if self.head_dim is None and self.hidden % self.heads:
            raise ValueError(
                f"heads={self.heads} does not divide hidden={self.hidden}; say head_dim where "
                f"heads are no equal slices, or try heads={math.gcd(self.heads, self.hidden)}"
            )
        if self.heads % self.num_kv_heads:
            raise ValueError(
                f"kv_heads={self.kv_heads} does not divide heads={self.heads}: each key and value "
                "head serves as many query heads as every other"
            )
        if self.is_latent and not (self.rope_head_dim and self.value_head_dim):
            raise ValueError(
                f"kv_lora_rank={self.kv_lora_rank} means latent attention, which also needs "
                "rope_head_dim and value_head_dim"
            )
        if self.is_latent and (self.biases or self.qkv_bias):
            raise ValueError("latent attention is counted without biases; pass biases=False")
        if not self.is_latent and (self.q_lora_rank or self.rope_head_dim or self.value_head_dim):
            raise ValueError("q_lora_rank, rope_head_dim and value_head_dim need kv_lora_rank")

    def _check_experts(self) -> None:
        if self.num_experts and not 1 <= self.top_k <= self.num_experts:
            raise ValueError(
                f"top_k={self.top_k} of num_experts={self.num_experts}: a token goes through 1 or "
                "more of them, and at most all"
            )
        of_experts = ("top_k", "shared_experts", "dense_layers", "expert_ffn", "router_bias")
        if not self.num_experts and any(getattr(self, name) for name in of_experts):
            raise ValueError(f"{', '.join(of_experts)} need num_experts")
        if self.dense_layers > self.layers:
            raise ValueError(f"dense_layers={self.dense_layers} exceed layers={self.layers}")

    @property
    def num_kv_heads(self) -> int:
        """Key and value heads."""
        return self.heads if self.kv_heads is None else self.kv_heads

    @property
    def features_per_head(self) -> int:
        """Of a query and a key; in latent attention the part that is not rotated."""
        return self.hidden // self.heads if self.head_dim is None else self.head_dim

    @property
    def mlp_features(self) -> int:
        """Inside a dense MLP."""
        return 4 * self.hidden if self.ffn is None else self.ffn

    @property
    def expert_features(self) -> int:
        """Inside one expert."""
        return self.mlp_features if self.expert_ffn is None else self.expert_ffn

    @property
    def is_latent(self) -> bool:
        """Whether keys and values are compressed (MLA)."""
        return self.kv_lora_rank > 0

    @property
    def expert_layers(self) -> int:
        """Layers that have experts."""
        return self.layers - self.dense_layers if self.num_experts else 0
