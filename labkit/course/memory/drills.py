"""Drills on memory: parameters, model states by recipe, activations."""

from dataclasses import replace

from labkit import calc
from labkit.calc.parameters import attention_parameters, layer_parameters, mlp_parameters
from labkit.interview.drills.drill import BATCHES, MODEL_SIZES, Shown, amounts, drill
from labkit.interview.drills.question import Solution, Trap

MIXED = "bf16 parameters and gradients, float32 master copy, Adam's two moments in float32"
_DENSE = (
    *("llama1-7b", "llama1-13b", "llama2-70b", "llama3-8b", "llama3-70b", "llama3-405b"),
    *("llama3.2-3b", "qwen2.5-7b", "mixtral-8x7b"),
)
_MEMORY = "08_where_memory_goes"
_RECIPES = (
    Shown(
        "zero_paper",
        "bf16 parameters and gradients, a float32 master copy, and Adam's two moments in float32",
    ),
    Shown(
        "megatron_bf16",
        "bf16 parameters, float32 gradients, a float32 master copy, and Adam's two moments in "
        "float32",
    ),
)
_OTHER = {"zero_paper": "megatron_bf16", "megatron_bf16": "zero_paper"}
_SIZES = [
    (each.hidden, each.heads)
    for each in (calc.MODELS[name] for name in ("gpt2-xl", "korthikanti-22b", "gpt3-175b"))
] + [(4096, 32), (5120, 40), (8192, 64)]
LAYER_DRAWS = {
    "hidden heads": [(h, a) for h, a in _SIZES if a % 8 == 0],
    "seq": (1024, 2048, 4096),
    "micro": BATCHES,
    "tp": (2, 4, 8),
}
LAYER_PROMPT = (
    "A layer of {hidden} hidden features and {heads} heads, tensor parallelism over {tp}, {micro} "
    "of {seq} tokens in a microbatch. "
    "Counted as in Korthikanti et al.: 2-byte numbers, 1-byte dropout masks, attention scores "
    "written down, an MLP of 4 times the hidden size and two matrices. "
)


def states_of(params: float, recipe: calc.Recipe | str, zero: int = 0, dp: int = 1) -> float:
    """Bytes of one rank."""
    return float(calc.model_state_bytes(params, recipe, zero, dp))


def without_master(recipe: str) -> calc.Recipe:
    """Return the same without its float32 copy of the parameters."""
    return replace(calc.RECIPES[recipe], master_bytes=0)


def as_gib(nbytes: float) -> float:
    """Return the bytes that a number of GiB means if it is called GB."""
    return nbytes / calc.units.GiB * calc.units.GB


def gated(
    layers: int, hidden: int, heads: int, kv_heads: int, ffn: int, vocab: int, context: int = 4096
) -> calc.ModelConfig:
    """Return a Llama of these sizes: gated, its head not tied, no biases, rotary positions."""
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


def sizes_of(name: str) -> tuple[int, int, int, int, int]:
    """Return hidden, heads, heads of keys, features of the MLP and vocabulary of a model."""
    each = calc.MODELS[name]
    return each.hidden, each.heads, each.num_kv_heads, each.mlp_features, each.vocab


