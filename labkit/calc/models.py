"""Models by their configuration, and how many parameters they have, tensor by tensor.

    calc.MODELS["llama3-8b"]
    dataclasses.replace(calc.MODELS["llama3-8b"], layers=16)

Every number of a published model is from its own configuration file or its paper. The context is
the paper's, if there is one: files hold the context that a model can be served with, after stages
that make it longer.

Per layer, with D hidden features, H heads and G key-value heads of K features, F inside the MLP:

    attention     query D*HK, key and value 2*D*GK, out HK*D
    MLP           2*D*F, or 3*D*F where it is gated
    norms         2 of D, with biases 2*2*D

    latent        query D*Q + Q*H(K+R), compressed keys and values D*(C+R) + C*H(K+V), out H*V*D,
    attention     and a norm of Q and of C: rank Q and C, R rotated features, V of a value
    experts       E MLPs of F_e features, S shared ones, and a router D*E

Embedding V*D, positions T*D where they are learned, a last norm, and a head V*D that is not tied.
Rotations have an angle for every position; learned positions have a row for each of the first
`context`, and no more.

Low-rank adapters are trained beside frozen weights:

    y = W x + (alpha / r) B A x        W (out, in) frozen, A (r, in) and B (out, r) trained

so an adapted matrix trains r (in + out) parameters:

    query D -> HK    key, value D -> GK    out HK -> D    gate, up D -> F    down F -> D

Sources: Radford et al. 2019 (GPT-2); Brown et al., arXiv:2005.14165, table 2.1 (GPT-3); Touvron et
al., arXiv:2302.13971 and arXiv:2307.09288 (LLaMA, Llama 2); Grattafiori et al., arXiv:2407.21783
(Llama 3); Qwen2.5, arXiv:2412.15115; Jiang et al., arXiv:2401.04088 (Mixtral); DeepSeek-V3,
arXiv:2412.19437; Narayanan et al., arXiv:2104.04473, table 1; Korthikanti et al.,
arXiv:2205.05198, table 3; Hu et al., LoRA, arXiv:2106.09685, section 4.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from functools import partial
from types import MappingProxyType

from labkit import arguments
from labkit.calc.result import Result, total


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Configuration of a decoder-only transformer. ValueError for impossible sizes, with a
    reason."""

    layers: int
    hidden: int
    heads: int
    vocab: int
    context: int
    """Sequence length of most of its pre-training, in tokens; later stages, and YaRN, go
    further. With learned positions it is the length of their table, and no sequence is longer.
    It is the default of every `sequence` argument."""

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
    """True: a table of positions. False: rotations, which have no parameters."""

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
    """Rotated features of a latent head, whose key all heads share."""
    value_head_dim: int = 0

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if each.type != "bool" and value is not None:
                least = 0 if each.default == 0 else 1
                arguments.whole(each.name, value, f"{least} or more", least=least)
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
        """Features of a query and a key; with latent attention, those that are not rotated."""
        return self.hidden // self.heads if self.head_dim is None else self.head_dim

    @property
    def mlp_features(self) -> int:
        """Features inside a dense MLP."""
        return 4 * self.hidden if self.ffn is None else self.ffn

    @property
    def expert_features(self) -> int:
        """Features inside one expert."""
        return self.mlp_features if self.expert_ffn is None else self.expert_ffn

    @property
    def is_latent(self) -> bool:
        """Return whether keys and values are compressed (MLA)."""
        return self.kv_lora_rank > 0

    @property
    def expert_layers(self) -> int:
        """Layers that have experts."""
        return self.layers - self.dense_layers if self.num_experts else 0


_gpt2 = partial(ModelConfig, vocab=50257, context=1024)
_llama = partial(ModelConfig, gated=True, tied=False, biases=False, learned_positions=False)
_llama1 = partial(_llama, vocab=32000, context=2048)
_llama2 = partial(_llama, vocab=32000, context=4096)
_llama3 = partial(_llama, vocab=128256, context=8192, kv_heads=8)
_megatron = partial(ModelConfig, vocab=51200, context=2048)

