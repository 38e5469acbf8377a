"""A model from the config.json beside its weights, as Hugging Face's transformers writes it.

    calc.model_from_config("config.json")
    calc.model_from_config({"model_type": "llama", "hidden_size": 4096, ...})

    key                      ModelConfig      also called
    num_hidden_layers        layers           n_layer, num_layers
    hidden_size              hidden           n_embd, n_embed, d_model
    num_attention_heads      heads            n_head
    num_key_value_heads      kv_heads         num_kv_heads, multi_query_group_num
    intermediate_size        ffn              n_inner, ffn_dim, ffn_hidden_size
    max_position_embeddings  context          n_positions, n_ctx, seq_length
    model_type               a row of FAMILIES: what its files do not say, since every model of the
                             family has it (norms, biases, which layers have a window)

A file leaves out what is its class's default: a family's row gives these. A model of text and
images counts its text part. What no count here has is listed in `omitted`, which results print.

Source: the configuration classes and model files of huggingface/transformers.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from labkit.arguments import UserError
from labkit.calc.models import Layer, ModelConfig

_NAMES = {
    "layers": ("num_hidden_layers", "n_layer", "num_layers"),
    "hidden": ("hidden_size", "n_embd", "n_embed", "d_model"),
    "heads": ("num_attention_heads", "n_head"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads", "multi_query_group_num"),
    "head_dim": ("head_dim", "kv_channels", "attention_head_dim"),
    "ffn": ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size"),
    "vocab": ("vocab_size", "padded_vocab_size"),
    "context": ("max_position_embeddings", "n_positions", "n_ctx", "seq_length"),
    "tied": ("tie_word_embeddings",),
    "top_k": ("num_experts_per_tok", "num_experts_per_token"),
    "num_experts": ("n_routed_experts", "num_local_experts", "num_experts"),
    "expert_ffn": ("moe_intermediate_size",),
    "shared_experts": ("n_shared_experts",),
    "dense_layers": ("first_k_dense_replace",),
    "kv_lora_rank": ("kv_lora_rank",),
    "q_lora_rank": ("q_lora_rank",),
    "rope_head_dim": ("qk_rope_head_dim",),
    "value_head_dim": ("v_head_dim",),
}
_REQUIRED = ("layers", "hidden", "heads", "vocab")

Raw = Mapping[str, Any]
Family = Callable[[Raw], dict[str, Any]]
"""From a file's keys, what goes into ModelConfig besides those of _NAMES; wins over them."""


def model_from_config(source: str | Path | Raw) -> ModelConfig:
    """Return the model of a config.json, of the folder that has one, or of its keys.

    UserError: no such file, no JSON object, an architecture that is none of FAMILIES, a key that is
    missing, misspelt or no number; each with what would do.
    """
    raw = source if isinstance(source, Mapping) else _read(Path(source))
    omitted: tuple[str, ...] = ()
    if isinstance(raw.get("text_config"), Mapping):
        omitted = ("what sees images or hears sound",)
        raw = {"model_type": raw.get("model_type"), **raw["text_config"]}
    name = str(raw.get("model_type"))
    if name not in FAMILIES:
        raise UserError(
            f"model_type={raw.get('model_type')!r:.60}: no formula for this architecture, but for "
            f"{', '.join(FAMILIES)}. Give a calc.ModelConfig(...) with its sizes"
        )
    if misspelt := _misspelt(raw):
        raise UserError(f"this configuration of {name!r} has {misspelt}")
    try:
        family = FAMILIES[name](raw)
    except KeyError as error:
        raise UserError(f"this configuration of {name!r} lacks {error.args[0]}") from None
    except (TypeError, ZeroDivisionError) as error:
        raise UserError(f"this configuration of {name!r}: {error}") from None
    found: dict[str, Any] = {
        "learned_positions": False,
        "biases": False,
        "gated": True,
        "context": 2048,
    }
    found |= _of_names(raw) | family
    found["omitted"] = omitted + tuple(found.get("omitted", ()))
    if missing := [name for name in _REQUIRED if name not in found]:
        keys = "; ".join(" or ".join(_NAMES[each]) for each in missing)
        raise UserError(f"this configuration of {name!r} lacks {keys}")
    if not found.get("num_experts"):
        for each in ("top_k", "num_experts", "expert_ffn", "shared_experts", "dense_layers"):
            found.pop(each, None)
    if not found.get("kv_lora_rank"):
        for each in ("kv_lora_rank", "q_lora_rank", "rope_head_dim", "value_head_dim"):
            found.pop(each, None)
    try:
        return ModelConfig(**found)
    except (TypeError, ValueError) as error:
        raise UserError(f"this configuration of {name!r}: {error}") from None


