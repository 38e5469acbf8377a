"""How many parameters a model has, tensor by tensor, and how many a token goes through.

Per layer, with D hidden features, H heads and G key-value heads of K features, F inside the MLP:

    attention     query D*HK, key and value 2*D*GK, out HK*D
    MLP           2*D*F, or 3*D*F where it is gated
    norms         2 of D, with biases 2*2*D

    latent        query D*Q + Q*H(K+R), compressed keys and values D*(C+R) + C*H(K+V), out H*V*D,
    attention     and a norm of Q and of C: rank Q and C, R rotated features, V of a value
    experts       E MLPs of F_e features, S shared ones, and a router D*E

Embedding V*D, positions T*D where they are learned, a last norm, and a head V*D that is not tied.
"""

from __future__ import annotations

from labkit.calc.models.model_config import ModelConfig
from labkit.calc.models.presets import model
from labkit.calc.result import Result, total


def num_parameters(config: ModelConfig | str) -> Result:
    """All parameters of the model. `config`: a ModelConfig or a name in MODELS.

    num_parameters("gpt2") == 124_439_808
    """
    return _counted(model(config), "parameters", None)


def active_parameters(config: ModelConfig | str) -> Result:
    """Those that one token goes through: of the routed experts, top_k. Dense models: all.

    active_parameters("mixtral-8x7b") == 12_879_925_248
    """
    config = model(config)
    return _counted(config, "active parameters", config.top_k)


def attention_parameters(config: ModelConfig) -> int:
    """Of one layer, biases included."""
    D, H = config.hidden, config.heads
    if config.is_latent:
        return _latent_attention(config)
    query, key = H * config.features_per_head, config.num_kv_heads * config.features_per_head
    biases = (query + 2 * key if config.biases or config.qkv_bias else 0) + D * config.biases
    return 2 * D * query + 2 * D * key + biases


def mlp_parameters(config: ModelConfig, features: int) -> int:
    """Of one MLP, biases included."""
    num_inner = 2 if config.gated else 1
    biases = num_inner * features + config.hidden if config.biases else 0
    return (num_inner + 1) * config.hidden * features + biases


def norm_parameters(config: ModelConfig) -> int:
    """Of one norm, bias included."""
    return config.hidden * (2 if config.biases else 1)


def layer_parameters(config: ModelConfig) -> int:
    """Of one dense layer: attention, MLP and two norms."""
    mlp = mlp_parameters(config, config.mlp_features)
    return attention_parameters(config) + mlp + 2 * norm_parameters(config)


def router_parameters(config: ModelConfig) -> int:
    """Of one layer with experts: a score of each expert for a token."""
    return config.hidden * config.num_experts + config.num_experts * config.router_bias


def end_parameters(config: ModelConfig, is_first: bool, is_last: bool) -> int:
    """Of a stage of a pipeline, what is in none of its layers.

    Embedding and learned positions are on the first stage, last norm and head on the last. A tied
    head is the embedding: where it is on another stage, that has a copy.
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
