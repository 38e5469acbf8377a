"""What no formula can work with is refused by name, in every argument of every formula here."""

import inspect
import math

import pytest

from labkit import calc
from labkit.calc.traffic.collective import COLLECTIVES

# An argument of each name that is right.
RIGHT = {
    "nbytes": 1200,
    "numel": 1000,
    "itemsize": 4,
    "block_bytes": 64,
    "n": 4,
    "world_size": 4,
    "rank": 1,
    "root": 0,
    "ranks_per_host": 2,
    "rings": 1,
    "alpha": 1e-6,
    "beta": 1e-9,
    "seconds": 1.0,
    "kind": "all_reduce",
    "first": "ring",
    "second": "tree",
    "num_gpus": 8,
    "until_noticed_s": 1.0,
    "restart_s": 1.0,
    "since_checkpoint_s": 1.0,
}
PAIRS = {"alpha": (1e-6, 1e-5), "beta": (1e-9, 1e-8)}
WHOLE = "numel itemsize n world_size rank root ranks_per_host rings block_bytes num_gpus".split()
NONSENSE = ["x", None, [1], True, math.nan, math.inf, -math.inf, -1, 10**400]
FUNCTIONS = (
    calc.algbw,
    calc.busbw,
    calc.choose_algorithm,
    calc.crossover_bytes,
    calc.lost_gpu_hours,
    calc.chunk_numels,
)


def cost(operation, algorithm, alpha, beta, **asked):
    """All that a collective says."""
    one = calc.collective(operation, algorithm, **asked)
    return one.sent_bytes, one.messages, one.steps, one.seconds(alpha, beta)


def formulas():
    """(name, function, arguments that are right)"""
    for function in FUNCTIONS:
        names = inspect.signature(function).parameters
        yield function.__name__, function, {name: RIGHT[name] for name in names}
    for kind in COLLECTIVES:
        names = ("world_size", "nbytes", "itemsize", "rank", "alpha", "beta", *sorted(kind.options))
        right = {name: RIGHT[name] for name in names if name != "splits"}
        right |= PAIRS if "ranks_per_host" in kind.options else {}

        def function(kind=kind, **given):
            return cost(kind.operation, kind.algorithm, **given)

        yield f"{kind.operation} by {kind.algorithm}", function, right


FORMULAS = {name: (function, right) for name, function, right in formulas()}
CASES = [(formula, name) for formula, (_, right) in FORMULAS.items() for name in right]
OF_TWO_TIERS = [name for name, (_, right) in FORMULAS.items() if "ranks_per_host" in right]


@pytest.mark.parametrize("formula", FORMULAS)
def test_a_formula_takes_what_is_right(formula):
    function, right = FORMULAS[formula]
    function(**right)


@pytest.mark.parametrize(("formula", "name"), CASES)
def test_nonsense_is_refused_and_named_with_a_reason(formula, name):
    function, right = FORMULAS[formula]
    for value in NONSENSE + [2.5] * (name in WHOLE):
        if value is None and name in ("rank", "root", "block_bytes", "ranks_per_host", "rings"):
            continue  # nothing is said
        with pytest.raises((TypeError, ValueError)) as refused:
            function(**{**right, name: value})
        said = str(refused.value)
        assert repr(value)[:40] in said, said
        assert len(said) > len(repr(value)[:60]) + 15, f"no reason is given: {said}"


@pytest.mark.parametrize("value", [1e-6, (1e-6,), (1e-6,) * 3, "ab"])
@pytest.mark.parametrize("formula", OF_TWO_TIERS)
def test_two_tiers_have_two_links(formula, value):
    function, right = FORMULAS[formula]
    for name in ("alpha", "beta"):
        with pytest.raises(TypeError, match=f"{name}=.*: give a pair, .fast, slow.: one number"):
            function(**{**right, name: value})


@pytest.mark.parametrize("formula", OF_TWO_TIERS)
def test_links_are_looked_at_even_where_nobody_sends(formula):
    function, right = FORMULAS[formula]
    alone = {"world_size": 1, "rank": 0, "ranks_per_host": 1, "alpha": (-1, 0)}
    with pytest.raises(ValueError, match="alpha .*=-1"):
        function(**right | alone)


@pytest.mark.parametrize("formula", FORMULAS)
def test_a_count_may_come_as_a_float(formula):
    function, right = FORMULAS[formula]
    floats = {name: float(value) for name, value in right.items() if name in WHOLE}
    assert function(**right | floats) == function(**right)
