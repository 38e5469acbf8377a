"""What no formula can work with is refused by name, in every argument of every formula here."""

import inspect
import math

import pytest

from labkit import calc

# An argument of each name that is right, and a number is enough for most formulas.
RIGHT = {
    "nbytes": 1e6,
    "shard_bytes": 1e6,
    "numel": 1000,
    "itemsize": 4,
    "block_bytes": 64,
    "blocks": 2,
    "n": 4,
    "world_size": 4,
    "rank": 1,
    "root": 0,
    "ranks_per_host": 2,
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
    "send_rows": [1, 2, 3, 4],
    "rows": [[1] * 4] * 4,
    "row_bytes": 4,
}
PAIRS = {"alpha": (1e-6, 1e-5), "beta": (1e-9, 1e-8)}
OF_TWO_TIERS = (
    calc.flat_ring_seconds,
    calc.hierarchical_all_reduce_seconds,
    calc.hierarchical_speedup,
    calc.two_tier_all_to_all_seconds,
)
WHOLE = "numel itemsize blocks n world_size rank root ranks_per_host num_gpus row_bytes".split()
NONSENSE = ["x", None, [1], True, math.nan, math.inf, -math.inf, -1, 10**400]


FILES = """
    alpha_beta choice outage traffic.all_to_all traffic.blocks traffic.double_tree
    traffic.halving_doubling traffic.hierarchical traffic.library traffic.ring
    traffic.ring_broadcast traffic.segments traffic.tree
""".split()


def formulas():
    """Of collectives, and of what a stand-still costs."""
    for name in calc.__all__:
        formula = getattr(calc, name)
        file = getattr(formula, "__module__", "").removeprefix("labkit.calc.")
        if inspect.isfunction(formula) and file in FILES:
            yield formula


def right_arguments(formula):
    parameters = inspect.signature(formula).parameters
    arguments = {name: RIGHT[name] for name in parameters if name != "shared"}
    return arguments | (PAIRS if formula in OF_TWO_TIERS else {})


CASES = [(formula, name) for formula in formulas() for name in right_arguments(formula)]
NAMES = [f"{formula.__name__}, {name}" for formula, name in CASES]


@pytest.mark.parametrize("formula", list(formulas()), ids=lambda formula: formula.__name__)
def test_a_formula_takes_what_is_right(formula):
    formula(**right_arguments(formula))


@pytest.mark.parametrize(("formula", "name"), CASES, ids=NAMES)
def test_nonsense_is_refused_and_named_with_a_reason(formula, name):
    right = right_arguments(formula)
    for value in NONSENSE + [2.5] * (name in WHOLE):
        if value is inspect.signature(formula).parameters[name].default:
            continue  # a block_bytes of None is the best size
        with pytest.raises((TypeError, ValueError)) as refused:
            formula(**{**right, name: value})
        said = str(refused.value)
        # Of [1] as a list of rows it is the 1 that is no row.
        assert repr(value)[:40] in said or (value == [1] and name in ("rows", "send_rows")), said
        assert len(said) > len(repr(value)[:60]) + 15, f"no reason is given: {said}"


@pytest.mark.parametrize("value", [1e-6, (1e-6,), (1e-6,) * 3, "ab"])
@pytest.mark.parametrize("formula", OF_TWO_TIERS, ids=lambda formula: formula.__name__)
def test_two_tiers_have_two_links(formula, value):
    for name in ("alpha", "beta"):
        with pytest.raises(TypeError, match=f"{name}=.*: give a pair, .fast, slow.: one number"):
            formula(**{**right_arguments(formula), name: value})


@pytest.mark.parametrize("formula", OF_TWO_TIERS[:3], ids=lambda formula: formula.__name__)
def test_links_are_looked_at_even_where_nobody_sends(formula):
    alone = right_arguments(formula) | {"n": 1, "ranks_per_host": 1, "alpha": (-1, 0)}
    with pytest.raises(ValueError, match="alpha .*=-1"):
        formula(**alone)


@pytest.mark.parametrize("formula", list(formulas()), ids=lambda formula: formula.__name__)
def test_a_count_may_come_as_a_float(formula):
    right = right_arguments(formula)
    floats = {name: float(value) for name, value in right.items() if name in WHOLE}
    assert formula(**right | floats) == formula(**right)