def _read(path: Path) -> Raw:
    if path.is_dir():
        path = path / "config.json"
    try:
        text = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; give a config.json or its folder") from None
    return read_config(text, str(path))


def read_config(text: bytes, name: str) -> Raw:
    """Return the keys of a config.json's text, for `model_from_config`.

    UserError for no JSON, and for JSON that is no object. It begins with `name`.
    """
    try:
        raw = json.loads(text)
    except ValueError as error:
        raise UserError(f"{name} is no JSON: {error}") from None
    if not isinstance(raw, dict):
        raise UserError(f"{name} has no JSON object; give the config.json beside a model's weights")
    return raw


def _of_names(raw: Raw) -> dict[str, Any]:
    """By field of ModelConfig, what the file says; null is as good as nothing."""
    found = {}
    for field, keys in _NAMES.items():
        for key in keys:
            if raw.get(key) is not None:
                found[field] = raw[key]
                break
    return found


def _misspelt(raw: Raw) -> str:
    """Name the keys that are nearly one that the file lacks: otherwise a default would be taken."""
    known = [key for keys in _NAMES.values() for key in keys]
    found = _of_names(raw)
    lacking = [key for field, keys in _NAMES.items() if field not in found for key in keys]
    near = {key: difflib.get_close_matches(key, lacking, 1, 0.9) for key in raw if key not in known}
    return "; ".join(f"{key!r}: did you mean {best[0]!r}?" for key, best in near.items() if best)


def _windows(raw: Raw, every: int, default: int) -> dict[str, Any]:
    """Return windowed layers as layer_types has them; else each `every`-th is full; 0: all are."""
    window = raw.get("sliding_window", default)
    types = raw.get("layer_types")
    if not window or (not every and not types):
        return {}
    kinds = (Layer("window"),) * (every - 1) + (Layer(),)
    if types:
        kinds = tuple(Layer("window" if each == "sliding_attention" else "full") for each in types)
    return {"pattern": kinds, "window": window}


def _with_experts(
    pattern: tuple[Layer, ...], layers: int, has_experts: Callable[[int], bool]
) -> Any:
    mixers = [pattern[place % len(pattern)].mixer if pattern else "full" for place in range(layers)]
    return tuple(
        Layer(mixer, "experts" if has_experts(place) else "dense")
        for place, mixer in enumerate(mixers)
    )


def _llama(raw: Raw) -> dict[str, Any]:
    biases: tuple[str, ...] = ("qkv", "out") if raw.get("attention_bias") else ()
    biases += ("mlp",) if raw.get("mlp_bias") else ()
    return {"biases": biases, "tied": raw.get("tie_word_embeddings", False)}


def _mistral(raw: Raw) -> dict[str, Any]:
    window = raw.get("sliding_window")
    return _llama(raw) | ({"window": window} if window else {})


def _gpt2(raw: Raw) -> dict[str, Any]:
    return {"gated": False, "tied": True, "biases": True, "learned_positions": True}


def _gptj(raw: Raw) -> dict[str, Any]:
    return {"gated": False, "tied": False, "norms": 1, "biases": ("mlp", "norms", "head")}


def _gpt_neox(raw: Raw) -> dict[str, Any]:
    biases = ("mlp", "norms") if raw.get("attention_bias") is False else True
    return {"gated": False, "biases": biases, "tied": raw.get("tie_word_embeddings", False)}


def _opt(raw: Raw) -> dict[str, Any]:
    projected = raw.get("word_embed_proj_dim", raw["hidden_size"]) != raw["hidden_size"]
    return {
        "gated": False,
        "tied": True,
        "biases": True,
        "learned_positions": raw.get("max_position_embeddings", 2048) + 2,
        "omitted": ("narrow embeddings and their projections",) * projected,
    }


def _bloom(raw: Raw) -> dict[str, Any]:
    return {"gated": False, "tied": True, "biases": True, "embedding_norm": True, "ffn": None}


def _falcon(raw: Raw) -> dict[str, Any]:
    is_new, linear = bool(raw.get("new_decoder_architecture")), bool(raw.get("bias"))
    kv_heads = raw.get("num_kv_heads") or raw.get("n_head_kv") or raw["num_attention_heads"]
    norms = raw.get("num_ln_in_parallel_attn") or (2 if is_new else 1)
    return {
        "gated": False,
        "tied": raw.get("tie_word_embeddings", True),
        "norms": norms if is_new or raw.get("parallel_attn", True) else 2,
        "kv_heads": kv_heads if is_new else (1 if raw.get("multi_query", True) else None),
        "biases": True if linear else ("norms",),
    }


