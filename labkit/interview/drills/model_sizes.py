"""Drills on how many parameters a model has, and how many a token goes through."""

from dataclasses import replace

from labkit import calc
from labkit.calc.models import attention_parameters, layer_parameters, mlp_parameters
from labkit.interview.drills.drill import drill
from labkit.interview.drills.question import Solution, Trap

_DENSE = (
    *("llama1-7b", "llama1-13b", "llama2-70b", "llama3-8b", "llama3-70b", "llama3-405b"),
    *("llama3.2-3b", "qwen2.5-7b", "mixtral-8x7b"),
)


def _gated(
    layers: int, hidden: int, heads: int, kv_heads: int, ffn: int, vocab: int, context: int = 4096
) -> calc.ModelConfig:
    """A Llama of these sizes: gated, its head not tied, no biases, rotary positions."""
    return calc.ModelConfig(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        ffn=ffn,
        vocab=vocab,
        context=context,
        gated=True,
        tied=False,
        biases=False,
        learned_positions=False,
    )


def _sizes(name: str) -> tuple[int, int, int, int, int]:
    each = calc.MODELS[name]
    return each.hidden, each.heads, each.num_kv_heads, each.mlp_features, each.vocab


@drill(
    "me-1",
    "Parameters from a configuration",
    difficulty=2,
    notebook="05_where_memory_goes",
    prompt="A decoder has {layers} layers, {hidden} hidden features, {heads} heads and {kv_heads} "
    "key-value heads, a gated MLP (SwiGLU) of {ffn} features, a vocabulary of {vocab} with "
    "embedding and head not tied, no biases, rotary positions. How many parameters is that?",
    draws={
        "hidden heads kv_heads ffn vocab": [_sizes(name) for name in _DENSE],
        "layers": (24, 28, 32, 36, 40, 48, 60, 80, 96),
    },
    unit="billion",
    digits=3,
    between=("3 billion", "300 billion"),
)
def dense_parameters(
    layers: int, hidden: int, heads: int, kv_heads: int, ffn: int, vocab: int
) -> Solution:
    """layers x (attention + MLP) + embedding + head."""
    config = _gated(layers, hidden, heads, kv_heads, ffn, vocab)
    num = calc.num_parameters(config)
    return Solution(
        num,
        [
            f"Attention: query and output {hidden:,} x {hidden:,} each, key and value {hidden:,} x "
            f"{hidden // heads * kv_heads:,} each: "
            f"{calc.count_text(attention_parameters(config))} a layer.",
            f"MLP: 3 x {hidden:,} x {ffn:,} = {calc.count_text(mlp_parameters(config, ffn))}.",
            f"{layers} layers of {calc.count_text(layer_parameters(config))}.",
            f"Embedding and head: {vocab:,} x {hidden:,} each, "
            f"{calc.count_text(float(num['embedding']) + float(num['head']))}.",
            f"Together {num}.",
        ],
        [
            Trap(
                "an MLP of two matrices",
                calc.num_parameters(replace(config, gated=False)),
                "A gated MLP has three: gate, up and down.",
            ),
            Trap(
                "12 L D^2",
                12 * layers * hidden**2,
                "That is a GPT-2 layer: an MLP of 4 D, two matrices, as many key-value heads as "
                "heads, and no embeddings.",
            ),
            Trap(
                "no embeddings",
                layers * layer_parameters(config),
                "Embedding and head have a row for each token of the vocabulary.",
            ),
            Trap(
                "the head tied",
                calc.num_parameters(replace(config, tied=True)),
                "Not tied means two tables of that size.",
            ),
            Trap(
                "as many key-value heads as heads",
                calc.num_parameters(replace(config, kv_heads=None)),
                "Grouped-query attention has narrower key and value matrices.",
            ),
        ],
    )