MODELS: Mapping[str, ModelConfig] = MappingProxyType(
    {
        "gpt2": _gpt2(layers=12, hidden=768, heads=12),
        "gpt2-medium": _gpt2(layers=24, hidden=1024, heads=16),
        "gpt2-large": _gpt2(layers=36, hidden=1280, heads=20),
        "gpt2-xl": _gpt2(layers=48, hidden=1600, heads=25),
        "gpt3-175b": ModelConfig(layers=96, hidden=12288, heads=96, vocab=50257, context=2048),
        "llama1-7b": _llama1(layers=32, hidden=4096, heads=32, ffn=11008),
        "llama1-13b": _llama1(layers=40, hidden=5120, heads=40, ffn=13824),
        "llama1-33b": _llama1(layers=60, hidden=6656, heads=52, ffn=17920),
        "llama1-65b": _llama1(layers=80, hidden=8192, heads=64, ffn=22016),
        "llama2-7b": _llama2(layers=32, hidden=4096, heads=32, ffn=11008),
        "llama2-13b": _llama2(layers=40, hidden=5120, heads=40, ffn=13824),
        "llama2-70b": _llama2(layers=80, hidden=8192, heads=64, kv_heads=8, ffn=28672),
        "llama3-8b": _llama3(layers=32, hidden=4096, heads=32, ffn=14336),
        "llama3-70b": _llama3(layers=80, hidden=8192, heads=64, ffn=28672),
        # Its file says 131,072: it went there in six stages, after most of the 15.6T tokens.
        "llama3-405b": _llama3(layers=126, hidden=16384, heads=128, ffn=53248),
        # Their files say 131,072. No paper says what pre-training had, so this is the family's.
        "llama3.2-1b": _llama3(layers=16, hidden=2048, heads=32, ffn=8192, tied=True),
        "llama3.2-3b": _llama3(layers=28, hidden=3072, heads=24, ffn=8192, tied=True),
        # Its file says 131,072, which is YaRN's; the last stage of pre-training had 32,768.
        "qwen2.5-7b": _llama(
            layers=28, hidden=3584, heads=28, kv_heads=4, ffn=18944, vocab=152064, context=4096,
            qkv_bias=True,
        ),
        "mixtral-8x7b": _llama(
            layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, vocab=32000, context=32768,
            num_experts=8, top_k=2,
        ),
        # Its file says 163,840; 32,768 and 131,072 came after pre-training.
        "deepseek-v3": _llama(
            layers=61, hidden=7168, heads=128, vocab=129280, context=4096, ffn=18432,
            head_dim=128, rope_head_dim=64, value_head_dim=128, q_lora_rank=1536, kv_lora_rank=512,
            num_experts=256, top_k=8, shared_experts=1, expert_ffn=2048, dense_layers=3,
            router_bias=True,
        ),
        "narayanan-1.7b": _megatron(layers=24, hidden=2304, heads=24),
        "narayanan-145b": _megatron(layers=80, hidden=12288, heads=96),
        "narayanan-1t": _megatron(layers=128, hidden=25600, heads=160),
        "korthikanti-22b": _megatron(layers=48, hidden=6144, heads=64),
    }
)  # fmt: skip
"""By name, in lower case."""


def model(config: ModelConfig | str) -> ModelConfig:
    """Return a configuration, given itself or by its name in MODELS. ValueError lists the names."""
    return arguments.named(config, ModelConfig, MODELS)


def sequence_length(config: ModelConfig, sequence: int | None) -> int:
    """Return the tokens of a sequence; None: the model's context. ValueError: too long."""
    if sequence is None:
        return config.context
    length = arguments.counted("sequence", sequence)
    if config.learned_positions and length > config.context:
        raise ValueError(
            f"sequence={length}: the model has learned {config.context} positions, and none for "
            f"the tokens after them; give {config.context} or fewer, or a ModelConfig with a "
            "larger context"
        )
    return length


def num_parameters(config: ModelConfig | str) -> Result:
    """Count all parameters of the model. `config`: a ModelConfig or a name in MODELS.

    num_parameters("gpt2") == 124_439_808
    """
    return _counted(model(config), "parameters", None)


def active_parameters(config: ModelConfig | str) -> Result:
    """Count the parameters that one token goes through: top_k of the routed experts.

    active_parameters("mixtral-8x7b") == 12_879_925_248
    """
    config = model(config)
    return _counted(config, "active parameters", config.top_k)


def attention_parameters(config: ModelConfig) -> int:
    """Count one layer's attention, biases included."""
    D, H = config.hidden, config.heads
    if config.is_latent:
        return _latent_attention(config)
    query, key = H * config.features_per_head, config.num_kv_heads * config.features_per_head
    biases = (query + 2 * key if config.biases or config.qkv_bias else 0) + D * config.biases
    return 2 * D * query + 2 * D * key + biases


def mlp_parameters(config: ModelConfig, features: int) -> int:
    """Count one MLP, biases included."""
    num_inner = 2 if config.gated else 1
    biases = num_inner * features + config.hidden if config.biases else 0
    return (num_inner + 1) * config.hidden * features + biases


def norm_parameters(config: ModelConfig) -> int:
    """Count one norm, bias included."""
    return config.hidden * (2 if config.biases else 1)