def _phi(raw: Raw) -> dict[str, Any]:
    biases = ("qkv", "out", "mlp", "norms", "head")
    return {"gated": False, "tied": False, "norms": 1, "biases": biases}


def _phimoe(raw: Raw) -> dict[str, Any]:
    attention = ("qkv", "out") if raw.get("attention_bias") else ()
    head = ("head",) if raw.get("lm_head_bias") else ()
    return {"tied": False, "biases": (*attention, "norms", *head)}


def _qwen2(raw: Raw) -> dict[str, Any]:
    found = {"biases": ("qkv",), "tied": raw.get("tie_word_embeddings", False)}
    if raw.get("use_sliding_window") and raw.get("sliding_window"):
        full, layers = raw.get("max_window_layers", 28), raw["num_hidden_layers"]
        kinds = tuple(Layer("full" if place < full else "window") for place in range(layers))
        found |= {"pattern": kinds, "window": raw["sliding_window"]} if full < layers else {}
    return found


def _sparse(raw: Raw, found: dict[str, Any]) -> dict[str, Any]:
    """Add experts as Qwen has them: in each decoder_sparse_step-th layer, but mlp_only_layers."""
    step, without = raw.get("decoder_sparse_step", 1), raw.get("mlp_only_layers") or ()
    if step == 1 and not without and "pattern" not in found:
        return found
    kinds = _with_experts(
        found.get("pattern", ()),
        raw["num_hidden_layers"],
        lambda place: (place + 1) % step == 0 and place not in without,
    )
    return found | {"pattern": kinds}


def _qwen2_moe(raw: Raw) -> dict[str, Any]:
    shared = raw.get("shared_expert_intermediate_size", 0) // raw["moe_intermediate_size"]
    found = {"shared_experts": shared, "shared_gate": shared > 0}
    return _sparse(raw, _qwen2(raw) | found)


def _qwen3(raw: Raw) -> dict[str, Any]:
    return _llama(raw) | {"qk_norm": "head", "head_dim": raw.get("head_dim", 128)}


def _qwen3_moe(raw: Raw) -> dict[str, Any]:
    return _sparse(raw, _qwen3(raw))


def _gemma(raw: Raw) -> dict[str, Any]:
    return {"tied": True, "head_dim": raw.get("head_dim", 256)}


def _gemma2(raw: Raw) -> dict[str, Any]:
    return _gemma(raw) | {"norms": 4} | _windows(raw, 2, 4096)


def _gemma3(raw: Raw) -> dict[str, Any]:
    defaults = {
        "vocab": raw.get("vocab_size", 262_208),
        "heads": raw.get("num_attention_heads", 8),
        "kv_heads": raw.get("num_key_value_heads", 4),
        "context": raw.get("max_position_embeddings", 131_072),
    }
    every = raw.get("sliding_window_pattern", 6)
    found = defaults | _gemma(raw) | {"norms": 4, "qk_norm": "head"}
    return found | _windows(raw, every, 4096)


def _olmo(raw: Raw) -> dict[str, Any]:
    return _llama(raw) | {"norms": 0}


def _olmo2(raw: Raw) -> dict[str, Any]:
    return _llama(raw) | {"qk_norm": "all"} | _windows(raw, 0, 0)


def _smollm3(raw: Raw) -> dict[str, Any]:
    return _llama(raw) | {"tied": raw.get("tie_word_embeddings", True)}


def _gpt_oss(raw: Raw) -> dict[str, Any]:
    windows = _windows(raw, 2, 128)
    kinds = tuple(Layer(each.mixer, "experts") for each in windows.get("pattern", ()))
    return windows | {
        "pattern": kinds,
        "tied": False,
        "head_dim": raw.get("head_dim", 64),
        "sinks": True,
        "biases": ("qkv", "out", "mlp", "router"),
    }


