"""Parameters of a model, tensor by tensor, and of adapters beside it.

Per layer, with D hidden features, H heads and G key-value heads of K features, F inside the MLP:

    attention     query D*HK, key and value 2*D*GK, out HK*D; a norm of K for query and key each,
                  or of HK and GK; H sinks; a gate D*HK
    MLP           2*D*F, or 3*D*F where it is gated
    norms         D each, with biases 2*D: 2 of a layer, 1 where attention and MLP share it,
                  4 where their outputs have one too

    latent        query D*Q + Q*H(K+R), compressed keys and values D*(C+R) + C*H(K+V), out H*V*D,
    attention     and a norm of Q and of C: rank Q and C, R rotated features, V of a value
    experts       E MLPs of F_e features, S shared ones (and a gate of D), a router D*E

Embedding V*D, positions T*D where they are learned, a last norm, and a head V*D that is not tied.

Low-rank adapters are trained beside weights that stay as they are:

    y = W x + (alpha / r) B A x        W (out, in) frozen, A (r, in) and B (out, r) trained

so an adapted matrix trains r (in + out) parameters:

    query D -> HK    key, value D -> GK    out HK -> D    gate, up D -> F    down F -> D

Papers: Hu et al., LoRA, arXiv:2106.09685, section 4; DeepSeek-V2, arXiv:2405.04434, section 2.1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from labkit import arguments
from labkit.calc.models import DENSE, Layer, ModelConfig, model
from labkit.calc.result import Result, total


def num_parameters(config: ModelConfig | str) -> Result:
    """Count all parameters of the model. `config`: a ModelConfig or a name in MODELS.

    num_parameters("gpt2") == 124_439_808
    """
    config = model(config)
    return _counted(config, "parameters", config.num_experts)


def active_parameters(config: ModelConfig | str) -> Result:
    """Count those that one token goes through: top_k of the routed experts.

    active_parameters("mixtral-8x7b") == 12_879_925_248
    """
    config = model(config)
    return _counted(config, "active parameters", config.top_k)


def attention_parameters(config: ModelConfig) -> int:
    """Count one layer's attention, with its biases and norms of queries and keys."""
    D, H, G, K = config.hidden, config.heads, config.num_kv_heads, config.features_per_head
    if config.is_latent:
        return _latent_attention(config)
    query, key = H * K, G * K
    biases = (query + 2 * key) * config.has_bias("qkv") + D * config.has_bias("out")
    norms = {"": 0, "head": 2 * K, "all": query + key}[config.qk_norm]
    return (2 + config.attention_gate) * D * query + 2 * D * key + biases + norms + H * config.sinks


def with_copied_heads(config: ModelConfig, tp: int) -> ModelConfig:
    """Return the model as tp ranks hold it: each has a key-value head, some of them copies."""
    if config.is_latent or tp <= config.num_kv_heads:
        return config
    return replace(config, kv_heads=tp)


def mixer_parameters(config: ModelConfig, kind: Layer) -> int:
    """Count what mixes tokens in a layer of this kind: attention, or a recurrence."""
    if kind.mixer == "none":
        return 0
    if kind.mixer == "recurrent":
        return config.recurrent_parameters
    return attention_parameters(config)


def mlp_parameters(config: ModelConfig, features: int) -> int:
    """Count one MLP, biases included."""
    num_inner = 2 if config.gated else 1
    biases = num_inner * features + config.hidden if config.has_bias("mlp") else 0
    return (num_inner + 1) * config.hidden * features + biases


def norm_parameters(config: ModelConfig) -> int:
    """Count one norm, bias included."""
    return config.hidden * (2 if config.has_bias("norms") else 1) if config.norms else 0


def layer_norms(config: ModelConfig, kind: Layer = DENSE) -> int:
    """Count the norms of a layer: half of them where it has no mixer, or no MLP."""
    num = config.norms if "none" not in kind else config.norms // 2
    return num * norm_parameters(config)


def layer_parameters(config: ModelConfig) -> int:
    """Count one dense layer: attention, MLP and norms."""
    mlp = mlp_parameters(config, config.mlp_features)
    return attention_parameters(config) + mlp + layer_norms(config)


def router_parameters(config: ModelConfig) -> int:
    """Count one layer's router: a score of each expert for a token, and the shared ones' gate."""
    scores = config.hidden * config.num_experts + config.num_experts * config.has_bias("router")
    return scores + config.hidden * config.shared_gate


def end_parameters(config: ModelConfig, is_first: bool, is_last: bool) -> int:
    """Count a pipeline stage's parameters that are in none of its layers.

    Embedding, its norm and learned positions are on the first stage, last norm and head on the
    last. A tied head is the embedding: where it is on another stage, that has a copy.
    """
    table, norm = config.vocab * config.hidden, norm_parameters(config)
    num_tables = 1 if is_first and is_last and config.tied else is_first + is_last
    first = config.position_rows * config.hidden + norm * config.embedding_norm
    last = norm + config.vocab * config.has_bias("head")
    return num_tables * table + is_first * first + is_last * last


