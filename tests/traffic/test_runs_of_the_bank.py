"""The runs behind the cards on splitting, pipelines and experts give what calc says.

calc's formulas were written without them, and the other way round.
"""

import pytest

from labkit import calc
from labkit.calc.traffic.tensor import tensor_parallel_collectives
from labkit.interview import runs

SCHEDULES = [("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("interleaved", 4)]
SCHEDULES += [("zb_h1", 1), ("zb_h2", 1)]


@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_a_block_has_the_all_reduces_of_the_paper(phase):
    of_one, of_two = (tensor_parallel_collectives(layers)[phase] for layers in (1, 2))
    expected = of_two["all_reduce"] - of_one["all_reduce"]
    assert runs.tensor_parallel.all_reduces_of_a_block(phase) == expected == 2


@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_sequence_sharded_features_send_what_calc_says(phase):
    with_shards, without = (
        calc.tensor_parallel_traffic_bytes("gpt2", 1, 4, sequence_parallel=form)[f"layers, {phase}"]
        for form in (True, False)
    )
    measured = runs.tensor_parallel.sequence_parallel_bytes_ratio(phase)
    assert measured == pytest.approx(float(with_shards) / float(without))


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_a_block_keeps_what_calc_says(sequence_parallel):
    config = calc.ModelConfig(
        layers=1, hidden=64, heads=8, kv_heads=4, vocab=256, context=64, biases=False
    )
    options = {"flash": True, "dropout": False, "itemsize": 4}
    shared = {"tp": 4, "sequence_parallel": sequence_parallel, **options}
    expected = calc.activation_bytes(config, 2, **shared) / calc.activation_bytes(
        config, 2, **options
    )
    # Left out there: two statistics of each norm's rows.
    assert runs.tensor_parallel.kept_share_of_a_block(sequence_parallel) == pytest.approx(
        expected, rel=0.01
    )


@pytest.mark.parametrize("gated", [False, True])
def test_rows_first_costs_what_calc_says(gated):
    ffn = 224 if gated else 256
    either = (
        calc.two_layers_traffic_bytes(128, 64, ffn, 4, row_first=row_first, gated=gated)
        for row_first in (True, False)
    )
    row_first, column_first = map(float, either)
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


def test_fsdp2_gathers_for_backward_within_smaller_groups_if_told_so():
    assert runs.zero.ranks_of_gathers("default") == (4, 4)
    assert runs.zero.ranks_of_gathers("backward over pairs") == (4, 2)
    assert runs.zero.ranks_of_gathers("two replicas") == (2, 2)
    assert runs.zero.all_reduces_between_replicas() == 1


def test_a_token_of_the_loss_takes_three_numbers():
    sent = calc.tensor_parallel_traffic_bytes("gpt2", 1, 4, sequence=64)["loss"]
    numbers = float(sent) / (2 * 3 / 4) / 64
    assert runs.tensor_parallel.loss_payload_bytes_per_token() == numbers


def test_without_f_the_gradient_is_shorter():
    assert 0.2 < runs.tensor_parallel.gradient_without_f() < 0.8


@pytest.mark.parametrize("phase", ["forward", "backward"])
@pytest.mark.parametrize("strategy", ["gathered", "ring", "ulysses"])
def test_attention_over_a_cut_sequence_sends_what_calc_says(strategy, phase):
    options = {"num_heads": 4, "head_dim": 16, "itemsize": 4, "placement": "zigzag"}
    parts = calc.context_traffic_bytes(strategy, 256, 4, 0, **options).parts
    sent = sum(float(part) for name, part in parts.items() if name.startswith(phase))
    own = 2 * 4 * 64 * 16 * 4
    assert runs.long_sequences.own_keys_sent(strategy, phase) == sent / own


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_stages_hold_what_calc_says(schedule):
    # The head's inputs and the logits belong to one microbatch whatever the order.
    expected = calc.in_flight_microbatches(4, 8, schedule)
    assert runs.pipeline.microbatches_held(schedule) == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize(("schedule", "virtual"), SCHEDULES)
@pytest.mark.parametrize("relative_to", ["total", "ideal"])
def test_the_simulated_bubble_is_that_of_the_formula(schedule, virtual, relative_to):
    simulated_share = runs.pipeline.bubble(8, 16, schedule, virtual, relative_to)
    formula = calc.bubble_fraction(8, 16, schedule, virtual, relative_to)
    assert simulated_share == pytest.approx(float(formula))


def test_pipedream_holds_a_version_for_each_update_and_one():
    for stage in range(4):
        assert (
            runs.pipeline.versions_alive(stage)
            == runs.pipeline.updates_behind(stage) + 1
            == 4 - stage
        )


def test_losses_that_are_added_up_make_the_gradient_as_many_times_too_large():
    assert runs.pipeline.summed_over_mean_gradient() == pytest.approx(4)


def test_messages_cost_1f1b_more_than_gpipe():
    assert runs.pipeline.time_of_1f1b_over_gpipe(0) == 1
    assert runs.pipeline.time_of_1f1b_over_gpipe(0.5) > 1


def test_the_best_cut_is_no_worse_than_an_even_one():
    slowest = {cut: runs.pipeline.slowest_stage_in_blocks(cut) for cut in ("even", "balanced")}
    assert runs.pipeline.head_in_blocks() > 3
    assert slowest["balanced"] < slowest["even"]
    formula = float(calc.bubble_fraction(4, 16))
    assert (
        formula < runs.pipeline.bubble_of_a_cut("balanced") < runs.pipeline.bubble_of_a_cut("even")
    )


def test_rows_travel_there_and_back():
    assert (
        runs.experts.all_to_alls_of_rows("forward")
        == runs.experts.all_to_alls_of_rows("backward")
        == 2
    )
    sizes = {"num_experts": 8, "top_k": 2, "hidden": 48, "itemsize": 4}
    said = calc.balanced_expert_traffic_bytes(256, 4, **sizes)
    sent = float(said["forward, dispatch"]) + float(said["forward, combine"])
    # Over all ranks a random router is nearly as good as a balanced one.
    assert runs.experts.own_tokens_sent() == pytest.approx(sent / (256 * 48 * 4), rel=0.02)


def test_a_router_that_leans_drops_more_and_makes_a_rank_wait():
    assert runs.experts.imbalance(leaning=True) > 2 > 1.5 > runs.experts.imbalance(leaning=False)
    for factor in (1.0, 1.25, 2.0):
        leaning, random = (
            runs.experts.dropped_share(factor, leaning=each) for each in (True, False)
        )
        assert leaning > random
    shares = [runs.experts.dropped_share(factor, leaning=True) for factor in (1.0, 1.25, 2.0)]
    assert shares == sorted(shares, reverse=True)


def test_collapse_costs_as_much_as_there_are_experts():
    for num_experts in (4, 8):
        assert runs.experts.collapsed_balance_loss(num_experts) == pytest.approx(num_experts)
        assert runs.experts.undecided_balance_loss(num_experts) == pytest.approx(1)


def test_a_router_left_alone_collapses_and_a_loss_holds_it():
    assert 3.5 < runs.experts.busiest_expert_over_mean() <= 4
    assert runs.experts.busiest_expert_over_mean(0.1) < 3


def test_an_expert_averaged_over_its_copies_is_ep_times_too_large():
    assert runs.experts.expert_gradient_too_large() == pytest.approx(2)
