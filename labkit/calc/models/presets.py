"""Published models. Every number is from the model's own configuration file or its paper.

Of sequences the paper's number counts, where there is one: files hold what a model can be served
with, after stages that make its context longer.

Sources: Radford et al. 2019 (GPT-2); Brown et al., arXiv:2005.14165, table 2.1 (GPT-3); Touvron et
al., arXiv:2302.13971 and arXiv:2307.09288 (LLaMA, Llama 2); Grattafiori et al., arXiv:2407.21783
(Llama 3); Qwen2.5, arXiv:2412.15115; Jiang et al., arXiv:2401.04088 (Mixtral); DeepSeek-V3,
arXiv:2412.19437; Narayanan et al., arXiv:2104.04473, table 1; Korthikanti et al.,
arXiv:2205.05198, table 3.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType

from labkit.calc.models.model_config import ModelConfig

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
        # Their files say 131,072; of their own pre-training no paper tells, so the family's.
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
    """A configuration, given itself or by its name in MODELS. ValueError names those there are."""
    if isinstance(config, ModelConfig):
        return config
    if isinstance(config, str) and config in MODELS:
        return MODELS[config]
    raise ValueError(f"{config!r} is no ModelConfig and none of {', '.join(MODELS)}")