def _deepseek(raw: Raw) -> dict[str, Any]:
    """Versions 2 and 3: latent attention; experts after the first layers."""
    found: dict[str, Any] = {
        "tied": raw.get("tie_word_embeddings", False),
        "kv_heads": None,
        "head_dim": raw.get("qk_nope_head_dim", 128),
        "biases": ("router",) if raw.get("topk_method") == "noaux_tc" else (),
    }
    if step := raw.get("moe_layer_freq", 1) - 1:
        first, layers = raw.get("first_k_dense_replace", 0), raw["num_hidden_layers"]
        found["dense_layers"] = 0
        found["pattern"] = _with_experts(
            (), layers, lambda place: place >= first and place % (step + 1) == 0
        )
    return found | _next_tokens(raw)


def _next_tokens(raw: Raw) -> dict[str, Any]:
    num = raw.get("num_nextn_predict_layers") or 0
    text = f"{num} module{'s' * (num > 1)} for multi-token prediction"
    return {"omitted": (text,)} if num else {}


def _glm(raw: Raw) -> dict[str, Any]:
    bias = ("qkv",) if raw.get("attention_bias", True) else ()
    return {"tied": raw.get("tie_word_embeddings", False), "biases": bias}


def _glm4(raw: Raw) -> dict[str, Any]:
    return _glm(raw) | {"norms": 4}


def _glm4_moe(raw: Raw) -> dict[str, Any]:
    found = _glm(raw)
    found["biases"] = (*found["biases"], "router")
    return found | {"qk_norm": "head" if raw.get("use_qk_norm") else ""} | _next_tokens(raw)


def _chatglm(raw: Raw) -> dict[str, Any]:
    bias = ("qkv",) if raw.get("add_qkv_bias", True) else ()
    kv_heads = raw.get("multi_query_group_num") if raw.get("multi_query_attention") else None
    return {"tied": False, "biases": bias, "kv_heads": kv_heads}


def _llama4(raw: Raw) -> dict[str, Any]:
    layers, step = raw["num_hidden_layers"], raw.get("interleave_moe_layer_step", 1)
    window, full = raw.get("attention_chunk_size", 8192), raw.get("no_rope_layers") or ()
    mixers = tuple(
        Layer("window" if (full[place] if full else (place + 1) % 4) else "full")
        for place in range(layers)
    )
    experts = raw.get("moe_layers") or range(step - 1, layers, step)
    return {
        "tied": raw.get("tie_word_embeddings", False),
        "head_dim": raw.get("head_dim", 128),
        "ffn": raw.get("intermediate_size_mlp", 16384),
        "expert_ffn": raw.get("intermediate_size", 8192),
        "shared_experts": 1,
        "window": window,
        "pattern": _with_experts(mixers, layers, lambda place: place in experts),
    }


def _mamba2(
    hidden: int, inner: int, heads: int, groups: int, state: int, conv: int, bias: bool
) -> dict[str, int]:
    """Return a Mamba-2 mixer: its parameters, and the numbers that it keeps of a request."""
    mixed = inner + 2 * groups * state
    into, out = hidden * (inner + mixed + heads), inner * hidden
    parameters = into + mixed * conv + mixed * bias + 3 * heads + inner + out
    return {"recurrent_parameters": parameters, "recurrent_state": mixed * conv + inner * state}


def _nemotron_h(raw: Raw) -> dict[str, Any]:
    """Each layer is a Mamba-2 mixer, an attention or an MLP alone, by a letter."""
    kinds = {"M": Layer("recurrent", "none"), "*": Layer("full", "none"), "-": Layer("none")}
    heads, dim = raw["mamba_num_heads"], raw["mamba_head_dim"]
    pattern = raw["hybrid_override_pattern"]
    if unknown := set(pattern) - set(kinds):
        raise UserError(f"hybrid_override_pattern has {min(unknown)!r}: no formula for such layers")
    return {
        "gated": False,
        "tied": raw.get("tie_word_embeddings", False),
        "pattern": tuple(kinds[each] for each in pattern),
        **_mamba2(
            raw["hidden_size"], heads * dim, heads, raw["n_groups"], raw["ssm_state_size"],
            raw.get("conv_kernel", 4), raw.get("use_conv_bias", True),
        ),
    }  # fmt: skip


