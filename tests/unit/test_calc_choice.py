"""choose_algorithm and crossover_bytes: who is fastest where, by the alpha-beta model."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit import calc

LINK = {"alpha": 5e-6, "beta": 1 / 50e9}
links = st.fixed_dictionaries({"alpha": st.floats(1e-7, 1e-3), "beta": st.floats(1e-12, 1e-7)})


def test_each_algorithm_wins_somewhere():
    assert calc.choose_algorithm(2, 1e6, **LINK).fastest == "ring"  # as fast as others, and simple
    assert calc.choose_algorithm(6, 1e6, **LINK).fastest == "ring"
    assert calc.choose_algorithm(64, 1e6, **LINK).fastest == "halving_doubling"
    assert calc.choose_algorithm(1000, 1e9, **LINK).fastest == "double_tree"
    assert calc.choose_algorithm(7, 0, **LINK).fastest == "halving_doubling"


def test_the_text_has_a_line_for_each_with_how_many_times_as_long():
    assert repr(calc.choose_algorithm(n=8, nbytes=2**20, alpha=5e-6, beta=1 / 50e9)) == (
        "1 MiB over 8 ranks: halving_doubling\n"
        "    halving_doubling    66.7 us  1.00 x\n"
        "    ring                 107 us  1.60 x\n"
        "    double_tree          164 us  2.46 x\n"
        "    tree                 186 us  2.79 x"
    )


def test_one_rank_needs_no_time():
    choice = calc.choose_algorithm(1, 1e9, **LINK)
    assert set(choice.seconds.values()) == {0}
    assert repr(choice).startswith("1 GB over 1 rank: ring")


@settings(max_examples=20)
@given(st.integers(1, 300), st.floats(0, 1e11), links)
def test_the_seconds_are_those_of_each_formula(n, nbytes, link):
    choice = calc.choose_algorithm(n, nbytes, **link)
    assert choice.seconds == {
        name: calc.collective("all_reduce", name, n, nbytes).seconds(**link)
        for name in ("ring", "tree", "double_tree", "halving_doubling")
    }
    assert choice.seconds[choice.fastest] == min(choice.seconds.values())


@settings(max_examples=20)
@given(st.integers(0, 10), st.floats(0, 1e11), links)
def test_halving_doubling_is_never_beaten_by_a_ring_over_a_power_of_two(power, nbytes, link):
    seconds = calc.choose_algorithm(2**power, nbytes, **link).seconds
    assert seconds["halving_doubling"] <= seconds["ring"] * (1 + 1e-12)


@settings(max_examples=20)
@given(st.integers(2, 300), links)
def test_at_the_crossover_both_take_the_same_time_and_beside_it_they_do_not(n, link):
    for first, second in [("tree", "ring"), ("double_tree", "ring"), ("ring", "halving_doubling")]:
        at = calc.crossover_bytes(first, second, n, **link)
        if at is None:
            continue
        below, same, above = (
            calc.choose_algorithm(n, nbytes, **link).seconds
            for nbytes in (float(at) / 8, float(at), float(at) * 8)
        )
        assert same[first] == pytest.approx(same[second], rel=1e-6)
        assert (below[first] < below[second]) != (above[first] < above[second])


def test_a_latency_that_is_lost_to_rounding_makes_no_crossover():
    # Over 8 ranks both send as much: the smaller latency counts, and at 1e17 bytes does not show.
    link = {"alpha": 1e-7, "beta": 1e-7}
    assert calc.crossover_bytes("ring", "halving_doubling", 8, **link) is None


def test_a_crossover_by_hand():
    # 6 ranks: 6 (alpha + D beta) = 10 (alpha + D/6 beta) at D = 4 alpha / (4 1/3 beta)
    assert calc.crossover_bytes("tree", "ring", 6, **LINK) == pytest.approx(
        4 * 5e-6 / (13 / 3) * 50e9
    )
    assert calc.crossover_bytes("ring", "tree", 6, **LINK) == calc.crossover_bytes(
        "tree", "ring", 6, **LINK
    )


def test_there_is_none_where_one_is_always_ahead():
    assert calc.crossover_bytes("halving_doubling", "ring", 8, **LINK) is None
    assert calc.crossover_bytes("tree", "ring", 3, **LINK) is None
    assert calc.crossover_bytes("ring", "ring", 8, **LINK) is None


def test_unknown_names_and_links_are_refused():
    with pytest.raises(ValueError, match="gossip"):
        calc.crossover_bytes("ring", "gossip", 8, **LINK)
    with pytest.raises(ValueError, match="beta"):
        calc.choose_algorithm(8, 1e6, alpha=1e-6, beta=360e9)
    with pytest.raises(ValueError, match="n=0"):
        calc.choose_algorithm(0, 1e6, **LINK)
