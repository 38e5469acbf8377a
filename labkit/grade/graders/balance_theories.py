"""What a cut that is not the best one has been made by, told by all of the cuts together."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from labkit.grade.graders.balance_cuts import (
    fewest_squares,
    filled_variants,
    halved,
    quantile_variants,
    squares,
)
from labkit.grade.graders.balance_questions import Layers, Stages, one_of_the_best, slowest

Pair = tuple[Layers, Stages]
_A_LITTLE = 0.02


@dataclass(frozen=True)
class Theory:
    """A rule of thumb, and whether cuts have been made by it."""

    name: str
    explanation: str
    explains: Callable[[Sequence[Pair]], bool]
    hint: int = 2


def _each(is_such: Callable[[Layers, Stages], bool]) -> Callable[[Sequence[Pair]], bool]:
    return lambda pairs: all(is_such(layers, stages) for layers, stages in pairs)


def _is_even(layers: Layers, stages: Stages) -> bool:
    sizes = {len(stage) for stage in stages}
    return max(sizes) - min(sizes) <= 1


def _best_without(*layers_left_out: int) -> Callable[[Layers, Stages], bool]:
    """Whether the cut would be the best one if these layers cost nothing."""

    def is_best(layers: Layers, stages: Stages) -> bool:
        costs = list(layers.costs)
        for each in layers_left_out:
            costs[each] = 0
        best = slowest(costs, one_of_the_best(costs, layers.num_stages))
        return slowest(costs, stages) == best

    return is_best


def _among(variants: Callable[[Layers], Iterable[Stages]]) -> Callable[[Sequence[Pair]], bool]:
    """Whether one variant of a rule gives all of the cuts."""

    def explains(pairs: Sequence[Pair]) -> bool:
        left: set[int] | None = None
        for layers, stages in pairs:
            same = {i for i, cut in enumerate(variants(layers)) if cut == stages}
            left = same if left is None else left & same
            if not left:
                return False
        return True

    return explains


def _is_nearly_best(layers: Layers, stages: Stages) -> bool:
    return slowest(layers.costs, stages) <= layers.best * (1 + _A_LITTLE)


THEORIES = (
    Theory(
        "cuts by the number of layers",
        "each stage has as many layers, whatever they cost. The stage with the head is the slowest "
        "then, and all others wait for it in every step",
        _each(_is_even),
        1,
    ),
    Theory(
        "leaves out the head",
        "the cut is the best one for the layers before the last. The head is a product with all of "
        "the vocabulary: it costs several blocks, and its stage has to have fewer of them",
        _each(_best_without(-1)),
        1,
    ),
    Theory(
        "leaves out embedding and head",
        "the cut is the best one for the layers between. Embedding and head are layers like the "
        "others: what costs counts, and the head costs several blocks",
        _each(_best_without(0, -1)),
        1,
    ),
    Theory(
        "fills stages up to the average",
        "each stage is filled until it has its share, and the last one takes what is left: what "
        "earlier stages lack or have too much adds up there. Whether a stage is full depends on "
        "the layers that come later, so look at all cuts, cheaply",
        _among(filled_variants),
        1,
    ),
    Theory(
        "cuts the sum into equal parts",
        "the cuts are nearest to 1/p, 2/p, ... of the sum, each rounded by itself: a stage can be "
        "too large at both of its ends. It is a good first guess, and not the best cut",
        _among(quantile_variants),
        1,
    ),
    Theory(
        "halves, and halves again",
        "the best cut in two is not part of the best cut in four: the first one decides before it "
        "is known what layers are left for the others",
        _among(lambda layers: [halved(layers)]),
        1,
    ),
    Theory(
        "makes the stages alike instead of the slowest one fast",
        "the squares of the stages' costs are as small as can be, so they differ little. But a "
        "pipeline waits for its slowest stage only: how fast the others are changes nothing",
        _each(lambda layers, stages: squares(layers, stages) == fewest_squares(layers)),
        1,
    ),
    Theory(
        "stops before the best",
        "each cut is within 2% of the best one, and some are not it: a search that halves an "
        "interval has to end at a limit that is the cost of a stage, not near it. Costs are whole "
        "numbers, so search in whole numbers, until low == high",
        _each(_is_nearly_best),
        3,
    ),
)
