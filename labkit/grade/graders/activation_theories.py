"""Wrong ideas of what a layer keeps, and the bytes that they lead to."""

from collections.abc import Callable
from dataclasses import replace

from labkit.grade.by_theory import Theory
from labkit.grade.graders.activation_ideas import Idea, by_none, by_sequence, by_tensor
from labkit.grade.graders.activation_questions import Layer


def _idea(name: str, explanation: str, idea: Idea, hint: int = 2) -> Theory[Layer]:
    return Theory(name, explanation, idea.nbytes, hint)


def _instead(name: str, explanation: str, of: Callable[[Layer], Layer]) -> Theory[Layer]:
    """Right, but for another layer."""
    return Theory(name, explanation, lambda layer: Idea().nbytes(of(layer)))


def _selective_keeps(layer: Layer, idea: Idea) -> float:
    return (idea if layer.recompute == "selective" else Idea()).nbytes(layer)


_MASKS = (
    "counts masks as two bytes per number",
    "a mask says yes or no, in one byte: 1 for each of the two after attention and MLP, and 1 of "
    "the 5 bytes of a score. That is why it is 34 and 5, and not 36 and 6",
)
_TOGETHER = "norms, dropouts and the inputs of the first linear layers"

THEORIES: tuple[Theory[Layer], ...] = (
    _idea(
        "forgets the scores",
        "attention also keeps its (s, s) matrices, 5 a s s b bytes. From s = 7h/a on they are more "
        "than half of all, and they grow with the square of s",
        Idea(per_score=0),
        1,
    ),
    _idea(
        "forgets that each head has scores of its own",
        "there is an (s, s) matrix for each of the a heads: splitting h into heads does not make "
        "the matrices smaller",
        Idea(heads=by_none),
    ),
    _idea(
        "lets scores grow with s and not with its square",
        "every token attends to every token: a row of scores has s numbers",
        Idea(scores_per_row=by_none),
    ),
    _idea(
        "keeps half of the scores, for a causal mask",
        "a causal mask sets half of the scores to zero, and they are stored all the same: the "
        "matrix is (s, s)",
        Idea(per_score=2.5),
    ),
    _idea(
        "divides everything by t without sequence parallelism",
        f"tensor parallelism splits attention and MLP inside; {_TOGETHER} are whole on every "
        "rank: 10 of the 34 bytes, which soon are most of what is left. Dividing these, too, is "
        "what sequence parallelism is for",
        Idea(outside_ranks=by_tensor, input_ranks=by_tensor),
        1,
    ),
    _idea(
        "divides everything by t without sequence parallelism",
        f"tensor parallelism splits attention and MLP inside; {_TOGETHER} are whole on every "
        "rank: 10 of the 34 bytes, which soon are most of what is left. Dividing these, too, is "
        "what sequence parallelism is for",
        Idea(outside_ranks=by_tensor),
        1,
    ),
    _idea(
        "divides the layer's input by t without sequence parallelism",
        "with full recomputation the layer's input is all that is kept, and it is whole on every "
        "rank of tensor parallelism: only sequence parallelism cuts it",
        Idea(input_ranks=by_tensor),
    ),
    _idea(
        "gets nothing from sequence parallelism",
        f"with it, {_TOGETHER} are cut along the sequence, and each of the t ranks keeps its part",
        Idea(outside_ranks=by_none, input_ranks=by_none),
    ),
    _idea(
        "keeps the layer's input whole with sequence parallelism",
        "the layer's input is what the layer before has put out, and with sequence parallelism "
        "that is cut along the sequence",
        Idea(input_ranks=by_none),
        3,
    ),
    _idea(
        "does not divide by t",
        "each rank has a part of the heads and of the MLP's features, and keeps activations of "
        "that part",
        Idea(inside_ranks=by_none, score_ranks=by_none, statistic_ranks=by_none),
    ),
    _idea(
        "does not divide the scores by t",
        "each rank has a / t of the heads, and the scores of those",
        Idea(score_ranks=by_none, statistic_ranks=by_none),
    ),
    _idea(
        "divides by t twice with sequence parallelism",
        "what is split by heads or features already is not cut along the sequence as well: inside "
        "attention and MLP a rank has all tokens",
        Idea(inside_ranks=lambda layer: layer.t * by_sequence(layer)),
    ),
    _idea(*_MASKS, Idea(outside=12, per_score=6)),
    _idea(*_MASKS, Idea(outside=12)),
    _idea(*_MASKS, Idea(per_score=6)),
    _idea(
        "forgets the dropout masks",
        "backward must drop what forward has dropped: a mask of one byte per number, after "
        "attention, after the MLP, and for every score",
        Idea(outside=8, per_score=4),
    ),
    _idea(
        "counts four bytes for each number",
        "activations are in 16 bits here, whatever the optimizer keeps in 32",
        Idea(outside=18, inside=48, per_score=9, layer_input=4),
    ),
    Theory(
        "takes selective recomputation for full",
        "selective drops what takes many bytes and few FLOPs: scores, mask and what comes of them. "
        "All else stays, 34 bytes, while full keeps 2 and repeats the whole forward",
        lambda layer: Idea().nbytes(
            replace(layer, recompute="none" if layer.recompute == "none" else "full")
        ),
        1,
    ),
    Theory(
        "drops all of attention with selective recomputation",
        "it recomputes softmax, dropout and the product with the values from query, key and value, "
        "which stay; so do the inputs of the two projections",
        lambda layer: _selective_keeps(layer, Idea(outside=7, inside=16, statistic=0)),
    ),
    Theory(
        "drops all of attention with selective recomputation",
        "it recomputes softmax, dropout and the product with the values from query, key and value, "
        "which stay; so do the inputs of the two projections",
        lambda layer: _selective_keeps(layer, Idea(inside=16, statistic=0)),
    ),
    _instead(
        "drops nothing with selective recomputation",
        "selective keeps nothing of softmax, its dropout and their result: the a s s b term goes",
        lambda layer: replace(
            layer, recompute="none" if layer.recompute == "selective" else layer.recompute
        ),
    ),
    _instead(
        "drops nothing with full recomputation",
        "full keeps the layer's input alone, and repeats its forward from there",
        lambda layer: replace(
            layer, recompute="selective" if layer.recompute == "full" else layer.recompute
        ),
    ),
    _idea(
        "keeps the output as well with full recomputation",
        "a layer's output is the next one's input, and is counted there: each keeps its own input, "
        "2 s b h bytes",
        Idea(layer_input=4),
        3,
    ),
    _idea(
        "keeps nothing with full recomputation",
        "the forward has to be repeated from something: the layer's input, 2 s b h bytes",
        Idea(layer_input=0),
    ),
    _idea(
        "forgets what flash attention keeps",
        "backward computes the scores again, block by block, and needs the logarithm of each row's "
        "sum to normalise them: 4 bytes per token and head",
        Idea(statistic=0),
    ),
    _idea(
        "counts flash attention's statistics as two bytes",
        "the logarithms of the rows' sums are float32, whatever the activations are in: 4 bytes "
        "per token and head",
        Idea(statistic=2),
        3,
    ),
    _idea(
        "does not divide flash attention's statistics by t",
        "there is one for each token and head, and each rank has a / t of the heads",
        Idea(statistic_ranks=by_none),
        3,
    ),
    _idea(
        "drops flash attention's statistics with selective recomputation",
        "flash has no matrix that selective could drop: it is as with recompute none",
        Idea(flash_after_selective=False),
        3,
    ),
    _instead(
        "keeps the scores with flash attention",
        "flash attention never writes an (s, s) matrix; it keeps 4 bytes per token and head",
        lambda layer: replace(layer, flash=False),
    ),
    Theory(
        "forgets that a microbatch has several sequences",
        "all that is kept, is kept for each of the b sequences",
        lambda layer: Idea().nbytes(layer) / layer.b,
    ),
)
