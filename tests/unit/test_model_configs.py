"""Models from their config.json: parameters as published, kinds of layers, and what is refused."""

import json

import pytest

from labkit import calc
from labkit.arguments import UserError
from labkit.calc.hf_config import FAMILIES
from labkit.calc.models import Layer


def keys(model_type, layers, hidden, heads, vocab, **more):
    return {
        "model_type": model_type,
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "vocab_size": vocab,
        **more,
    }


def llama(model_type, layers, hidden, heads, kv_heads, ffn, vocab, **more):
    sizes = {"num_key_value_heads": kv_heads, "intermediate_size": ffn}
    return keys(model_type, layers, hidden, heads, vocab, **sizes, **more)


DEEPSEEK = {
    "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "kv_lora_rank": 512,
}  # fmt: skip
# (the keys that its config.json has, all parameters of the published weights)
PUBLISHED = {
    "Llama-3.1-8B": (llama("llama", 32, 4096, 32, 8, 14336, 128256), 8_030_261_248),
    "Llama-3.1-70B": (llama("llama", 80, 8192, 64, 8, 28672, 128256), 70_553_706_496),
    "Llama-3.1-405B": (llama("llama", 126, 16384, 128, 8, 53248, 128256), 405_853_388_800),
    "Llama-3.2-1B": (
        llama("llama", 16, 2048, 32, 8, 8192, 128256, tie_word_embeddings=True),
        1_235_814_400,
    ),
    "TinyLlama-1.1B": (llama("llama", 22, 2048, 32, 4, 5632, 32000), 1_100_048_384),
    "SmolLM2-1.7B": (
        llama("llama", 24, 2048, 32, 32, 8192, 49152, tie_word_embeddings=True),
        1_711_376_384,
    ),
    "SmolLM3-3B": (llama("smollm3", 36, 2048, 16, 4, 11008, 128256), 3_075_098_624),
    "Mistral-7B": (
        llama("mistral", 32, 4096, 32, 8, 14336, 32000, sliding_window=4096),
        7_241_732_096,
    ),
    "Mixtral-8x7B": (
        llama("mixtral", 32, 4096, 32, 8, 14336, 32000, num_local_experts=8, num_experts_per_tok=2),
        46_702_792_704,
    ),
    "Mixtral-8x22B": (
        llama("mixtral", 56, 6144, 48, 8, 16384, 32768, num_local_experts=8, num_experts_per_tok=2),
        140_630_071_296,
    ),
    "Qwen2.5-0.5B": (
        llama("qwen2", 24, 896, 14, 2, 4864, 151936, tie_word_embeddings=True),
        494_032_768,
    ),
    "Qwen2.5-7B": (llama("qwen2", 28, 3584, 28, 4, 18944, 152064), 7_615_616_512),
    "Qwen2.5-72B": (llama("qwen2", 80, 8192, 64, 8, 29568, 152064), 72_706_203_648),
    "Qwen1.5-MoE-A2.7B": (
        llama(
            "qwen2_moe", 24, 2048, 16, 16, 5632, 151936, num_experts=60, num_experts_per_tok=4,
            moe_intermediate_size=1408, shared_expert_intermediate_size=5632,
        ),
        14_315_784_192,
    ),
    "Qwen3-0.6B": (
        llama("qwen3", 28, 1024, 16, 8, 3072, 151936, head_dim=128, tie_word_embeddings=True),
        596_049_920,
    ),
    "Qwen3-8B": (llama("qwen3", 36, 4096, 32, 8, 12288, 151936, head_dim=128), 8_190_735_360),
    "Qwen3-32B": (llama("qwen3", 64, 5120, 64, 8, 25600, 151936, head_dim=128), 32_762_123_264),
    "Qwen3-30B-A3B": (
        llama(
            "qwen3_moe", 48, 2048, 32, 4, 6144, 151936, head_dim=128, num_experts=128,
            num_experts_per_tok=8, moe_intermediate_size=768,
        ),
        30_532_122_624,
    ),
    "Qwen3-235B-A22B": (
        llama(
            "qwen3_moe", 94, 4096, 64, 4, 12288, 151936, head_dim=128, num_experts=128,
            num_experts_per_tok=8, moe_intermediate_size=1536,
        ),
        235_093_634_560,
    ),
    "gemma-2-2b": (llama("gemma2", 26, 2304, 8, 4, 9216, 256000, head_dim=256), 2_614_341_888),
    "gemma-2-9b": (llama("gemma2", 42, 3584, 16, 8, 14336, 256000, head_dim=256), 9_241_705_984),
    "gemma-2-27b": (llama("gemma2", 46, 4608, 32, 16, 36864, 256000, head_dim=128), 27_227_128_320),
    "gemma-3-1b": (
        llama("gemma3_text", 26, 1152, 4, 1, 6912, 262144, head_dim=256, sliding_window=512),
        999_885_952,
    ),
    "phi-2": (keys("phi", 32, 2560, 32, 51200, intermediate_size=10240), 2_779_683_840),
    "Phi-3-mini": (
        llama("phi3", 32, 3072, 32, 32, 8192, 32064, sliding_window=2047),
        3_821_079_552,
    ),
    "phi-4": (llama("phi3", 40, 5120, 40, 10, 17920, 100352), 14_659_507_200),
    "gpt2": (
        {"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12, "vocab_size": 50257,
         "n_positions": 1024},
        124_439_808,
    ),
    "gpt-j-6b": (
        {"model_type": "gptj", "n_layer": 28, "n_embd": 4096, "n_head": 16, "vocab_size": 50400},
        6_050_882_784,
    ),
    "pythia-6.9b": (
        keys("gpt_neox", 32, 4096, 32, 50432, intermediate_size=16384),
        6_857_302_016,
    ),
    "opt-6.7b": (
        keys("opt", 32, 4096, 32, 50272, ffn_dim=16384, max_position_embeddings=2048),
        6_658_473_984,
    ),
    "bloom": (
        {"model_type": "bloom", "n_layer": 70, "hidden_size": 14336, "n_head": 112,
         "vocab_size": 250880},
        176_247_271_424,
    ),
    "falcon-7b": (keys("falcon", 32, 4544, 71, 65024), 6_921_720_704),
    "OLMo-7B": (llama("olmo", 32, 4096, 32, 32, 11008, 50304), 6_888_095_744),
    "OLMo-2-7B": (llama("olmo2", 32, 4096, 32, 32, 11008, 100352), 7_298_617_344),
    "OLMoE-1B-7B": (
        llama("olmoe", 16, 2048, 16, 16, 1024, 50304, num_experts=64, num_experts_per_tok=8),
        6_919_161_856,
    ),
    "gpt-oss-20b": (
        llama(
            "gpt_oss", 24, 2880, 64, 8, 2880, 201088, head_dim=64, num_local_experts=32,
            num_experts_per_tok=4, sliding_window=128,
        ),
        20_914_757_184,
    ),
    "gpt-oss-120b": (
        llama(
            "gpt_oss", 36, 2880, 64, 8, 2880, 201088, head_dim=64, num_local_experts=128,
            num_experts_per_tok=4, sliding_window=128,
        ),
        116_829_156_672,
    ),
    "DeepSeek-V2-Lite": (
        llama(
            "deepseek_v2", 27, 2048, 16, 16, 10944, 102400, **DEEPSEEK, n_routed_experts=64,
            num_experts_per_tok=6, n_shared_experts=2, first_k_dense_replace=1,
            moe_intermediate_size=1408, q_lora_rank=None,
        ),
        15_706_484_224,
    ),
    "DeepSeek-V2": (
        llama(
            "deepseek_v2", 60, 5120, 128, 128, 12288, 102400, **DEEPSEEK, n_routed_experts=160,
            num_experts_per_tok=6, n_shared_experts=2, first_k_dense_replace=1,
            moe_intermediate_size=1536, q_lora_rank=1536,
        ),
        235_741_434_880,
    ),
    "DeepSeek-V3": (
        llama(
            "deepseek_v3", 61, 7168, 128, 128, 18432, 129280, **DEEPSEEK, n_routed_experts=256,
            num_experts_per_tok=8, n_shared_experts=1, first_k_dense_replace=3,
            moe_intermediate_size=2048, q_lora_rank=1536, topk_method="noaux_tc",
            num_nextn_predict_layers=1,
        ),
        671_026_419_200,
    ),
    "Kimi-K2": (
        llama(
            "kimi_k2", 61, 7168, 64, 64, 18432, 163840, **DEEPSEEK, n_routed_experts=384,
            num_experts_per_tok=8, n_shared_experts=1, first_k_dense_replace=1,
            moe_intermediate_size=2048, q_lora_rank=1536, topk_method="noaux_tc",
        ),
        1_026_408_232_448,
    ),
    "gemma-7b": (llama("gemma", 28, 3072, 16, 16, 24576, 256000, head_dim=256), 8_537_680_896),
    "falcon-40b": (
        keys("falcon", 60, 8192, 128, 65024, num_kv_heads=8, new_decoder_architecture=True),
        41_303_293_952,
    ),
    "Phi-3.5-MoE": (
        llama(
            "phimoe", 32, 4096, 32, 8, 6400, 32064, num_local_experts=16, num_experts_per_tok=2,
            attention_bias=True, lm_head_bias=True,
        ),
        41_873_153_344,
    ),
    "glm-4-9b": (
        {"model_type": "chatglm", "num_layers": 40, "hidden_size": 4096, "num_attention_heads": 32,
         "multi_query_attention": True, "multi_query_group_num": 2, "ffn_hidden_size": 13696,
         "kv_channels": 128, "padded_vocab_size": 151552, "add_qkv_bias": True},
        9_399_951_360,
    ),
    "GLM-4-9B-0414": (
        llama("glm4", 40, 4096, 32, 2, 13696, 151552, head_dim=128, attention_bias=True),
        9_400_279_040,
    ),
    "Qwen3-Next-80B-A3B": (
        llama(
            "qwen3_next", 48, 2048, 16, 2, 5120, 151936, head_dim=256, num_experts=512,
            num_experts_per_tok=10, moe_intermediate_size=512, shared_expert_intermediate_size=512,
            linear_num_key_heads=16, linear_num_value_heads=32, linear_key_head_dim=128,
            linear_value_head_dim=128,
        ),
        79_674_391_296,
    ),
    "Jamba-v0.1": (
        llama(
            "jamba", 32, 4096, 32, 8, 14336, 65536, num_experts=16, num_experts_per_tok=2,
            mamba_d_state=16, mamba_d_conv=4, mamba_expand=2, mamba_dt_rank=256,
        ),
        51_570_323_328,
    ),
    "granite-4.0-h-tiny": (
        llama(
            "granitemoehybrid", 40, 1536, 12, 4, 512, 100352, shared_intermediate_size=1024,
            num_local_experts=64, num_experts_per_tok=6, tie_word_embeddings=True, mamba_expand=2,
            mamba_n_heads=48, mamba_n_groups=1, mamba_d_state=128, mamba_d_conv=4,
            layer_types=(["mamba"] * 5 + ["attention"] + ["mamba"] * 4) * 4,
        ),
        6_939_037_248,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_those_of_the_published_weights(name):
    config, published = PUBLISHED[name]
    assert int(calc.num_parameters(calc.model_from_config(config))) == published


def model(name, **more):
    return calc.model_from_config(PUBLISHED[name][0] | more)


def test_active_parameters_are_those_of_the_experts_a_token_goes_through():
    assert float(calc.active_parameters(model("Qwen3-30B-A3B"))) == pytest.approx(3.35e9, rel=0.01)
    assert float(calc.active_parameters(model("Qwen3-235B-A22B"))) == pytest.approx(
        22.2e9, rel=0.01
    )
    assert float(calc.active_parameters(model("Kimi-K2"))) == pytest.approx(32.9e9, rel=0.01)


def mixers(config):
    return "".join(kind.mixer[0] for kind in config.kinds)


def test_layers_are_windowed_as_their_family_has_it():
    assert mixers(model("Mistral-7B")) == "w" * 32
    assert mixers(model("gemma-2-2b")) == "wf" * 13
    assert mixers(model("gemma-3-1b")) == "wwwwwf" * 4 + "ww"
    assert mixers(model("gpt-oss-20b")) == "wf" * 12
    assert mixers(model("Qwen2.5-7B", sliding_window=131_072, use_sliding_window=False)) == "f" * 28
    windows = {"sliding_window": 4096, "use_sliding_window": True, "max_window_layers": 20}
    assert mixers(model("Qwen2.5-7B", **windows)) == "f" * 20 + "w" * 8
    types = ["sliding_attention"] * 3 + ["full_attention"]
    assert mixers(model("OLMo-2-7B", sliding_window=4096, layer_types=types * 8)) == "wwwf" * 8


def test_experts_stand_in_the_layers_that_the_file_names():
    def with_experts(**more):
        return [kind.mlp == "experts" for kind in model("Qwen3-30B-A3B", **more).kinds]

    assert all(with_experts())
    assert with_experts(decoder_sparse_step=2) == [False, True] * 24
    assert with_experts(mlp_only_layers=[0, 1]) == [False] * 2 + [True] * 46
    assert model("DeepSeek-V3").expert_layers == 58


MAVERICK = llama(
    "llama4_text", 48, 5120, 40, 8, 8192, 202048, intermediate_size_mlp=16384,
    num_local_experts=128, num_experts_per_tok=1, interleave_moe_layer_step=2,
)  # fmt: skip


def test_llama_4_alternates_chunks_and_experts():
    config = calc.model_from_config({"model_type": "llama4", "text_config": MAVERICK})
    assert config.kinds[:4] == (
        Layer("window", "dense"),
        Layer("window", "experts"),
        Layer("window", "dense"),
        Layer("full", "experts"),
    )
    assert float(calc.active_parameters(config)) == pytest.approx(17e9, rel=0.02)
    assert float(calc.num_parameters(config)) == pytest.approx(400e9, rel=0.005)
    assert "without what sees images" in calc.num_parameters(config).convention


NEMOTRON = keys(
    "nemotron_h", 52, 4096, 32, 131072, num_key_value_heads=8, intermediate_size=21504,
    head_dim=128, hybrid_override_pattern="M-M-M-M*" + "-M-M-M-M-M*" * 3 + "-M-M-M-M-M-",
    mamba_num_heads=128, mamba_head_dim=64, n_groups=8, ssm_state_size=128, conv_kernel=4,
)  # fmt: skip


def test_a_hybrid_keeps_keys_of_few_layers():
    config = calc.model_from_config(NEMOTRON)
    assert float(calc.num_parameters(config)) == pytest.approx(8.1e9, rel=0.01)
    with pytest.raises(ValueError, match="without attention"):
        calc.activation_bytes(config, 1)
    cache = calc.cache_bytes(config, 8192)
    assert float(cache["full layers"]) == 4 * 8192 * 2 * 8 * 128 * 2
    assert calc.cache_bytes(config, 16)["recurrent layers"] == cache["recurrent layers"]


def test_the_parts_that_no_count_has_are_named():
    assert "multi-token prediction" in calc.num_parameters(model("DeepSeek-V3")).convention
    assert model("Llama-3.1-8B").omitted == ()


def test_a_config_is_read_from_its_file_and_from_its_folder(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(PUBLISHED["Qwen3-8B"][0]))
    assert (
        calc.model_from_config(path) == calc.model_from_config(str(tmp_path)) == model("Qwen3-8B")
    )


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ({"hidden_size": 64}, "model_type=None"),
        ({"model_type": "rwkv"}, "rwkv"),
        ({"model_type": "llama", "hidden_size": 64}, "num_hidden_layers"),
        (PUBLISHED["phi-4"][0] | {"hidden_size": "5120"}, "5120"),
        (PUBLISHED["phi-4"][0] | {"num_key_value_heads": 7}, "kv_heads=7"),
        (
            {"model_type": "llama", "num_hidden_layer": 2, "hidden_szie": 64},
            "'num_hidden_layer': did you mean 'num_hidden_layers'.*'hidden_szie': did you mean",
        ),
        # as many keys and values as queries without it
        (llama("llama", 2, 64, 8, None, 256, 1000, num_key_value_head=2), "num_key_value_heads"),
        ("nowhere/config.json", "nowhere"),
    ],
)
def test_what_is_no_configuration_is_refused_by_name(source, named):
    with pytest.raises(UserError, match=named):
        calc.model_from_config(source)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_with_nothing_but_its_name_lacks_a_key(family):
    with pytest.raises(UserError, match="lacks"):
        calc.model_from_config({"model_type": family})