def _latent_attention(config: ModelConfig) -> int:
    D, H, K, R = config.hidden, config.heads, config.features_per_head, config.rope_head_dim
    Q, C, V = config.q_lora_rank, config.kv_lora_rank, config.value_head_dim
    query = D * Q + Q + Q * H * (K + R) if Q else D * H * (K + R)
    compressed = D * (C + R) + C + C * H * (K + V)
    return query + compressed + H * V * D


def _counted(config: ModelConfig, name: str, num_routed: int) -> Result:
    D, norm = config.hidden, norm_parameters(config)
    mixers = Counter(kind.mixer for kind in config.kinds)
    mlps = Counter(kind.mlp for kind in config.kinds)
    attending, experts = mixers["full"] + mixers["window"], mlps["experts"]
    num_experts = num_routed + config.shared_experts
    expert = mlp_parameters(config, config.expert_features)
    norms = sum(layer_norms(config, kind) for kind in config.kinds)
    num_norms = norms // norm + 1 + config.embedding_norm if norm else 0
    parts = {
        "embedding": (config.vocab * D, f"{config.vocab:,} * {D:,}"),
        "positions": (config.position_rows * D, f"{config.position_rows:,} * {D:,}"),
        "attention": _per_layer(attending, attention_parameters(config)),
        "recurrent": _per_layer(mixers["recurrent"], config.recurrent_parameters),
        "mlp": _per_layer(mlps["dense"], mlp_parameters(config, config.mlp_features)),
        "experts": (
            experts * num_experts * expert,
            f"{experts} layers * {num_experts} experts * {expert:,}",
        ),
        "routers": _per_layer(experts, router_parameters(config) if experts else 0),
        "norms": (num_norms * norm, f"{num_norms} norms * {norm:,}"),
        "head": (0 if config.tied else config.vocab * D, f"{config.vocab:,} * {D:,}"),
        "head bias": (config.vocab * config.has_bias("head"), f"{config.vocab:,}"),
    }
    return total(
        name,
        {
            part: Result(count, "parameters", part, substitution=how)
            for part, (count, how) in parts.items()
            if count
        },
        formula="embedding + positions + layers * (attention + MLP or experts + norms) + head",
        convention="biases, norms and embeddings counted; a tied head counts once"
        + "".join(f"; without {part}" for part in config.omitted),
        source="the model's configuration",
    )


def _per_layer(layers: int, count: int) -> tuple[int, str]:
    return layers * count, f"{layers} layers * {count:,}"


_PROJECTIONS = {
    "q_proj": "query", "k_proj": "key", "v_proj": "value", "o_proj": "out",
    "gate_proj": "gate", "up_proj": "up", "down_proj": "down",
}  # fmt: skip
"""Names of the matrices in Hugging Face's models."""


def lora_parameters(
    config: ModelConfig | str, rank: int, targets: Iterable[str] | str = ("query", "value")
) -> Result:
    """Count the adapters' parameters of all layers, by target; the paper adapts query and value.

    rank: r. targets: names of matrices, such as "query" or "q_proj", or "all-linear".
    lora_parameters("llama2-7b", 8) == 4_194_304
    ValueError for a target that the model does not have, such as a matrix of routed experts.
    """
    config, r = model(config), arguments.counted("rank", rank)
    matrices = _matrices(config)
    if targets == "all-linear":
        targets = matrices
    parts = {}
    for target in (targets,) if isinstance(targets, str) else targets:
        name = _PROJECTIONS.get(target, target)
        if name not in matrices:
            raise ValueError(f"target {target!r:.60}: give some of {', '.join(matrices)}")
        layers, into, out = matrices[name]
        parts[name] = Result(
            layers * r * (into + out),
            "parameters",
            name,
            substitution=f"{layers} * {r} * ({into:,} + {out:,})",
        )
    return total(
        f"adapters of rank {r}",
        parts,
        formula="L r (in + out), by target",
        convention="the frozen weights are not counted; no adapters on routed experts",
        source="Hu et al., arXiv:2106.09685, section 4",
    )


def _matrices(config: ModelConfig) -> dict[str, tuple[int, int, int]]:
    """Return the layers that have it, features in and out of each dense matrix of a layer."""
    if config.is_latent:
        raise ValueError(
            "latent attention has other matrices; give a model without, such as llama3-8b"
        )
    D, K, F = config.hidden, config.features_per_head, config.mlp_features
    query, key = config.heads * K, config.num_kv_heads * K
    attending = sum(kind.mixer in ("full", "window") for kind in config.kinds)
    dense = sum(kind.mlp == "dense" for kind in config.kinds)
    found = {
        "query": (attending, D, query), "key": (attending, D, key), "value": (attending, D, key),
        "out": (attending, query, D), "up": (dense, D, F), "down": (dense, F, D),
    } | ({"gate": (dense, D, F)} if config.gated else {})  # fmt: skip
    return {name: each for name, each in found.items() if each[0]}
