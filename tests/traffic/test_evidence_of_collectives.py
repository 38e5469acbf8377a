"""The runs that prove the cards on collectives measure what calc says, at other sizes, too."""

import pytest

from labkit import calc
from labkit.interview.runs import collectives as runs

SIZES = [404, 16_000]


@pytest.mark.parametrize("num_bytes", SIZES)
@pytest.mark.parametrize("world_size", [3, 4])
def test_a_ring_sends_what_calc_says(world_size, num_bytes):
    sent = calc.ring_all_reduce_sent_bytes(num_bytes // 4, 4, world_size, 0)
    assert runs.ring_sent_bytes(world_size, num_bytes) == sent
    assert runs.ring_messages(world_size, num_bytes) == calc.ring_all_reduce_messages(world_size)
    assert sum(runs.halves_sent_bytes(world_size, num_bytes)) == pytest.approx(sent, abs=8)


def test_a_hundred_tensors_cost_a_hundred_times_the_messages():
    assert runs.ring_messages(3, 12_000, 100) == 100 * calc.ring_all_reduce_messages(3)
    assert runs.ring_sent_bytes(3, 12_000, 100) == runs.ring_sent_bytes(3, 12_000)


@pytest.mark.parametrize("world_size", [2, 4])
def test_halving_doubling_and_trees_send_what_calc_says(world_size):
    place = (1000, 4, world_size)
    sent = {
        "halving_doubling": calc.halving_doubling_all_reduce_sent_bytes,
        "tree": calc.tree_all_reduce_sent_bytes,
        "double_tree": calc.double_tree_all_reduce_sent_bytes,
    }
    for name, formula in sent.items():
        most = max(formula(*place, rank) for rank in range(world_size))
        assert runs.most_sent_bytes(name, world_size, 4000) == most
    steps = calc.halving_doubling_all_reduce_steps(world_size)
    assert runs.all_reduce_messages("halving_doubling", world_size, 4000) == steps


@pytest.mark.parametrize("num_bytes", SIZES)
def test_what_leaves_a_host_is_what_calc_says(num_bytes):
    place = (num_bytes // 4, 4, 4)
    for name, formula in (
        ("ring", calc.flat_ring_sent_bytes),
        ("hierarchical", calc.hierarchical_all_reduce_sent_bytes),
    ):
        slow = sum(formula(*place, rank, 2).slow for rank in (0, 1))
        assert runs.crossing_bytes(name, 4, 2, num_bytes) == slow
    everything = [calc.ring_all_reduce_sent_bytes(*place, rank) for rank in (0, 2)]
    assert runs.crossing_bytes_in_turns(4, 2, num_bytes) == sum(everything)


def test_an_all_to_all_keeps_its_own_share():
    rows = [1000] * 4
    sent = calc.pairwise_all_to_all_sent_bytes(rows, 4, 0)
    assert runs.all_to_all_sent_bytes(4, 16_000) == sent
    assert runs.all_to_all_messages(4, 16_000) == calc.pairwise_all_to_all_messages(rows, 4, 0)


def test_between_the_halves_a_rank_holds_its_share():
    assert [runs.bytes_between_halves(n, 16_000) for n in (1, 2, 4)] == [16_000, 8_000, 4_000]


def test_a_barrier_moves_nothing_and_keeps_everyone():
    assert runs.barrier_payload_bytes(3) == 0
    assert runs.ranks_that_left_the_barrier_early(3) == 0
