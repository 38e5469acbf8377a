"""The bytes of a layer of experts, against sums written out by hand."""

import random

import pytest

from labkit import calc
from labkit.calc.experts import expert_rows

WAYS = ("forward, dispatch", "forward, combine", "backward, combine", "backward, dispatch")


def by_hand(routed, rank, held, row_bytes):
    """Message by message: every choice is a row, and goes to its expert's rank and back."""
    sent = dict.fromkeys(WAYS, 0)
    owner = {expert: r for r, experts in enumerate(held) for expert in experts}
    for source, row in enumerate(routed):
        for expert, number in enumerate(row):
            if owner[expert] == source:
                continue
            for way in WAYS:
                to_expert = way in ("forward, dispatch", "backward, combine")
                if rank == (source if to_expert else owner[expert]):
                    sent[way] += number * row_bytes
    return sent


@pytest.mark.parametrize(
    "held",
    [[[0, 1, 2, 3]], [[0, 1], [2, 3]], [[0, 1], [2], [3]], [[0], [1], [2], [3], []]],
)
def test_bytes_are_those_of_every_row(held):
    choose = random.Random(0)
    routed = [[choose.randrange(9) for _ in range(4)] for _ in held]
    for rank in range(len(held)):
        found = calc.expert_parallel_traffic_bytes(routed, rank, hidden=10, itemsize=2)
        expected = by_hand(routed, rank, held, 20)
        assert {way: found[way] for way in WAYS} == expected
        assert found["forward, counts"] == 8 * (4 - len(held[rank]))
        assert found == sum(expected.values()) + 8 * (4 - len(held[rank]))


def test_balanced_routing_is_the_routing_in_which_all_are_equal():
    # 4 ranks with 24 tokens each and 2 choices, over 8 experts: 6 choices for each.
    exact = [calc.expert_parallel_traffic_bytes([[6] * 8] * 4, r, hidden=16) for r in range(4)]
    balanced = calc.balanced_expert_traffic_bytes(24, 4, num_experts=8, top_k=2, hidden=16)
    for each in exact:
        assert {n: p.value for n, p in each.parts.items()} == {
            n: p.value for n, p in balanced.parts.items()
        }


def test_balanced_routing_is_the_mean_of_random_ones():
    choose, runs = random.Random(1), 400
    total = 0.0
    for _ in range(runs):
        routed = [[0] * 8 for _ in range(4)]
        for row in routed:
            for _ in range(24):
                for expert in choose.sample(range(8), 2):
                    row[expert] += 1
        total += calc.expert_parallel_traffic_bytes(routed, 0, hidden=16).value
    expected = calc.balanced_expert_traffic_bytes(24, 4, num_experts=8, top_k=2, hidden=16)
    assert total / runs == pytest.approx(expected.value, rel=0.01)


def test_padding_costs_the_capacity_factor():
    sizes = {"num_experts": 8, "top_k": 2, "hidden": 16}
    balanced = calc.balanced_expert_traffic_bytes(64, 4, **sizes)
    for factor in (1.0, 1.25, 2.0):
        padded = calc.padded_expert_traffic_bytes(64, 4, **sizes, capacity_factor=factor)
        rows = balanced - balanced["forward, counts"]
        assert padded.value == factor * rows.value
    assert (
        calc.padded_expert_traffic_bytes(
            50, 2, num_experts=10, top_k=2, hidden=1, capacity_factor=1.1, itemsize=1
        )
        == 4 * 5 * 11
    )


def test_one_rank_sends_nothing():
    sizes = {"num_experts": 8, "top_k": 2, "hidden": 16}
    assert calc.balanced_expert_traffic_bytes(64, 1, **sizes) == 0
    assert calc.padded_expert_traffic_bytes(64, 1, **sizes) == 0
    assert calc.expert_parallel_traffic_bytes([[3, 4]], 0, hidden=16) == 0


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: expert_rows([]), TypeError, "row"),
        (lambda: expert_rows([[1, 2], [1]]), ValueError, r"routed\[1\] has 1 experts"),
        (lambda: expert_rows([[1, 2.5]]), ValueError, "routed="),
        (lambda: expert_rows([[1, -2]]), ValueError, "=-"),
        (
            lambda: calc.balanced_expert_traffic_bytes(8, 3, num_experts=8, top_k=2, hidden=4),
            ValueError,
            "ep=3 .*num_experts=8.* 1, 2, 4 or 8",
        ),
        (
            lambda: calc.padded_expert_traffic_bytes(8, 2, num_experts=8, top_k=9, hidden=4),
            ValueError,
            "top_k=9 of num_experts=8",
        ),
        (
            lambda: calc.padded_expert_traffic_bytes(
                8, 2, num_experts=8, top_k=2, hidden=4, capacity_factor=0
            ),
            ValueError,
            "a buffer of no rows",
        ),
        (
            lambda: calc.expert_parallel_traffic_bytes([[1, 2]], 1, hidden=4),
            ValueError,
            "rank=1",
        ),
    ],
)
def test_what_cannot_be_is_refused(call, error, words):
    with pytest.raises(error, match=words):
        call()
