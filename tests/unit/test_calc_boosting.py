"""Traffic of boosted trees, by hand and against figures that are published."""

import pytest

from labkit import calc


def test_sums_of_a_node_by_hand():
    assert calc.histogram_bytes(1000, 256).to("MB") == 4.096
    assert calc.histogram_bytes(8, 64, 3, itemsize=4) == 8 * 64 * 3 * 2 * 4


def test_an_all_reduce_sends_twice_what_a_reduce_scatter_does():
    whole = 32 * 64 * 2 * 8
    both = calc.boosting_level_bytes("all_reduce", 4, 32, 64, 1)
    one = calc.boosting_level_bytes("reduce_scatter", 4, 32, 64, 1)
    assert both == 2 * 3 / 4 * whole and list(both.parts) == ["sums"]
    assert one["sums"] == 3 / 4 * whole and one["candidates"] == 3 * 48
    # 10 features on 4 ranks are padded to 12.
    padded = calc.boosting_level_bytes("reduce_scatter", 4, 10, 64, 1)
    assert padded["sums"] == 3 / 4 * 12 * 64 * 2 * 8


def test_a_sibling_is_subtracted_and_the_root_has_none():
    def sums(nodes, **more):
        return calc.boosting_level_bytes("all_reduce", 2, 4, 16, nodes, **more)

    assert sums(8) == 4 * sums(1)
    assert sums(8, subtraction=False) == 8 * sums(1)


def test_votes_depend_on_k_and_not_on_features():
    few = calc.boosting_level_bytes("voting", 8, 1_000, 256, 4, top_k=20)
    many = calc.boosting_level_bytes("voting", 8, 100_000, 256, 4, top_k=20)
    assert few == many
    assert few["votes"] == 7 * 4 * 20 * 16
    assert few["sums"] == 7 / 8 * 40 * 256 * 2 * 8 * 4  # both siblings
    all_of_ten = calc.boosting_level_bytes("voting", 2, 10, 256, 4, top_k=20)
    assert all_of_ten["sums"] == 1 / 2 * 10 * 256 * 2 * 8 * 4


def test_sharded_columns_send_a_bit_for_each_row():
    columns = calc.boosting_level_bytes("columns", 4, 50_000, 256, 16, num_rows=10_000)
    assert columns == 3 / 4 * 10_000 / 8 + 3 * 16 * 48


@pytest.mark.parametrize(
    ("way", "more", "words"),
    [
        ("gossip", {}, "way='gossip': give one of all_reduce"),
        ("voting", {}, "top_k=None"),
        ("columns", {}, "num_rows=None"),
    ],
)
def test_what_is_missing_is_named(way, more, words):
    with pytest.raises((ValueError, TypeError), match=words):
        calc.boosting_level_bytes(way, 4, 10, 16, 1, **more)