def _granite_hybrid(raw: Raw) -> dict[str, Any]:
    inner = raw["mamba_expand"] * raw["hidden_size"]
    mixers = ["recurrent" if each == "mamba" else "full" for each in raw["layer_types"]]
    num, shared = raw.get("num_local_experts", 0), raw.get("shared_intermediate_size", 0)
    found = {
        "tied": raw.get("tie_word_embeddings", False),
        "pattern": tuple(Layer(each, "experts" if num else "dense") for each in mixers),
        **_mamba2(
            raw["hidden_size"], inner, raw["mamba_n_heads"], raw["mamba_n_groups"],
            raw["mamba_d_state"], raw["mamba_d_conv"], raw.get("mamba_conv_bias", True),
        ),
    }  # fmt: skip
    if not num:
        return found | {"ffn": shared or raw["intermediate_size"]}
    return found | {"shared_experts": shared // raw["intermediate_size"]}


def _jamba(raw: Raw) -> dict[str, Any]:
    """Mamba-1 mixers, an attention in each attn_layer_period, experts in each second layer."""
    D, state, conv = raw["hidden_size"], raw.get("mamba_d_state", 16), raw.get("mamba_d_conv", 4)
    inner, rank = raw.get("mamba_expand", 2) * D, raw.get("mamba_dt_rank", 256)
    steps = rank * inner + inner + inner * (rank + 2 * state)
    parameters = 3 * D * inner + inner * (conv + 1) + steps + inner * state + inner
    kinds = tuple(
        Layer(
            "full" if place % raw.get("attn_layer_period", 8) == raw.get("attn_layer_offset", 4)
            else "recurrent",
            "experts" if place % raw.get("expert_layer_period", 2)
            == raw.get("expert_layer_offset", 1) else "dense",
        )
        for place in range(raw["num_hidden_layers"])
    )  # fmt: skip
    return {
        "tied": raw.get("tie_word_embeddings", False),
        "pattern": kinds,
        "recurrent_parameters": parameters + rank + 2 * state,
        "recurrent_state": inner * (conv + state),
    }


def _qwen3_next(raw: Raw) -> dict[str, Any]:
    """Three layers of gated delta rule, then one of attention, whose output has a gate."""
    D, keys, values = raw["hidden_size"], raw["linear_num_key_heads"], raw["linear_num_value_heads"]
    K, V, conv = raw["linear_key_head_dim"], raw["linear_value_head_dim"], 4
    conv = raw.get("linear_conv_kernel_dim", conv)
    key, value = keys * K, values * V
    parameters = D * (2 * key + 2 * value + 2 * values) + (2 * key + value) * conv
    every = raw.get("full_attention_interval", 4)
    types = raw.get("layer_types") or ["full_attention"]
    mixers = tuple(Layer("recurrent" if each == "linear_attention" else "full") for each in types)
    if not raw.get("layer_types"):
        mixers = (Layer("recurrent"),) * (every - 1) + (Layer(),)
    shared = raw.get("shared_expert_intermediate_size", 0)
    has_experts = bool(raw.get("num_experts"))
    return {
        "tied": raw.get("tie_word_embeddings", False),
        "qk_norm": "head",
        "head_dim": raw.get("head_dim", 256),
        "shared_experts": shared // raw["moe_intermediate_size"] if has_experts else 0,
        "shared_gate": has_experts and shared > 0,
        "pattern": _with_experts(mixers, raw["num_hidden_layers"], lambda place: has_experts),
        "recurrent_parameters": parameters + 2 * values + V + value * D,
        "recurrent_state": (2 * key + value) * conv + values * K * V,
        "attention_gate": True,
    }


FAMILIES: Mapping[str, Family] = {
    "llama": _llama, "granite": _llama, "mistral": _mistral, "mistral3": _mistral,
    "ministral": _mistral, "mixtral": _mistral, "llama4": _llama4, "llama4_text": _llama4,
    "gpt2": _gpt2, "gptj": _gptj, "gpt_neox": _gpt_neox, "opt": _opt, "bloom": _bloom,
    "falcon": _falcon, "phi": _phi, "phi3": _mistral, "phimoe": _phimoe, "qwen2": _qwen2,
    "qwen2_moe": _qwen2_moe, "qwen3": _qwen3, "qwen3_moe": _qwen3_moe, "qwen3_next": _qwen3_next,
    "gemma": _gemma, "gemma2": _gemma2, "gemma3": _gemma3, "gemma3_text": _gemma3, "olmo": _olmo,
    "olmo2": _olmo2, "olmo3": _olmo2, "olmoe": _olmo2, "smollm3": _smollm3, "gpt_oss": _gpt_oss,
    "deepseek_v2": _deepseek, "deepseek_v3": _deepseek, "kimi_k2": _deepseek, "glm": _glm,
    "glm4": _glm4, "glm4_moe": _glm4_moe, "chatglm": _chatglm, "nemotron_h": _nemotron_h,
    "jamba": _jamba, "granitemoehybrid": _granite_hybrid,
}  # fmt: skip
"""By model_type."""
