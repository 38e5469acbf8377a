"""Drills on tensor and sequence parallelism: traffic, its time, activations, the vocabulary."""

from labkit import calc
from labkit.course.memory.drills import LAYER_DRAWS, LAYER_PROMPT, kept_bytes
from labkit.interview.drills.drill import BATCHES, amounts, drill
from labkit.interview.drills.question import Solution, Trap

_CUTTING, _AROUND = "13_tensor_parallel", "14_vocabulary_and_sequence"
_HIDDEN = (4096, 5120, 6144, 8192, 12288, 16384)


def _of_a_layer(hidden: int, seq: int, micro: int, tp: int, part: str = "") -> float:
    """Bytes that one rank sends for a layer, forward and backward or one of them."""
    config = calc.ModelConfig(layers=1, hidden=hidden, heads=tp, vocab=1, context=seq)
    sent = calc.tensor_parallel_traffic_bytes(config, micro, tp)
    names = [f"layers, {part}"] if part else ["layers, forward", "layers, backward"]
    return sum(float(sent[name]) for name in names)


@drill(
    "tp-2",
    "Bytes of a tensor-parallel layer",
    difficulty=2,
    notebook=_CUTTING,
    prompt="Tensor parallelism over {tp} GPUs, without sequence parallelism; {hidden} hidden "
    "features, microbatches of {micro} of {seq} tokens, bf16, rings. How many bytes does "
    "a GPU send for one transformer layer, forward and backward together?",
    draws={"tp": (2, 4, 8), "hidden": _HIDDEN, "micro": BATCHES, "seq": (2048, 4096, 8192)},
    unit="MB",
    between=("10 MB", "20 GB"),
)
def tensor_parallel_bytes(tp: int, hidden: int, micro: int, seq: int) -> Solution:
    """Four all-reduces of B T D numbers."""
    sent = _of_a_layer(hidden, seq, micro, tp)
    return Solution(
        sent,
        [
            f"An activation is {micro} x {seq:,} x {hidden:,} numbers of 2 B.",
            "All-reduces of it: two forward (after attention, after the MLP), two backward.",
            f"Each sends 2 x {tp - 1}/{tp} of it, {calc.bytes_text(sent / 4)}; four send "
            f"{calc.bytes_text(sent)}.",
        ],
        [
            Trap(
                "forward only",
                _of_a_layer(hidden, seq, micro, tp, "forward"),
                "Backward all-reduces the gradients of the two inputs: as much again. (One of a "
                "ring's two phases alone would be as much.)",
            ),
            Trap(
                "one all-reduce",
                sent / 4,
                "A layer has four: after attention and after the MLP, forward and backward.",
            ),
            Trap("bits for bytes", sent * 8, "A byte has 8 bits."),
        ],
    )


@drill(
    "tp-2",
    "Time of a tensor-parallel layer on its links",
    difficulty=2,
    notebook=_AROUND,
    prompt="Tensor parallelism over {tp} GPUs whose links carry {link} each, one direction; "
    "{hidden} hidden features, {tokens} tokens in a microbatch, bf16, no sequence parallelism, "
    "latencies left out. How long do the ring all-reduces of one layer take in forward?",
    draws={
        "tp": (4, 8),
        "link": amounts("25 GB/s", "50 GB/s", "300 GB/s", "450 GB/s"),
        "hidden": _HIDDEN,
        "tokens": (2048, 4096, 8192, 16384),
    },
    unit="ms",
    between=("0.05 ms", "100 ms"),
)
def tensor_parallel_time(tp: int, link: float, hidden: int, tokens: int) -> Solution:
    """Two all-reduces over the link's speed."""
    forward = _of_a_layer(hidden, tokens, 1, tp, "forward")
    both = _of_a_layer(hidden, tokens, 1, tp)
    return Solution(
        forward / link,
        [
            "Two all-reduces forward: after attention and after the MLP.",
            f"Each sends 2 x {tp - 1}/{tp} x {tokens:,} x {hidden:,} x 2 B = "
            f"{calc.bytes_text(forward / 2)}.",
            f"{calc.bytes_text(forward)} / ({calc.bytes_text(link)}/s) = "
            f"{calc.seconds_text(forward / link)}, which nothing hides.",
        ],
        [
            Trap(
                "one all-reduce",
                forward / 2 / link,
                "Attention and MLP each end with one.",
            ),
            Trap("backward too", both / link, "The question is forward alone."),
            Trap("bits for bytes", forward / link * 8, "The link's speed is in bytes."),
            Trap(
                "n instead of n - 1",
                forward / link * tp / (tp - 1),
                "A rank never sends the chunk that it ends with.",
            ),
        ],
    )


@drill(
    "tp-3",
    "Column then row, or the other way round",
    difficulty=3,
    notebook=_CUTTING,
    prompt="An MLP without a gate, of {hidden} and {ffn} features, is split over {tp} ranks, its "
    "first matrix by rows and its second by columns, the wrong order: the {ffn} features in "
    "between must be added up, forward and backward, the output and the input's gradient "
    "gathered. For {tokens} tokens in bf16 on rings, how many bytes does a rank send, forward and "
    "backward?",
    draws={
        "hidden ffn": [(h, 4 * h) for h in (2048, 2560, 4096, 5120, 8192)],
        "tp": (2, 4, 8),
        "tokens": (2048, 4096, 8192, 16384),
    },
    unit="MB",
    between=("30 MB", "20 GB"),
)
def wrong_order(hidden: int, ffn: int, tp: int, tokens: int) -> Solution:
    """(4 F + 2 D) (n-1)/n T b."""
    sent = calc.two_layers_traffic_bytes(tokens, hidden, ffn, tp, row_first=True)
    right = calc.two_layers_traffic_bytes(tokens, hidden, ffn, tp)
    gated = calc.two_layers_traffic_bytes(tokens, hidden, ffn, tp, row_first=True, gated=True)
    return Solution(
        sent,
        [
            f"Sums of {ffn:,} features, forward and backward: {sent['sums']}.",
            f"Gathers of {hidden:,} features, forward and backward: {sent['gathers']}.",
            f"Together {sent}; column first and then row: {right}.",
        ],
        [
            Trap(
                "the right order",
                right,
                "Column first and then row adds up the small output; here the wide middle is "
                "added up.",
            ),
            Trap(
                "the gathers left out",
                sent["sums"],
                "The output ends cut by features, and so does the input's gradient.",
            ),
            Trap("forward only", float(sent) / 2, "Backward sends as much again."),
            Trap(
                "a gated MLP",
                gated,
                "With a gate forward adds up two wide tensors; this MLP has one.",
            ),
        ],
    )


@drill(
    "sp-1",
    "Savings of sequence parallelism",
    difficulty=3,
    notebook=_AROUND,
    prompt=LAYER_PROMPT + "Scores are recomputed (selective). How many bytes fewer "
    "does a rank keep for this layer with sequence parallelism than without?",
    draws=LAYER_DRAWS,
    unit="MB",
    between=("10 MB", "20 GB"),
)
def sequence_parallel_saving(hidden: int, heads: int, seq: int, micro: int, tp: int) -> Solution:
    """10 s b h (1 - 1/t)."""
    sizes = (hidden, heads, seq, micro, tp)
    without = kept_bytes(*sizes, False, recompute="selective")
    with_it = kept_bytes(*sizes, True, recompute="selective")
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
    "tp-5",
    "Logits and their loss",
    difficulty=2,
    notebook=_AROUND,
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
