"""The runs that prove the cards' numbers, against calc and at sizes that no card has.

tests/unit/test_bank.py runs them with the cards' own arguments, against the cards' text.
"""

import math

import pytest
import torch

from labkit import calc
from labkit.interview import runs

LEVELS = {"ddp": 0, "zero1": 1, "zero2": 2, "zero3": 3}
SIZES = [404, 16_000]


@pytest.mark.parametrize("num_bytes", SIZES)
@pytest.mark.parametrize("world_size", [3, 4])
def test_a_ring_sends_what_calc_says(world_size, num_bytes):
    of_calc = calc.collective("all_reduce", "ring", world_size, num_bytes, rank=0)
    assert runs.collectives.ring_sent_bytes(world_size, num_bytes) == of_calc.sent_bytes
    assert runs.collectives.ring_messages(world_size, num_bytes) == of_calc.messages
    halves = runs.collectives.halves_sent_bytes(world_size, num_bytes)
    assert sum(halves) == pytest.approx(of_calc.sent_bytes, abs=8)


@pytest.mark.parametrize("world_size", [2, 4])
def test_halving_doubling_and_trees_send_what_calc_says(world_size):
    for name in ("halving_doubling", "tree", "double_tree"):
        each = [
            calc.collective("all_reduce", name, world_size, 4000, rank=r) for r in range(world_size)
        ]
        most = max(one.sent_bytes for one in each)
        assert runs.collectives.most_sent_bytes(name, world_size, 4000) == most
    steps = calc.collective("all_reduce", "halving_doubling", world_size).steps
    assert runs.collectives.all_reduce_messages("halving_doubling", world_size, 4000) == steps


@pytest.mark.parametrize("num_bytes", SIZES)
def test_what_leaves_a_host_is_what_calc_says(num_bytes):
    def asked(name, rank):
        return calc.collective("all_reduce", name, 4, num_bytes, rank=rank, ranks_per_host=2)

    for name in ("ring", "hierarchical"):
        slow = sum(asked(name, rank).tier_bytes.slow for rank in (0, 1))
        assert runs.collectives.crossing_bytes(name, 4, 2, num_bytes) == slow
    everything = sum(asked("ring", rank).sent_bytes for rank in (0, 2))
    assert runs.collectives.crossing_bytes_in_turns(4, 2, num_bytes) == everything


@pytest.mark.parametrize(("strategy", "level"), LEVELS.items())
def test_a_strategy_sends_and_holds_what_calc_says(strategy, level):
    for microbatches in (1, 4):
        volume = float(calc.step_traffic_volume(strategy, microbatches))
        assert runs.zero.sent_volume(strategy, microbatches) == pytest.approx(volume)
    held = float(calc.model_state_bytes(4_000, "fp32", zero=level, dp=4)) / 4_000
    assert runs.zero.held_bytes_per_parameter(strategy) == pytest.approx(held)


@pytest.mark.parametrize("k", [1, 4])
def test_fsdp2_sends_what_its_switches_say(k):
    """Gathers and reduce-scatters of torch's own fully_shard, in times the parameters."""
    sent = {
        "default": 3 * k,
        "kept to backward": 2 * k,
        "kept for the step": k + 1,
        "kept for the step, gradients reduced once": 2,
        "gradients reduced once": 2 * k + 1,
    }
    assert {each: runs.zero.fsdp2_sent_volume(each, k) for each in sent} == sent
    assert sent["kept for the step"] == calc.step_traffic_volume("zero2", k)
    assert sent["default"] == calc.step_traffic_volume("zero3", k)


def test_batch_norm_is_the_only_reason_for_its_error():
    assert runs.data_parallel.error_of_batch_norm(4, has_batch_norm=False) < 1e-12


@pytest.mark.parametrize("stale_steps", (0, 1, 3, 7))
def test_a_rate_settles_up_to_the_published_limit(stale_steps):
    limit = 2 * math.sin(math.pi / (4 * stale_steps + 2))
    assert runs.data_parallel.largest_rate(stale_steps) == pytest.approx(limit, rel=5e-3)


def test_a_compressor_sends_what_its_format_takes():
    """A ratio of 1% of 21,600 parameters is 216 entries of 4 + 8 bytes, gathered from 3 others."""
    dense = calc.collective("all_reduce", "ring", 4, 4 * 21_600).sent_bytes
    sparse = calc.collective("all_gather", "ring", 4, 4 * 216 * 12).sent_bytes
    assert runs.data_parallel.compression_factor("top 1%") == pytest.approx(dense / sparse)