def test_a_name_that_is_nearly_right_is_answered_with_the_right_one():
    for written in ("Llama-3-8B", "LLAMA3-8B", "meta-llama/Llama-3-8B"):
        with pytest.raises(ValueError, match="did you mean llama3-8b"):
            calc.num_parameters(written)
    with pytest.raises(ValueError, match="did you mean gpt2"):
        calc.num_parameters("an-organisation-with-a-long-name/GPT2_XL")
    with pytest.raises(ValueError, match="did you mean h100"):
        calc.pass_time("gpt2", "H100", 1)


def test_a_causal_window_counts_the_pairs_that_it_leaves():
    sizes = {"layers": 2, "hidden": 8, "heads": 2, "vocab": 10, "context": 12}
    config = calc.ModelConfig(**sizes, pattern=(Layer("window"), Layer()), window=5)
    # On the mask's edge, where the first token still is in sight, half a pair counts.
    pairs = sum(min(place, 5) - 0.5 * (place <= 5) for place in range(1, 13))
    pairs += sum(place - 0.5 for place in range(1, 13))
    counted = calc.flops_per_token(config, causal=True, sequence=12)["attention"]
    assert 12 * float(counted) == pytest.approx(3 * 4 * 8 * pairs)


def test_gemma_3_trains_with_the_operations_that_verl_counts():
    # tests/utils/test_flops_counter.py, gemma3_text: it takes half of a window's tokens where we
    # count the pairs of the band, 0.96% more in all
    sizes = llama("gemma3_text", 48, 3840, 16, 8, 15360, 262208, sliding_window=1024)
    config = calc.model_from_config(sizes)
    counted = calc.flops_per_token(config, causal=True, sequence=4096)
    embedding = 6 * config.vocab * config.hidden  # counted twice there, as table and as head
    verl = 963_929_979_224_064 / (3 * 4096)
    assert float(counted) + embedding == pytest.approx(1.0096 * verl, rel=0.001)
    attention = 6 * 16 * 256 * (8 * 4096 + 40 * 1024)
    assert float(counted["parameters"]) + embedding + attention == pytest.approx(verl, rel=0.001)