_EXPERT_DRAWS = {
    "hidden heads kv_heads ffn vocab": [
        _sizes(name) for name in ("mixtral-8x7b", "llama2-7b", "llama2-70b")
    ],
    "layers": (24, 32, 40, 56),
    "experts": (8, 16, 32),
    "k": (2, 4),
}
_EXPERT_PROMPT = (
    "A mixture of experts has {layers} layers, {hidden} hidden features, {heads} heads and "
    "{kv_heads} key-value heads, in each layer {experts} experts, gated MLPs (SwiGLU) of {ffn} "
    "features, of which a token takes {k}, a vocabulary of {vocab}, not tied, no biases. "
)


@drill(
    "mo-3",
    "Active parameters of a mixture of experts",
    difficulty=2,
    notebook="10_mixture_of_experts",
    prompt=_EXPERT_PROMPT + "How many parameters does a token go through?",
    draws=_EXPERT_DRAWS,
    unit="billion",
    digits=3,
    between=("3 billion", "400 billion"),
)
def active_parameters(
    layers: int, hidden: int, heads: int, kv_heads: int, ffn: int, vocab: int, experts: int, k: int
) -> Solution:
    """Attention and embeddings whole, k of E experts."""
    dense = _gated(layers, hidden, heads, kv_heads, ffn, vocab)
    config = replace(dense, num_experts=experts, top_k=k)
    active, whole = calc.active_parameters(config), calc.num_parameters(config)
    return Solution(
        active,
        [
            f"An expert has 3 x {hidden:,} x {ffn:,} = "
            f"{calc.count_text(mlp_parameters(config, ffn))} parameters.",
            f"{k} of them in each of {layers} layers: {active['experts']}.",
            f"What every token goes through: "
            f"{calc.count_text(float(active) - float(active['experts']))}.",
            f"Together {active}, of {whole} in all.",
        ],
        [
            Trap("all experts", whole, "A token takes only some of the experts."),
            Trap(
                "everything divided by the experts",
                float(whole) * k / experts,
                "Attention, norms and embeddings are whole for every token; only the experts are "
                "chosen among.",
            ),
            Trap(
                "one expert",
                calc.num_parameters(dense),
                "The router sends each token to more than one expert.",
            ),
            Trap(
                "experts alone",
                active["experts"],
                "A token goes through attention and embeddings as well.",
            ),
        ],
    )


@drill(
    "mo-3",
    "All parameters of a mixture of experts",
    difficulty=2,
    notebook="10_mixture_of_experts",
    prompt=_EXPERT_PROMPT + "How many parameters does it have in all?",
    draws=_EXPERT_DRAWS,
    unit="billion",
    digits=3,
    between=("10 billion", "2000 billion"),
)
def expert_parameters(
    layers: int, hidden: int, heads: int, kv_heads: int, ffn: int, vocab: int, experts: int, k: int
) -> Solution:
    """E experts in each layer, all the rest once."""
    dense = _gated(layers, hidden, heads, kv_heads, ffn, vocab)
    config = replace(dense, num_experts=experts, top_k=k)
    whole = calc.num_parameters(config)
    return Solution(
        whole,
        [
            f"An expert has 3 x {hidden:,} x {ffn:,} = "
            f"{calc.count_text(mlp_parameters(config, ffn))} parameters.",
            f"{layers} layers x {experts} experts: {whole['experts']}.",
            f"Attention: {whole['attention']}; embedding and head: {whole['embedding']} each.",
            f"Together {whole}.",
        ],
        [
            Trap(
                "times the number of experts",
                experts * float(calc.num_parameters(dense)),
                "Only the MLPs come several times; attention and embeddings are there once.",
            ),
            Trap(
                "active parameters",
                calc.active_parameters(config),
                "That is what a token goes through; all experts have to be stored.",
            ),
            Trap(
                "experts of two matrices",
                calc.num_parameters(replace(config, gated=False)),
                "A gated expert has three matrices: gate, up and down.",
            ),
        ],
    )
