"""The runs that prove the cards on collectives measure what calc says, at other sizes, too."""

import pytest

from labkit import calc
from labkit.course.collectives import evidence as runs

SIZES = [404, 16_000]


@pytest.mark.parametrize("num_bytes", SIZES)
@pytest.mark.parametrize("world_size", [3, 4])
def test_a_ring_sends_what_calc_says(world_size, num_bytes):
    sent = calc.collective("all_reduce", "ring", world_size, num_bytes, rank=0).sent_bytes
    assert runs.ring_sent_bytes(world_size, num_bytes) == sent
    assert (
        runs.ring_messages(world_size, num_bytes)
        == calc.collective("all_reduce", "ring", world_size).messages
    )
    assert sum(runs.halves_sent_bytes(world_size, num_bytes)) == pytest.approx(sent, abs=8)


def test_a_hundred_tensors_cost_a_hundred_times_the_messages():
    messages = calc.collective("all_reduce", "ring", 4).messages
    assert runs.ring_messages(4, 1_600_000, 100) == 100 * messages
    assert runs.ring_sent_bytes(4, 1_600_000, 100) == runs.ring_sent_bytes(4, 1_600_000)


@pytest.mark.parametrize("world_size", [2, 4])
def test_halving_doubling_and_trees_send_what_calc_says(world_size):
    for name in ("halving_doubling", "tree", "double_tree"):
        each = [
            calc.collective("all_reduce", name, world_size, 4000, rank=r) for r in range(world_size)
        ]
        most = max(one.sent_bytes for one in each)
        assert runs.most_sent_bytes(name, world_size, 4000) == most
    steps = calc.collective("all_reduce", "halving_doubling", world_size).steps
    assert runs.all_reduce_messages("halving_doubling", world_size, 4000) == steps


@pytest.mark.parametrize("num_bytes", SIZES)
def test_what_leaves_a_host_is_what_calc_says(num_bytes):
    def asked(name, rank):
        return calc.collective("all_reduce", name, 4, num_bytes, rank=rank, ranks_per_host=2)

    for name in ("ring", "hierarchical"):
        slow = sum(asked(name, rank).tier_bytes.slow for rank in (0, 1))
        assert runs.crossing_bytes(name, 4, 2, num_bytes) == slow
    everything = sum(asked("ring", rank).sent_bytes for rank in (0, 2))
    assert runs.crossing_bytes_in_turns(4, 2, num_bytes) == everything


def test_an_all_to_all_keeps_its_own_share():
    asked = calc.collective("all_to_all", "pairwise", 4, 16_000, rank=0)
    assert runs.all_to_all_sent_bytes(4, 16_000) == asked.sent_bytes
    assert runs.all_to_all_messages(4, 16_000) == asked.messages


def test_between_the_halves_a_rank_holds_its_share():
    assert [runs.bytes_between_halves(n, 16_000) for n in (1, 2, 4)] == [16_000, 8_000, 4_000]


def test_a_barrier_moves_nothing_and_keeps_everyone():
    assert runs.barrier_payload_bytes(3) == 0
    assert runs.ranks_that_left_the_barrier_early(3) == 0
