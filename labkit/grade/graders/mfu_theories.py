"""Wrong ideas of what a token costs, as the operations that they lead to."""

from collections.abc import Callable

from labkit.grade.by_theory import Theory
from labkit.grade.graders.mfu_questions import Asked

Count = Callable[[Asked], float]
"""Weights, or features, of one model."""


def attention(asked: Asked) -> float:
    """Weights of one layer's attention."""
    its = asked.config
    return 2 * its.hidden * its.features_per_head * (its.heads + its.num_kv_heads)


def mlp(asked: Asked) -> float:
    """Weights of one layer's MLP."""
    its = asked.config
    return (3 if its.gated else 2) * its.hidden * its.mlp_features


def head(asked: Asked) -> float:
    """Weights of the head, and as many of the embedding."""
    return asked.config.hidden * asked.config.vocab


def features(asked: Asked) -> float:
    """Of all query heads."""
    return asked.config.heads * asked.config.features_per_head


def matrices(
    asked: Asked, attention: Count = attention, mlp: Count = mlp, head: Count = head
) -> float:
    """Forward, of one token."""
    return 2 * (asked.config.layers * (attention(asked) + mlp(asked)) + head(asked))


def scores(asked: Asked, features: Count = features) -> float:
    """Forward, of one token, with every token of its sequence."""
    return 4 * asked.config.layers * features(asked) * asked.sequence


def forward(asked: Asked) -> float:
    """All of it."""
    return matrices(asked) + scores(asked)


def _head_of_its_own(asked: Asked) -> float:
    return 0 if asked.config.tied else head(asked)


def _with_kv_of_all_heads(asked: Asked) -> float:
    return 4 * asked.config.hidden * features(asked)


def _with_equal_slices(asked: Asked) -> float:
    its = asked.config
    return 2 * its.hidden * its.hidden / its.heads * (its.heads + its.num_kv_heads)


def _without_output(asked: Asked) -> float:
    return attention(asked) - asked.config.hidden * features(asked)


def _plain(asked: Asked, num_matrices: int) -> float:
    return num_matrices * asked.config.hidden * asked.config.mlp_features


_HALF = (
    "counts half of attention's pairs",
    "two products of matrices look at other tokens, scores and values, each 2 H K operations for "
    "every pair: 12 L H K s, forward and backward. The contract counts the pairs that a causal "
    "mask hides as well, as PaLM's appendix B does; with half of them it is another MFU",
)
_TABLE = (
    "counts the embedding",
    "a token is looked up in it, which multiplies nothing; the head does. Where they are one "
    "table, it counts once, as the head",
)
_GATED = (
    "takes all MLPs for the same",
    "a gated MLP has three matrices, gate, up and down, another one has two: the model says which",
)

FLOPS: tuple[Theory[Asked], ...] = (
    Theory(
        "counts no scores",
        "6 N is what the weights take. Scores and their product with the values multiply no "
        "weights, and with long sequences they are a large share: 12 L H K s on top",
        lambda asked: 3 * matrices(asked),
        1,
    ),
    Theory(*_HALF, lambda asked: 3 * (matrices(asked) + scores(asked) / 2), 1),
    Theory(
        *_TABLE,
        lambda asked: 3 * (forward(asked) + 2 * (0 if asked.config.tied else head(asked))),
        1,
    ),
    Theory(*_TABLE, lambda asked: 3 * (forward(asked) + 2 * head(asked)), 1),
    Theory(
        "forgets the head",
        "it multiplies hidden * vocab weights for every token: of small models that is a large "
        "share",
        lambda asked: 3 * (forward(asked) - 2 * head(asked)),
    ),
    Theory(
        "leaves out a tied head",
        "tied means that its weights are stored once. They multiply all the same",
        lambda asked: 3 * (matrices(asked, head=_head_of_its_own) + scores(asked)),
    ),
    Theory(
        "gives keys and values as many heads as queries",
        "with kv_heads fewer than heads the matrices of keys and values are smaller: hidden * "
        "kv_heads * head_dim each",
        lambda asked: 3 * (matrices(asked, attention=_with_kv_of_all_heads) + scores(asked)),
    ),
    Theory(
        "lets fewer key heads make fewer scores",
        "every query head has scores of its own; sharing keys saves their weights and their "
        "memory, and no score",
        lambda asked: (
            3
            * (
                matrices(asked)
                + scores(asked, lambda a: a.config.num_kv_heads * a.config.features_per_head)
            )
        ),
    ),
    Theory(
        "takes hidden for the features of all heads",
        "heads * head_dim is what queries have; it may be more than hidden, or less",
        lambda asked: 3 * (matrices(asked) + scores(asked, lambda a: a.config.hidden)),
    ),
    Theory(
        "takes hidden for the features of all heads",
        "heads * head_dim is what queries have; it may be more than hidden, or less",
        lambda asked: (
            3
            * (
                matrices(asked, attention=_with_equal_slices)
                + scores(asked, lambda a: a.config.hidden)
            )
        ),
    ),
    Theory(
        *_GATED, lambda asked: 3 * (matrices(asked, mlp=lambda a: _plain(a, 2)) + scores(asked))
    ),
    Theory(
        *_GATED, lambda asked: 3 * (matrices(asked, mlp=lambda a: _plain(a, 3)) + scores(asked))
    ),
    Theory(
        "takes every layer for 12 hidden squared",
        "that is GPT-2's layer: 4 for attention and 8 for an MLP of 4 hidden features. Count this "
        "model's matrices",
        lambda asked: (
            3
            * (
                matrices(asked, lambda a: 4 * a.config.hidden**2, lambda a: 8 * a.config.hidden**2)
                + scores(asked)
            )
        ),
    ),
    Theory(
        "forgets attention's output matrix",
        "four matrices: queries, keys, values, and the one behind them",
        lambda asked: 3 * (matrices(asked, attention=_without_output) + scores(asked)),
    ),
    Theory("counts forward only", "backward takes twice as much again: 3 in all", forward),
    Theory(
        "takes backward for as much as forward",
        "backward multiplies twice with each weight: for the gradient of the input, and for that "
        "of the weight. 2 + 4 = 6",
        lambda asked: 2 * forward(asked),
    ),
    Theory(
        "counts a multiplication and an addition as one",
        "peaks of data sheets count both: 2 operations for each weight and token",
        lambda asked: 1.5 * forward(asked),
    ),
    Theory(
        "counts scores forward only",
        "backward goes through the scores as well, with twice as many operations: 12 L H K s and "
        "not 4",
        lambda asked: 3 * matrices(asked) + scores(asked),
    ),
    Theory(
        "takes the context for the sequence",
        "context is what the model is made for; the run's sequences are shorter, and so are their "
        "rows of scores",
        lambda asked: 3 * (matrices(asked) + scores(asked) * asked.config.context / asked.sequence),
    ),
    Theory(
        "counts the scores of a whole sequence",
        "asked is one token: it meets `sequence` others, and not their square",
        lambda asked: 3 * (matrices(asked) + scores(asked) * asked.sequence),
    ),
    Theory(
        "counts a whole sequence",
        "asked are the operations of one token",
        lambda asked: 3 * forward(asked) * asked.sequence,
    ),
)