@drill(
    "me-1",
    "Parameters from a configuration",
    difficulty=2,
    notebook="08_where_memory_goes",
    prompt="A decoder has {layers} layers, {hidden} hidden features, {heads} heads and {kv_heads} "
    "key-value heads, a gated MLP (SwiGLU) of {ffn} features, a vocabulary of {vocab} with "
    "embedding and head not tied, no biases, rotary positions. How many parameters is that?",
    draws={
        "hidden heads kv_heads ffn vocab": [sizes_of(name) for name in _DENSE],
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
    config = gated(layers, hidden, heads, kv_heads, ffn, vocab)
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


@drill(
    "me-1",
    "Model states by recipe",
    difficulty=1,
    notebook=_MEMORY,
    prompt="{params} parameters train on one GPU, nothing sharded: {recipe}. How many bytes are "
    "the model states, without activations?",
    draws={"params": MODEL_SIZES, "recipe": _RECIPES},
    unit="GB",
    digits=3,
    between=("10 GB", "5 TB"),
)
def training_states(params: float, recipe: str) -> Solution:
    """16 or 18 bytes a parameter."""
    each = calc.RECIPES[recipe]
    states = calc.model_state_bytes(params, recipe)
    return Solution(
        states,
        [
            *(
                f"{name}: {float(part) / params:g} B a parameter, {part}."
                for name, part in states.parts.items()
            ),
            f"{each.bytes_per_parameter:g} B x {params / 1e9:g}B = {states}.",
        ],
        [
            Trap(
                "forgot the float32 master copy",
                states_of(params, without_master(recipe)),
                "The optimizer updates a float32 copy, 4 bytes a parameter, besides the bf16 one.",
            ),
            Trap(
                "the other precision of gradients",
                states_of(params, _OTHER[recipe]),
                "Gradients have 2 bytes in bf16 and 4 in float32: 16 or 18 bytes a parameter.",
            ),
            Trap(
                "parameters alone",
                states["parameters"],
                "Gradients, master copy and moments are several times the parameters.",
            ),
            Trap(
                "GiB for GB",
                as_gib(float(states)),
                "A GB is 10^9 bytes; divided by 2^30 it is GiB.",
            ),
        ],
    )


@drill(
    "me-1",
    "The largest model that fits",
    difficulty=2,
    notebook=_MEMORY,
    prompt="One GPU has {room} left for model states, nothing is sharded: {recipe}. How many "
    "parameters can it train?",
    draws={
        "room": amounts(
            *(f"{room} GB" for room in (18, 20, 22, 24, 28, 30, 36, 40, 44, 50, 54, 60, 64, 70)),
            *(f"{room} GB" for room in (72, 76, 90, 110, 120, 130, 150, 160)),
        ),
        "recipe": _RECIPES,
    },
    unit="billion",
    digits=3,
    between=("1 billion", "12 billion"),
)
def largest_model(room: float, recipe: str) -> Solution:
    """Return the room over the bytes of a parameter."""
    each = calc.RECIPES[recipe]
    num = room / each.bytes_per_parameter
    return Solution(
        num,
        [
            f"A parameter takes {each.bytes_per_parameter:g} B: {each.parameter_bytes:g} itself, "
            f"{each.gradient_bytes:g} its gradient, {each.optimizer_bytes:g} the optimizer's.",
            f"{calc.bytes_text(room)} / {each.bytes_per_parameter:g} B = {calc.count_text(num)}.",
            f"Back again: {calc.model_state_bytes(num, recipe)}.",
        ],
        [
            Trap(
                "forgot the float32 master copy",
                room / without_master(recipe).bytes_per_parameter,
                "The optimizer keeps a float32 copy, 4 bytes a parameter.",
            ),
            Trap(
                "parameters alone",
                room / each.parameter_bytes,
                "That is what one could load, not train.",
            ),
            Trap(
                "the other precision of gradients",
                room / calc.RECIPES[_OTHER[recipe]].bytes_per_parameter,
                "Gradients have 2 bytes in bf16 and 4 in float32.",
            ),
            Trap(
                "GiB for GB",
                room * calc.units.GiB / calc.units.GB / each.bytes_per_parameter,
                "The room is given in GB, 10^9 bytes.",
            ),
        ],
    )


def _layer(hidden: int, heads: int, seq: int, layers: int = 1) -> calc.ModelConfig:
    """Return a GPT of these sizes; its vocabulary plays no part."""
    return calc.ModelConfig(layers=layers, hidden=hidden, heads=heads, vocab=50257, context=seq)


def kept_bytes(
    hidden: int, heads: int, seq: int, micro: int, tp: int, sp: bool, recompute: str = "none"
) -> float:
    """Return bytes of activations that a rank keeps for one layer."""
    config = _layer(hidden, heads, seq)
    return float(calc.activation_bytes(config, micro, tp, sp, recompute=recompute))


@drill(
    "me-3",
    "Activations of a layer under tensor parallelism",
    difficulty=3,
    notebook="14_vocabulary_and_sequence",
    prompt=LAYER_PROMPT + "Without sequence parallelism and without recomputation, "
    "how many bytes does a rank keep for this layer until backward?",
    draws=LAYER_DRAWS,
    unit="MB",
    between=("20 MB", "60 GB"),
)
def tensor_parallel_activations(hidden: int, heads: int, seq: int, micro: int, tp: int) -> Solution:
    """s b h (10 + 24/t + 5 a s/(h t))."""
    sizes = (hidden, heads, seq, micro, tp)
    kept = calc.activation_bytes(_layer(hidden, heads, seq), micro, tp)
    tokens = seq * micro
    return Solution(
        kept,
        [
            f"{tokens:,} tokens of {hidden:,} features.",
            f"Whole on every rank: 10 B a feature; over {tp} ranks: 24 B; scores: "
            f"5 x {heads} x {seq:,} / {hidden:,} = {5 * heads * seq / hidden:.4g} B, over {tp}, "
            "too.",
            *(f"{name}: {part}." for name, part in kept.parts.items()),
            f"Together {kept}.",
        ],
        [
            Trap(
                "with sequence parallelism",
                kept_bytes(*sizes, True),
                "Without it the inputs of norms and linear layers and the dropout masks are whole "
                "on every rank.",
            ),
            Trap(
                "without the attention scores",
                kept_bytes(*sizes, False, recompute="selective"),
                "Softmax, its mask and the dropped scores are kept, 5 a s^2 b bytes in all.",
            ),
            Trap(
                "not divided at all",
                kept_bytes(hidden, heads, seq, micro, 1, False),
                "Inside attention and MLP each rank has its own part only.",
            ),
        ],
    )


@drill(
    "me-3",
    "Activations with full recomputation",
    difficulty=1,
    notebook="09_sixteen_bits",
    prompt="A model of {layers} layers and {hidden} hidden features recomputes every layer in "
    "backward and keeps only the layers' inputs, in bf16. How many bytes are kept for a microbatch "
    "of {micro} sequences of {seq} tokens?",
    draws={
        "hidden heads": _SIZES,
        "layers": (24, 32, 40, 48, 80, 96),
        "micro": (2, 4, 8),
        "seq": (1024, 2048, 4096, 8192),
    },
    unit="GB",
    between=("0.1 GB", "200 GB"),
)
def recomputed_activations(hidden: int, layers: int, micro: int, seq: int) -> Solution:
    """2 B for each number of each layer's input."""
    config = _layer(hidden, 1, seq, layers)
    kept = float(calc.activation_bytes(config, micro, recompute="full"))
    selective = float(calc.activation_bytes(config, micro, recompute="selective"))
    return Solution(
        kept,
        [
            f"The input of a layer: {micro} x {seq:,} x {hidden:,} numbers of 2 B = "
            f"{calc.bytes_text(kept / layers)}.",
            f"{layers} layers: {calc.bytes_text(kept)}.",
            f"With selective recomputation it would be {calc.bytes_text(selective)}.",
        ],
        [
            Trap(
                "as with selective recomputation",
                selective,
                "That keeps 34 bytes a number and recomputes the scores only.",
            ),
            Trap("one sequence", kept / micro, "A microbatch has several sequences."),
            Trap("float32 numbers", 2 * kept, "A bf16 number has 2 bytes."),
            Trap("one layer", kept / layers, "Every layer's input is kept."),
        ],
    )
