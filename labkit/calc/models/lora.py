"""Low-rank adapters: what is trained beside weights that stay as they are.

    y = W x + (alpha / r) B A x        W (out, in) frozen, A (r, in) and B (out, r) trained

so an adapted matrix trains r (in + out) parameters. With D hidden features, H heads and G
key-value heads of K features, and F inside the MLP:

    query D -> HK    key, value D -> GK    out HK -> D    gate, up D -> F    down F -> D

Paper: Hu et al., LoRA, arXiv:2106.09685, section 4.
"""

from __future__ import annotations

from collections.abc import Iterable

from labkit.calc.checked_numbers import check_ranks, shown
from labkit.calc.models.model_config import ModelConfig
from labkit.calc.models.presets import model
from labkit.calc.result import Result, total


def lora_parameters(
    config: ModelConfig | str, rank: int, targets: Iterable[str] = ("query", "value")
) -> Result:
    """Parameters of the adapters of all layers, by target; the paper adapts query and value.

    rank: r. lora_parameters("llama2-7b", 8) == 4_194_304
    ValueError for a target that the model does not have, and for experts and latent attention.
    """
    config, r = model(config), check_ranks(rank, "rank")
    features = _features(config)
    parts = {}
    for target in targets:
        if target not in features:
            raise ValueError(f"target {shown(target)}: give some of {', '.join(features)}")
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
    """Features in and out of each matrix of a layer."""
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