def layer_parameters(config: ModelConfig) -> int:
    """Count one dense layer: attention, MLP and two norms."""
    mlp = mlp_parameters(config, config.mlp_features)
    return attention_parameters(config) + mlp + 2 * norm_parameters(config)


def router_parameters(config: ModelConfig) -> int:
    """Count the parameters of one layer's router, which scores each expert for a token."""
    return config.hidden * config.num_experts + config.num_experts * config.router_bias


def end_parameters(config: ModelConfig, is_first: bool, is_last: bool) -> int:
    """Count the parameters of a pipeline stage outside its layers.

    Embedding and learned positions are on the first stage, last norm and head on the last. If a
    tied head is on another stage than the embedding, it is a copy there.
    """
    table = config.vocab * config.hidden
    num_tables = 1 if is_first and is_last and config.tied else is_first + is_last
    positions = config.context * config.hidden * config.learned_positions
    return num_tables * table + is_first * positions + is_last * norm_parameters(config)


def _latent_attention(config: ModelConfig) -> int:
    D, H, K, R = config.hidden, config.heads, config.features_per_head, config.rope_head_dim
    Q, C, V = config.q_lora_rank, config.kv_lora_rank, config.value_head_dim
    query = D * Q + Q + Q * H * (K + R) if Q else D * H * (K + R)
    compressed = D * (C + R) + C + C * H * (K + V)
    return query + compressed + H * V * D


def _counted(config: ModelConfig, name: str, experts_per_token: int | None) -> Result:
    D, layers, with_experts = config.hidden, config.layers, config.expert_layers
    num_routed = config.num_experts if experts_per_token is None else experts_per_token
    num_experts = num_routed + config.shared_experts
    expert = mlp_parameters(config, config.expert_features)
    norm = norm_parameters(config)
    parts = {
        "embedding": (config.vocab * D, f"{config.vocab:,} * {D:,}"),
        "positions": (config.context * D * config.learned_positions, f"{config.context:,} * {D:,}"),
        "attention": _per_layer(layers, attention_parameters(config)),
        "mlp": _per_layer(layers - with_experts, mlp_parameters(config, config.mlp_features)),
        "experts": (
            with_experts * num_experts * expert,
            f"{with_experts} layers * {num_experts} experts * {expert:,}",
        ),
        "routers": _per_layer(with_experts, router_parameters(config)),
        "norms": ((2 * layers + 1) * norm, f"{2 * layers + 1} norms * {norm:,}"),
        "head": (0 if config.tied else config.vocab * D, f"{config.vocab:,} * {D:,}"),
    }
    return total(
        name,
        {
            part: Result(count, "parameters", part, substitution=how)
            for part, (count, how) in parts.items()
            if count
        },
        formula="embedding + positions + layers * (attention + MLP or experts + norms) + head",
        convention="biases, norms and embeddings counted; a tied head counts once",
        source="the model's configuration",
    )


def _per_layer(layers: int, count: int) -> tuple[int, str]:
    return layers * count, f"{layers} layers * {count:,}"


def lora_parameters(
    config: ModelConfig | str, rank: int, targets: Iterable[str] = ("query", "value")
) -> Result:
    """Count the adapters' parameters of all layers, by target; the paper adapts query and value.

    rank: r. lora_parameters("llama2-7b", 8) == 4_194_304
    ValueError for a target that the model does not have, and for experts and latent attention.
    """
    config, r = model(config), arguments.counted("rank", rank)
    features = _features(config)
    parts = {}
    for target in targets:
        if target not in features:
            raise ValueError(f"target {target!r:.60}: give some of {', '.join(features)}")
        into, out = features[target]
        parts[target] = Result(
            config.layers * r * (into + out),
            "parameters",
            target,
            substitution=f"{config.layers} * {r} * ({into:,} + {out:,})",
        )
    return total(
        f"adapters of rank {r}",
        parts,
        formula="L r (in + out), by target",
        convention="the same in every layer; the frozen weights are not counted",
        source="Hu et al., arXiv:2106.09685, section 4",
    )


def _features(config: ModelConfig) -> dict[str, tuple[int, int]]:
    """Return features in and out of each matrix of a layer."""
    if config.is_latent or config.num_experts:
        raise ValueError(
            "latent attention and experts have other matrices; give a dense model such as llama3-8b"
        )
    D, K, F = config.hidden, config.features_per_head, config.mlp_features
    query, key = config.heads * K, config.num_kv_heads * K
    features = {
        "query": (D, query), "key": (D, key), "value": (D, key), "out": (query, D),
        "up": (D, F), "down": (F, D),
    }  # fmt: skip
    return features | ({"gate": (D, F)} if config.gated else {})
