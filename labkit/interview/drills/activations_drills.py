"""Drills on activations: by parallelism and recomputation, and the logits."""

from labkit import calc
from labkit.interview.drills.drill import drill
from labkit.interview.drills.numbers import BATCHES
from labkit.interview.drills.question import Solution, Trap

_SIZES = [
    (each.hidden, each.heads)
    for each in (calc.MODELS[name] for name in ("gpt2-xl", "korthikanti-22b", "gpt3-175b"))
] + [(4096, 32), (5120, 40), (8192, 64)]
_CONVENTION = (
    "Counted as in Korthikanti et al.: 2-byte numbers, 1-byte dropout masks, attention scores "
    "written down, an MLP of 4 times the hidden size and two matrices. "
)


def _layer(hidden: int, heads: int, seq: int, layers: int = 1) -> calc.ModelConfig:
    """A GPT of these sizes; its vocabulary plays no part."""
    return calc.ModelConfig(layers=layers, hidden=hidden, heads=heads, vocab=50257, context=seq)


_DRAWS = {
    "hidden heads": [(h, a) for h, a in _SIZES if a % 8 == 0],
    "seq": (1024, 2048, 4096),
    "micro": BATCHES,
    "tp": (2, 4, 8),
}
_LAYER_PROMPT = (
    "A layer of {hidden} hidden features and {heads} heads, tensor parallelism over {tp}, {micro} "
    "of {seq} tokens in a microbatch. "
)


def _kept(
    hidden: int, heads: int, seq: int, micro: int, tp: int, sp: bool, recompute: str = "none"
) -> float:
    config = _layer(hidden, heads, seq)
    return float(calc.activation_bytes(config, micro, tp, sp, recompute=recompute))


@drill(
    "me-3",
    "Activations of a layer under tensor parallelism",
    difficulty=3,
    notebook="07_tensor_parallel",
    prompt=_LAYER_PROMPT + _CONVENTION + "Without sequence parallelism and without recomputation, "
    "how many bytes does a rank keep for this layer until backward?",
    draws=_DRAWS,
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
                _kept(*sizes, True),
                "Without it the inputs of norms and linear layers and the dropout masks are whole "
                "on every rank.",
            ),
            Trap(
                "without the attention scores",
                _kept(*sizes, False, recompute="selective"),
                "Softmax, its mask and the dropped scores are kept, 5 a s^2 b bytes in all.",
            ),
            Trap(
                "not divided at all",
                _kept(hidden, heads, seq, micro, 1, False),
                "Inside attention and MLP each rank has its own part only.",
            ),
        ],
    )


@drill(
    "sp-1",
    "What sequence parallelism saves",
    difficulty=3,
    notebook="07_tensor_parallel",
    prompt=_LAYER_PROMPT + _CONVENTION + "Scores are recomputed (selective). How many bytes fewer "
    "does a rank keep for this layer with sequence parallelism than without?",
    draws=_DRAWS,
    unit="MB",
    between=("10 MB", "20 GB"),
)
def sequence_parallel_saving(hidden: int, heads: int, seq: int, micro: int, tp: int) -> Solution:
    """10 s b h (1 - 1/t)."""
    sizes = (hidden, heads, seq, micro, tp)
    without = _kept(*sizes, False, recompute="selective")
    with_it = _kept(*sizes, True, recompute="selective")
    return Solution(
        without - with_it,
        [
            f"Without: 10 B + 24 B/{tp} for each of {seq * micro:,} x {hidden:,} numbers, "
            f"{calc.bytes_text(without)}.",
            f"With: all 34 B over {tp} ranks, {calc.bytes_text(with_it)}.",
            f"The difference is 10 B x (1 - 1/{tp}): {calc.bytes_text(without - with_it)}.",
        ],
        [
            Trap("what is left", with_it, "The question is what is saved."),
            Trap(
                "all of what was whole",
                (without - with_it) * tp / (tp - 1),
                "A rank still keeps its own part of it, a t-th.",
            ),
            Trap("what was there", without, "The question is what is saved."),
            Trap(
                "one sequence",
                (without - with_it) / micro,
                "A microbatch has several sequences.",
            ),
        ],
    )


@drill(
    "me-3",
    "Activations with full recomputation",
    difficulty=1,
    notebook="05_where_memory_goes",
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


@drill(
    "tp-5",
    "Logits and their loss",
    difficulty=2,
    notebook="07_tensor_parallel",
    prompt="A vocabulary of {vocab} is split over {tp} ranks. For {micro} sequences of {seq} "
    "tokens each rank keeps its logits in bf16 and what the loss makes of them, their log-softmax "
    "in float32. How many bytes are that on one rank?",
    draws={
        "vocab": (32000, 51200, 128256, 152064),
        "tp": (2, 4, 8),
        "micro": (2, 4, 8),
        "seq": (2048, 4096, 8192),
    },
    unit="GB",
    between=("0.05 GB", "40 GB"),
)
def logits_and_loss(vocab: int, tp: int, micro: int, seq: int) -> Solution:
    """(2 + 4) T V / t."""
    config = calc.ModelConfig(layers=1, hidden=1, heads=1, vocab=vocab, context=seq)
    kept = calc.logits_bytes(config, micro, tp)
    return Solution(
        kept,
        [
            f"{micro} x {seq:,} = {micro * seq:,} tokens, {vocab:,} / {tp} logits each.",
            *(f"{name}: {part}." for name, part in kept.parts.items()),
            f"Together {kept}.",
        ],
        [
            Trap(
                "the logits alone",
                kept["logits"],
                "The loss is computed in float32 and keeps a number for each logit.",
            ),
            Trap(
                "the log-softmax alone",
                kept["log-softmax"],
                "The bf16 logits are kept beside it.",
            ),
            Trap("not split", float(kept) * tp, "Each rank has its part of the vocabulary."),
            Trap("one sequence", float(kept) / micro, "A microbatch has several sequences."),
        ],
    )