def test_a_block_keeps_what_calc_says():
    config = calc.ModelConfig(
        layers=1, hidden=64, heads=8, kv_heads=4, vocab=256, context=64, biases=False
    )
    options = {"flash": True, "dropout": False, "itemsize": 4}
    whole = calc.activation_bytes(config, 2, **options)
    for sequence_parallel in (False, True):
        sharded = calc.activation_bytes(
            config, 2, tp=4, sequence_parallel=sequence_parallel, **options
        )
        share = runs.tensor_parallel.kept_share_of_a_block(sequence_parallel)
        # Left out there: two statistics of each norm's rows.
        assert share == pytest.approx(sharded / whole, rel=0.01)


def test_rows_first_costs_what_calc_says():
    for gated, ffn in ((True, 224), (False, 256)):
        row_first, column_first = (
            float(calc.two_layers_traffic_bytes(128, 64, ffn, 4, row_first=order, gated=gated))
            for order in (True, False)
        )
        assert runs.tensor_parallel.row_first_bytes_ratio(gated) == row_first / column_first


def test_a_gated_mlp_needs_both_sums_forward():
    whole = {"tokens": 1, "hidden": 8192, "ffn": 28672, "tp": 8}
    rows, columns = (
        calc.two_layers_traffic_bytes(**whole, row_first=order, gated=True)
        for order in (True, False)
    )
    assert rows["sums"] == 2 * 7 / 8 * (2 * 28672 + 28672) * 2
    assert rows / columns == 5.75
    assert columns == calc.two_layers_traffic_bytes(**whole)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_stages_hold_what_calc_says(schedule):
    # The head's inputs and the logits belong to one microbatch whatever the order.
    expected = calc.in_flight_microbatches(4, 8, schedule)
    assert runs.pipeline.microbatches_held(schedule) == pytest.approx(expected, rel=0.02)


def test_a_balance_loss_holds_a_router_that_would_collapse():
    assert runs.experts.busiest_expert_over_mean(0.1) < 3 < runs.experts.busiest_expert_over_mean()


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


def test_a_rounding_error_is_even_over_a_step():
    torch.manual_seed(1)
    largest = torch.randn(4096, 128).abs().amax(1)
    expected = ((largest / 7).square().mean() / 12).sqrt().item()  # the mean square of the steps
    assert runs.serving.quantization_error(4, 128) == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("world_size", [2, 4])
def test_adapters_and_trees_send_what_calc_says(world_size):
    def ring(num_bytes):
        return calc.collective("all_reduce", "ring", world_size, num_bytes).sent_bytes

    adapter, matrix = 2 * 256 * 4, 256 * 256
    assert runs.neighbours.adapter_sent_bytes(world_size, True) == ring(4 * adapter)
    assert runs.neighbours.adapter_sent_bytes(world_size, False) == ring(4 * (adapter + matrix))
    for merge, candidates in (("all_reduce", 0), ("reduce_scatter", (world_size - 1) * 48)):
        sent = {runs.neighbours.tree_sent_bytes(world_size, rows, merge) for rows in (1_000, 5_000)}
        times = 1 if merge == "all_reduce" else 1 / 2
        assert sent == {times * ring(8 * 64 * 2 * 8) + candidates}
    assert runs.neighbours.first_unequal_tree(world_size, True) == 10
    assert runs.neighbours.first_unequal_tree(world_size, False) < 10


def test_a_weight_update_sends_each_rank_the_part_that_it_serves():
    whole = runs.reinforcement.whole_weights_bytes()
    assert runs.reinforcement.update_bytes(1) == 2 * whole  # two engines, each of one rank
    # One engine of two ranks: norms and embedding are whole on both.
    of_calc = 2 * float(calc.weight_update_bytes(whole / 4, 2, itemsize=4))
    assert of_calc == whole < runs.reinforcement.update_bytes(2) < 1.05 * whole
    assert runs.reinforcement.updates_over_the_bound(1) == 0


def test_equal_weights_give_equal_bits_only_in_equal_products():
    assert runs.reinforcement.largest_ratio_error("invariant") == 0
    assert 0 < runs.reinforcement.largest_ratio_error("plain") < 1e-4


def test_an_actor_sends_a_gradient_of_all_parameters_or_its_samples():
    hidden, observation, actions = 64, 4, 2
    layers = [(observation, hidden), (hidden, hidden), (hidden, actions), (observation, hidden)]
    layers += [(hidden, hidden), (hidden, 1)]
    parameters = sum((inputs + 1) * outputs for inputs, outputs in layers)
    assert runs.reinforcement.sent_by_an_actor("a3c") == 4 * parameters
    # A sample: observation, action, log-probability, reward, whether the episode ended.
    samples = 32 * 4 * (observation + 4) + 4 * observation
    assert runs.reinforcement.sent_by_an_actor("impala") == 4 * (samples + 1)  # and the version
    assert runs.reinforcement.rollouts_over(2) == 0
