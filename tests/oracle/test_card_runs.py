"""What the cards from combining to neighbours have measured, against calc and by counting."""

import pytest
import torch

from labkit import calc
from labkit.interview import runs


def test_a_rank_of_three_axes_has_one_neighbour_on_each():
    assert [runs.combining.partners(rank) for rank in (0, 5)] == [(3, 7), (3, 7)]


@pytest.mark.parametrize(("rank", "at"), [(0, {}), (3, {"pp": 1, "tp": 1})])
def test_each_axis_sends_what_calc_says(rank, at):
    config = calc.ModelConfig(
        layers=4, hidden=32, heads=4, ffn=64, vocab=256, context=16, biases=False
    )
    layers = [range(3), range(3, 6)]
    predicted = calc.combined_traffic_bytes(
        config, 8, layers, at, dp=2, tp=2, pp=2, microbatches=4, itemsize=8
    )
    for axis in ("tp", "pp", "dp"):
        assert runs.combining.sent_bytes(axis, rank) == float(predicted[axis])


def test_those_who_wait_are_all_but_the_one_that_is_behind():
    assert runs.diagnosis.blocked() == (3, 4)
    assert runs.diagnosis.rank_that_left() == 1
    assert [runs.diagnosis.last_collective(rank) for rank in range(4)] == [4, 3, 4, 4]


@pytest.mark.parametrize(
    ("kept", "as_before", "used_twice"),
    [
        ("model optimizer cursor", 4, 0),
        ("model cursor", 1, 0),  # the first loss is of the weights alone
        ("model optimizer", 0, 4),
        ("", 0, 4),
    ],
)
def test_a_run_goes_on_as_before_only_with_all_of_its_state(kept, as_before, used_twice):
    assert runs.recovery.losses_as_before(kept) == (as_before, 4)
    assert runs.recovery.batches_used_twice(kept) == used_twice


def test_static_batches_last_as_long_as_their_longest_request():
    lengths = (5, 1, 2, 1, 1, 3)
    assert runs.serving.forward_passes(lengths, 2, False) == 5 + 2 + 3
    # The slots are free after 5 and 1, 3, 4, 5 passes; the last request begins with the sixth.
    assert runs.serving.forward_passes(lengths, 2, True) == 5 + 3


def test_fewer_bits_and_larger_groups_are_less_exact():
    errors = [
        runs.serving.quantization_error(*each) for each in ((8, 1024), (4, 32), (4, 128), (3, 128))
    ]
    assert errors == sorted(errors)
    # A rounding error is even over a step: its mean square is a twelfth of the step's.
    torch.manual_seed(1)
    largest = torch.randn(4096, 128).abs().amax(1)
    expected = ((largest / 7).square().mean() / 12).sqrt().item()
    assert runs.serving.quantization_error(4, 128) == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("world_size", [2, 4])
def test_a_frozen_matrix_sends_nothing(world_size):
    adapter, matrix = 2 * 256 * 4, 256 * 256
    ring = calc.collective("all_reduce", "ring", world_size, 4 * adapter).sent_bytes
    assert runs.neighbours.adapter_sent_bytes(world_size, True) == ring
    both = calc.collective("all_reduce", "ring", world_size, 4 * (adapter + matrix)).sent_bytes
    assert runs.neighbours.adapter_sent_bytes(world_size, False) == both


def test_histograms_merge_to_that_of_all_rows_and_do_not_grow_with_them():
    expected = calc.collective("all_reduce", "ring", 4, 8 * 64 * 2 * 4).sent_bytes
    assert runs.neighbours.histogram_sent_bytes(4, 1_000, 8) == expected
    assert runs.neighbours.histogram_sent_bytes(4, 5_000, 8) == expected
    assert runs.neighbours.merged_histogram_difference(4, 1_003, 8) == 0
