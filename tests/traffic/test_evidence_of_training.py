"""The runs that prove the cards on data parallelism, memory and ZeRO, against the formulas.

Most are the runs of the cards themselves: in `make test` one process has them, once for all.
"""

import math

import pytest

from labkit import calc
from labkit.interview import runs

LEVELS = {"ddp": 0, "zero1": 1, "zero2": 2, "zero3": 3}


@pytest.mark.parametrize("strategy", LEVELS)
@pytest.mark.parametrize("microbatches", (1, 4))
def test_sent_volume_is_that_of_the_formula(strategy, microbatches):
    expected = calc.step_traffic_volume(strategy, microbatches)
    assert runs.zero.sent_volume(strategy, microbatches) == pytest.approx(float(expected))


def test_kept_units_are_gathered_once_and_reduced_once_a_microbatch():
    assert runs.zero.sent_volume("zero3, kept", 1) == pytest.approx(2)
    assert runs.zero.sent_volume("zero3, kept", 4) == pytest.approx(8)


@pytest.mark.parametrize(("strategy", "level"), LEVELS.items())
def test_held_bytes_are_those_of_the_formula(strategy, level):
    expected = calc.model_state_bytes(4_000, "fp32", zero=level, dp=4)
    assert runs.zero.held_bytes_per_parameter(strategy) == pytest.approx(float(expected) / 4_000)
    assert runs.zero.held(strategy, "parameters") == (0.25 if level == 3 else 1)


def test_offload_moves_what_the_formula_says():
    expected = calc.offload_traffic_bytes(1_000, "fp32", to="disk")
    assert runs.zero.disk_bytes_per_parameter() == float(expected) / 1_000


def test_hybrid_shards_leave_a_host_less_often():
    flat_ring = 3 * 3 / 4  # two gathers and a reduction, each three quarters out of one rank
    twins = 2 * calc.collective("all_reduce", "ring", 2, 1 / 2).sent_bytes  # each of its half
    assert runs.zero.leaves_a_host("flat") == pytest.approx(flat_ring)
    assert runs.zero.leaves_a_host("hybrid") == pytest.approx(twins)


@pytest.mark.parametrize(("ranks", "per_rank", "accumulation"), ((1, 3, 1), (3, 5, 2)))
def test_a_step_contains_the_product_of_examples(ranks, per_rank, accumulation):
    found = runs.data_parallel.examples_in_a_step(ranks, per_rank, accumulation)
    assert found == ranks * per_rank * accumulation
    assert runs.data_parallel.examples_in_a_step(ranks, per_rank, 1, same_data=True) == per_rank


def test_no_sync_must_stand_around_forward_too():
    counts = [
        runs.data_parallel.all_reduces_of_accumulation(q) for q in ("nothing", "backward", "both")
    ]
    assert counts == [16, 16, 4]


@pytest.mark.parametrize("is_weighted", (False, True))
def test_unequal_shares_need_weights(is_weighted):
    means = (1 + 2 + 3) / 3, (4 + 5) / 2, (6 + 7) / 2
    expected = 4 if is_weighted else sum(means) / 3
    found = runs.data_parallel.gradient_of_unequal_shares(3, is_weighted)
    assert found == pytest.approx(expected)


def test_replicas_are_equal_or_stay_apart():
    assert runs.data_parallel.difference_between_replicas() == 0
    assert runs.data_parallel.distance_kept_without_broadcast() == pytest.approx(1, abs=1e-3)


def test_layer_norm_does_not_see_other_examples():
    assert runs.data_parallel.error_of_batch_norm(4, has_batch_norm=False) < 1e-12
    assert (
        runs.data_parallel.error_of_batch_norm(4) > runs.data_parallel.error_of_batch_norm(16) > 0.1
    )


@pytest.mark.parametrize("slow_factor", (1, 4))
def test_every_update_hands_out_a_staleness_of_the_other_workers(slow_factor):
    """Whatever the mix of speeds. Between a step and its answer to a worker others may step."""
    assert runs.data_parallel.staleness(8, slow_factor) == pytest.approx(7, abs=0.5)
    by_worker = [
        runs.data_parallel.staleness(8, slow_factor, of=each) for each in ("others", "slow")
    ]
    assert slow_factor == 1 or by_worker[0] < 7 < by_worker[1]


@pytest.mark.parametrize("stale_steps", (0, 1, 3, 7))
def test_a_rate_settles_up_to_the_published_limit(stale_steps):
    limit = 2 * math.sin(math.pi / (4 * stale_steps + 2))
    assert runs.data_parallel.largest_rate(stale_steps) == pytest.approx(limit, rel=5e-3)


def test_a_compressor_sends_what_its_format_takes():
    """Of 21,600 parameters: 216 entries of 4 + 8 bytes, gathered from 3 others."""
    dense = calc.collective("all_reduce", "ring", 4, 4 * 21_600).sent_bytes
    sparse = calc.collective("all_gather", "ring", 4, 4 * 216 * 12).sent_bytes
    assert runs.data_parallel.compression_factor("top 1%") == pytest.approx(dense / sparse)
    assert runs.data_parallel.local_sgd_saving(8) == 8
    assert runs.data_parallel.server_volume(3) == pytest.approx(3, rel=1e-3)


def test_states_are_those_of_the_recipes():
    for dtype, recipe in (("float32", "fp32"), ("bfloat16", "zero_paper")):
        expected = calc.RECIPES[recipe].bytes_per_parameter
        assert runs.memory.state_bytes_per_parameter(dtype) == pytest.approx(expected, rel=1e-3)


def test_sixteen_bits_end_where_their_formats_end():
    assert runs.memory.smallest_above_zero("float16") == 2.0**-24
    assert runs.memory.largest("float16") == (2 - 2**-10) * 2.0**15
    assert runs.memory.spacing("bfloat16", 1.0) == 2.0**-7


def test_a_scale_brings_gradients_back():
    assert (
        runs.memory.gradients_lost("float16", 8) < 0.01 < runs.memory.gradients_lost("float16", 0)
    )


def test_a_larger_batch_gets_less_far_at_the_same_rate():
    small, large = (runs.data_parallel.loss_of_batch(size, "as it was") for size in (64, 1024))
    assert small < large < math.log(256)