# Caches


def test_windows_bound_the_cache():
    # alvarobartt/hf-mem, pull request 70: 6.09 GiB with windows, 12.00 GiB without
    oss = model("gpt-oss-20b")
    assert calc.cache_bytes(oss, 8192, 32) == 6_543_114_240
    assert 32 * 8192 * float(calc.kv_cache_bytes_per_token(oss)) == 12 * 2**30
    assert calc.cache_bytes(model("Mistral-7B"), 32_768) == 2**29
    assert calc.cache_bytes(model("Mistral-7B"), 100) == calc.cache_bytes("llama3-8b", 100)


def test_ranks_share_heads_and_copy_them_where_there_are_too_few():
    whole = float(calc.cache_bytes("llama3-8b", 100))
    assert [float(calc.cache_bytes("llama3-8b", 100, tp=tp)) for tp in (2, 8, 16)] == [
        whole / 2, whole / 8, whole / 8,
    ]  # fmt: skip
    latent = calc.cache_bytes("deepseek-v3", 100)
    assert calc.cache_bytes("deepseek-v3", 100, tp=8) == latent == 100 * 70_272


def test_a_request_holds_whole_pages():
    assert calc.cache_bytes("llama3-8b", 17, page_size=16) == 32 * 131_072


# The planner


@pytest.mark.parametrize(
    ("name", "gpus"),
    [
        *(("gemma-3-1b", 8), ("gemma-2-9b", 16), ("gpt-oss-20b", 16), ("Qwen3-30B-A3B", 16)),
        *(("falcon-7b", 16), ("gpt-j-6b", 16), ("DeepSeek-V2-Lite", 16), ("Llama-4", 128)),
    ],
)
def test_a_model_is_planned_whatever_its_layers(name, gpus):
    config = calc.model_from_config(MAVERICK) if name == "Llama-4" else model(name)
    length = min(4096, config.context)
    job = calc.plan.Job(config, "megatron_bf16", calc.cluster("h100", gpus), gpus, sequence=length)
    best = calc.plan.plan(job, 1).best
    assert 0 < best.memory <= job.room_bytes and 0.05 < best.mfu < 0.7


def test_a_hybrid_is_refused_by_the_planner():
    hybrid = calc.model_from_config(NEMOTRON)
    with pytest.raises(ValueError, match="'recurrent' layers: the planner"):
        calc.plan.Job(hybrid, "amp", "h100", 8)
