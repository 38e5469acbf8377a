"""Wrong ideas of what fits, and the levels and terms that they lead to."""

from collections.abc import Callable

from labkit import calc
from labkit.grade.by_theory import Theory
from labkit.grade.graders.fit_ideas import Idea, Terms, largest_of, terms_of
from labkit.grade.graders.fit_questions import LEVELS, TERMS, Setup


def _idea(name: str, explanation: str, idea: Idea, hint: int = 2) -> Theory[Setup]:
    return Theory(name, explanation, idea.answer, hint)


def _with_levels(**levels: int) -> Idea:
    return Idea(terms=lambda setup, level: terms_of(setup, level, levels))


def _without(term: str) -> Callable[[Setup, int], Terms]:
    return lambda setup, level: {**terms_of(setup, level), term: 0.0}


def _activations_over_ranks(first_level: int) -> Idea:
    def terms(setup: Setup, level: int) -> Terms:
        ranks = setup.dp if level >= first_level else 1
        return {**terms_of(setup, level), "activations": setup.activation_bytes / ranks}

    return Idea(terms=terms)


def _reserve_in_gib(setup: Setup, level: int) -> Terms:
    return {**terms_of(setup, level), "reserve": setup.reserve_gb * calc.GiB}


def _reversed_order(terms: Terms, setup: Setup, level: int) -> str:
    order = ("parameters", "gradients", "optimizer", "activations", "reserve")
    return max(order, key=terms.__getitem__)


def _of_states(terms: Terms, setup: Setup, level: int) -> str:
    return max(TERMS[:3], key=terms.__getitem__)


def _at_level_0(terms: Terms, setup: Setup, level: int) -> str:
    return largest_of(terms_of(setup, 0), setup, 0)


def _rounded(shard: Callable[[int, int], float]) -> Idea:
    return Idea(terms=lambda setup, level: terms_of(setup, level, shard=shard))


_SHARDS_ACTIVATIONS = (
    "shards the activations, too",
    "ZeRO shards parameters, gradients and optimizer states. Each rank has a batch of its own, and "
    "all of its activations, at every level: these are for recomputation, a smaller microbatch, or "
    "tensor and sequence parallelism",
)
_ROUNDS = (
    "forgets to round the shard up",
    "where the ranks do not divide the parameters, some rank has one more, and must hold it: "
    "-(-num_params // dp)",
)

THEORIES: tuple[Theory[Setup], ...] = (
    _idea(
        "forgets the activations",
        "model states are not all: what a rank keeps from forward to backward must fit as well",
        Idea(terms=_without("activations")),
        1,
    ),
    _idea(
        "forgets the reserve",
        "not all memory is to be had: context, communication buffers and fragmentation take some",
        Idea(terms=_without("reserve")),
        1,
    ),
    _idea(
        "takes GiB for GB",
        "a GPU of 80 GiB has 80 * 2**30 bytes, 7% more than 80 GB",
        Idea(memory=lambda setup: setup.memory_gib * calc.GB),
        3,
    ),
    _idea(
        "takes GB for GiB",
        "the reserve is in GB, of 1e9 bytes, while the memory is in GiB, of 2**30",
        Idea(terms=_reserve_in_gib),
        3,
    ),
    _idea(*_SHARDS_ACTIVATIONS, _activations_over_ranks(0), 1),
    _idea(*_SHARDS_ACTIVATIONS, _activations_over_ranks(1), 1),
    _idea(*_SHARDS_ACTIVATIONS, _activations_over_ranks(3), 1),
    _idea(
        "takes the memory of all GPUs together",
        "each rank has to fit into its own GPU",
        Idea(memory=lambda setup: setup.memory_bytes * setup.dp),
    ),
    _idea(
        "refuses what fits exactly",
        "at most the GPU's memory: <=, and not <",
        Idea(is_strict=True),
        3,
    ),
    _idea(
        "takes the highest level that fits",
        "level 3 fits most often, and sends half as much again as the others, in every layer: the "
        "lowest that fits is asked for",
        Idea(order=LEVELS[::-1]),
        1,
    ),
    _idea(
        "gives a level where none fits",
        "with ZeRO-3, too, activations, reserve and a shard may be too much: then it is None",
        Idea(otherwise=3),
    ),
    _idea(*_ROUNDS, _rounded(lambda num, dp: num // dp), 3),
    _idea(*_ROUNDS, _rounded(lambda num, dp: num / dp), 3),
    _idea(
        "gives one rank all that is left over",
        "num_params // dp + num_params % dp is the shard of a rank that takes the whole remainder: "
        "shards differ by one parameter at most, and the largest is -(-num_params // dp)",
        _rounded(lambda num, dp: num // dp + num % dp),
        3,
    ),
    _idea(
        "shards everything from level 1 on",
        "level 1 shards what the optimizer keeps, level 2 gradients as well, level 3 parameters",
        _with_levels(gradients=1, parameters=1),
    ),
    _idea(
        "shards gradients at level 1",
        "that is level 2; at level 1 every rank has all of them when backward ends",
        _with_levels(gradients=1),
    ),
    _idea(
        "shards parameters at level 2",
        "that is level 3; at level 2 every rank has all of them, all the time",
        _with_levels(parameters=2),
    ),
    _idea(
        "one level late",
        "level 0 is without ZeRO, and level 1 shards the optimizer's states already",
        _with_levels(optimizer=2, gradients=3, parameters=4),
    ),
    _idea(
        "names what the next level shards",
        "the level is right. What breaks a level is its largest term, and that may be one that the "
        "next level does nothing about, such as activations",
        Idea(named=lambda terms, setup, level: TERMS[level]),
    ),
    _idea(
        "looks at model states only for the largest",
        "the level is right. Activations and reserve are terms of the sum, too, and may be the "
        "largest",
        Idea(named=_of_states),
    ),
    _idea(
        "names the largest without ZeRO for every level",
        "the level is right. Each level has other terms: what was the largest may be sharded",
        Idea(named=_at_level_0),
    ),
    _idea(
        "names another of equal terms",
        'of equal ones the first in the order "optimizer", "gradients", "parameters": the one that '
        "the next level shards",
        Idea(named=_reversed_order),
        3,
    ),
    _idea(
        "names a term of the level that fits",
        "the level is right; the list has one name for each level that does not fit",
        Idea(names_the_last=True),
        3,
    ),
)
