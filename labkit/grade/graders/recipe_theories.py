"""Wrong ideas of what is kept for a parameter, and the bytes that they lead to."""

from collections.abc import Callable

from labkit.grade.by_theory import Theory
from labkit.grade.graders.recipe_questions import Kept, itemsize

Levels = dict[int, float]


def total(kept: Kept) -> float:
    """What is right for bytes_per_parameter."""
    return kept.recipe.bytes_per_parameter


def levels(kept: Kept) -> Levels:
    """What is right for sharded_from."""
    recipe = kept.recipe
    return {1: recipe.optimizer_bytes, 2: recipe.gradient_bytes, 3: recipe.parameter_bytes}


def _moments(kept: Kept) -> float:
    return sum(kept.recipe.moment_bytes)


def _with_moments(count: Callable[[Kept], float]) -> Callable[[Kept], float]:
    """The total with `count` in the place of the bytes of the moments."""
    return lambda kept: total(kept) - _moments(kept) + count(kept)


def _with_gradients(dtype: Callable[[Kept], str]) -> Callable[[Kept], float]:
    """The total with gradients of another dtype."""
    return lambda kept: total(kept) - itemsize(kept.gradients) + itemsize(dtype(kept))


def _other_gradients_first(kept: Kept) -> Levels:
    """Gradients of another dtype than the parameters' are sharded with the optimizer's states."""
    if kept.gradients == kept.parameters:
        return levels(kept)
    return {**levels(kept), 1: levels(kept)[1] + levels(kept)[2], 2: 0}


_NO_MASTER: tuple[str, str] = (
    "forgets the master copy",
    "with 16-bit parameters an update below half the distance between two neighbouring numbers is "
    "lost, so the optimizer keeps a copy of its own, in float32, and works on that: 4 bytes more. "
    "This is the 12 that people quote where others say 16",
)
_NO_MOMENTS: tuple[str, str] = (
    "forgets the master copy where there are no moments",
    "master and moments are two things: plain SGD keeps no moments, and with 16-bit parameters it "
    "needs a float32 copy to add small updates to as much as Adam does",
)
_CASTS: tuple[str, str] = (
    "counts copies that a step makes and frees",
    "autocast's copies live in a step only and belong to its activations; what is asked is what "
    "lives from one step to the next",
)

TOTALS: tuple[Theory[Kept], ...] = (
    Theory(
        "gives bits for bytes",
        "every number is 8 times too large: float32 is 4 bytes",
        lambda kept: 8 * total(kept),
        3,
    ),
    Theory(*_NO_MASTER, lambda kept: total(kept) - kept.recipe.master_bytes),
    Theory(
        *_NO_MOMENTS,
        lambda kept: total(kept) - (0 if kept.moments else kept.recipe.master_bytes),
    ),
    Theory(
        "adds a master copy that is not there",
        "an optimizer that updates the parameters themselves needs no second copy of them: master "
        "is None",
        lambda kept: total(kept) + (4 if kept.master is None else 0),
    ),
    Theory(
        "keeps the moments in the parameters' dtype",
        "each moment has a dtype of its own, and with a master copy it is the master's: Adam's v "
        "is a square, of which 16 bits lose most",
        _with_moments(lambda kept: len(kept.moments) * itemsize(kept.parameters)),
    ),
    Theory(
        "counts one moment of several",
        "Adam keeps two values for each parameter, m and v, and each takes its bytes",
        _with_moments(lambda kept: sum(kept.recipe.moment_bytes[:1])),
    ),
    Theory(
        "takes every optimizer for Adam",
        "moments lists what this optimizer keeps: one for momentum, nothing for plain SGD",
        _with_moments(lambda kept: 8),
    ),
    Theory(
        "counts each moment as float32",
        "each moment has a dtype of its own, which may be smaller",
        _with_moments(lambda kept: 4 * len(kept.moments)),
    ),
    Theory(
        "forgets the moments",
        "m and v of Adam are two numbers for each parameter, most of all the bytes",
        _with_moments(lambda kept: 0),
    ),
    Theory(
        "takes every gradient for float32",
        "that is one convention, Megatron-LM's (18 bytes); in the ZeRO paper's, gradients have the "
        "parameters' 16 bits (16 bytes). The recipe says which",
        _with_gradients(lambda kept: "float32"),
    ),
    Theory(
        "gives gradients the parameters' dtype",
        "that is one convention, the ZeRO paper's (16 bytes); Megatron-LM keeps them in float32, "
        "to add up microbatches (18 bytes). The recipe says which",
        _with_gradients(lambda kept: kept.parameters),
    ),
    Theory(
        "forgets the gradients",
        "there is one for each parameter, and all are there when the optimizer's step begins",
        lambda kept: total(kept) - kept.recipe.gradient_bytes,
    ),
    Theory(
        "forgets the optimizer",
        "parameters and gradients are the smaller part: the optimizer's own copy and its moments "
        "are 12 of the 16 bytes of mixed precision with Adam",
        lambda kept: total(kept) - kept.recipe.optimizer_bytes,
    ),
    Theory(*_CASTS, lambda kept: total(kept) + kept.recipe.cast_bytes),
)

LEVELS: tuple[Theory[Kept], ...] = (
    Theory(
        "shards the master with the parameters",
        "the master copy belongs to the optimizer: forward and backward do not read it, so level 1 "
        "shards it with the moments. That makes 12 of 16 bytes, and not 8",
        lambda kept: {
            **levels(kept),
            1: _moments(kept),
            3: itemsize(kept.parameters) + itemsize(kept.master),
        },
    ),
    Theory(
        "adds the levels up",
        "each byte is asked for once, under the level that begins to shard it: level 2 adds "
        "gradients, and level 3 parameters",
        lambda kept: {
            1: levels(kept)[1],
            2: levels(kept)[1] + levels(kept)[2],
            3: total(kept),
        },
    ),
    Theory(
        "gives what stays whole",
        "these are the bytes that every rank still has of each parameter; asked are those that "
        "a level begins to shard",
        lambda kept: {1: total(kept) - levels(kept)[1], 2: levels(kept)[3], 3: 0},
    ),
    Theory(
        "shards parameters first",
        "the levels go by how seldom a thing is needed: the optimizer's states once a step, "
        "gradients in backward, parameters all the time",
        lambda kept: {1: levels(kept)[3], 2: levels(kept)[2], 3: levels(kept)[1]},
    ),
    Theory(
        "shards gradients before the optimizer's states",
        "level 1 is the optimizer's states: they are the most bytes, and sharding them costs no "
        "communication. Gradients are level 2",
        lambda kept: {1: levels(kept)[2], 2: levels(kept)[1], 3: levels(kept)[3]},
    ),
    Theory(*_NO_MASTER, lambda kept: {**levels(kept), 1: _moments(kept)}),
    Theory(
        *_NO_MOMENTS,
        lambda kept: {**levels(kept), 1: levels(kept)[1] if kept.moments else 0},
    ),
    Theory(
        "takes gradients of their own dtype for the optimizer's",
        "a gradient in float32 beside 16-bit parameters is a gradient all the same: level 1 leaves "
        "it whole on every rank, and level 2 shards it",
        _other_gradients_first,
    ),
    Theory(*_CASTS, lambda kept: {**levels(kept), 3: levels(kept)[3] + kept.recipe.cast_bytes}),
    Theory(
        "gives bits for bytes",
        "every number is 8 times too large: float32 is 4 bytes",
        lambda kept: {level: 8 * size for level, size in levels(kept).items()},
        3,
    ),
)
