"""The planner's memory of one GPU, against calc.footprint, against all ranks, and by hand."""

import dataclasses
import itertools

import pytest

from labkit import calc
from labkit.calc import Layout, TrainingSetup
from labkit.calc.plan import Assumptions, Job
from labkit.calc.plan.gpu_memory import (
    fullest,
    held_by_ranks,
    layer_counts,
    layers_of_rank,
    rank_parts,
)
from labkit.calc.plan.layout_rules import refusal

WORLD = 64
MIXTRAL, DEEPSEEK = calc.MODELS["mixtral-8x7b"], calc.MODELS["deepseek-v3"]
LLAMA2_7B = int(calc.num_parameters("llama2-7b"))


def job_of(model, num_gpus=WORLD, batch=256, recipe="megatron_bf16", **changes):
    cluster = calc.cluster("h100", num_gpus)
    return Job(model, recipe, cluster, batch, assumptions=Assumptions(**changes))


def total(parts):
    return sum(float(part) for part in parts.values())


def working(job, layouts, least):
    found = [each for each in layouts if refusal(job, each) is None]
    assert len(found) >= least, f"only {len(found)} layouts say something here"
    return found


def some_layouts(**fixed):
    shapes = itertools.product(
        (1, 2, 8), (1, 2, 8), (1, 2), (1, 2), (0, 1, 2, 3), ("none", "selective", "full")
    )
    for tp, pp, cp, virtual, zero, recompute in shapes:
        if tp * pp * cp <= WORLD and (virtual == 1 or pp > 1):
            yield Layout(
                world_size=WORLD, tp=tp, pp=pp, cp=cp, virtual=virtual, zero=zero,
                recompute=recompute, **fixed,
            )  # fmt: skip


STATES = ("parameters", "gradients", "moments", "master", "optimizer")


@pytest.mark.parametrize(
    ("flash", "microbatch", "sequence_parallel"), [(True, 1, False), (False, 2, True)]
)
def test_a_dense_model_is_counted_as_footprint_counts_it_but_for_the_place_of_its_states(
    flash, microbatch, sequence_parallel
):
    job = job_of("llama2-7b", flash=flash, fused=flash)
    fixed = {"microbatch": microbatch, "sequence_parallel": sequence_parallel}
    for layout in working(job, some_layouts(**fixed), least=100):
        if layout.zero == 2 and layout.virtual > 1:
            continue  # a whole virtual stage's gradients: the next test
        setup = TrainingSetup(
            model="llama2-7b", recipe="megatron_bf16", zero=layout.zero, dp=layout.dp,
            tp=layout.tp, pp=layout.pp, cp=layout.cp, virtual=layout.virtual,
            num_microbatches=layout.num_microbatches(256), microbatch=microbatch,
            recompute=layout.recompute, sequence_parallel=sequence_parallel,
            flash=flash, fused=flash, loss="fused",
        )  # fmt: skip
        for rank in range(layout.pp):
            expected = calc.footprint(setup, rank)
            held = calc.plan.memory(job, layout, rank)
            assert held.parts.keys() == expected.parts.keys()
            for name, part in held.parts.items():
                at_its_place = 1.0
                if name in STATES or (name == "whole units" and layout.keeps_units):
                    own = -(-by_hand(calc.MODELS["llama2-7b"], layout, rank) // layout.tp)
                    mean = -(-LLAMA2_7B // (layout.tp * layout.pp))
                    at_its_place = own / mean
                # Shards are rounded up, to whole numbers.
                mean_part = float(expected.parts[name])
                assert float(part) == pytest.approx(at_its_place * mean_part, rel=1e-6), name


def by_hand(config, layout, rank):
    """Parameters of a rank of a dense model without biases, head not tied, before tp cuts them."""
    layers = calc.num_parameters(dataclasses.replace(config, layers=config.layers + 1))
    layer = int(layers) - int(calc.num_parameters(config))
    own = layers_of_rank(config, layout, rank).total * layer
    table = config.vocab * config.hidden
    own += table if rank == 0 else 0
    return own + (table + config.hidden if rank == layout.pp - 1 else 0)


def test_the_ends_of_a_pipeline_hold_more_than_a_share_of_the_parameters():
    """llama3-8b on 8 stages: 1.398B at both ends, where N / 8 is 1.004B."""
    config = calc.MODELS["llama3-8b"]
    layout = Layout(world_size=8, pp=8)
    held = [each.total for each in held_by_ranks(config, layout)]
    assert held == [by_hand(config, layout, rank) for rank in range(8)]
    assert held[0] == pytest.approx(1.39 * int(calc.num_parameters(config)) / 8, rel=5e-3)
    assert sum(held) == int(calc.num_parameters(config))


@pytest.mark.parametrize("model", ["gpt2", "llama3-405b", "mixtral-8x7b", "deepseek-v3"])
@pytest.mark.parametrize(("pp", "virtual"), [(1, 1), (2, 1), (3, 1), (4, 1), (6, 1), (6, 2)])
def test_all_stages_together_hold_the_model_and_a_copy_of_what_is_tied(model, pp, virtual):
    config = calc.MODELS[model]
    if layer_counts(config.layers, pp * virtual, virtual) is None:
        return  # a rule refuses it
    held = held_by_ranks(config, Layout(world_size=pp, pp=pp, virtual=virtual))
    copies = config.vocab * config.hidden if config.tied and pp > 1 else 0
    assert sum(each.total for each in held) == int(calc.num_parameters(config)) + copies


def test_a_layout_that_its_ends_alone_break_does_not_fit():
    """70B on 8 stages: 83.3 GB on the first, where N / 8 would be 78.0 of 81.6 GB."""
    job = job_of("llama3-70b", num_gpus=128, batch=1024, loss="unfused")
    layout = Layout(world_size=128, pp=8, zero=1, recompute="full")
    found = calc.plan.verdict(job, layout)
    first, mean = held_by_ranks(job.config, layout)[0].total, 70_553_706_496 / 8
    assert first == pytest.approx(1.089 * mean, rel=1e-3)
    per_parameter = 6 + 12 / layout.dp
    assert not found and found.over_bytes < per_parameter * (first - mean)


def test_zero_2_keeps_the_gradients_of_one_virtual_stage_whole():
    job = job_of("llama2-7b")
    layout = Layout(world_size=WORLD, tp=1, pp=4, virtual=2, zero=2)
    layer = calc.num_parameters(dataclasses.replace(calc.MODELS["llama2-7b"], layers=1))
    one = sum(float(layer[part]) for part in ("attention", "mlp")) + 2 * 4096
    assert float(rank_parts(job, layout, 1)["whole units"]) == 4 * 4 * one


@pytest.mark.parametrize("model", ["llama2-7b", "llama3-405b", "mixtral-8x7b", "deepseek-v3"])
def test_no_other_rank_is_fuller_than_the_fullest(model):
    job = job_of(model, batch=512)
    layouts = [
        Layout(world_size=WORLD, tp=tp, pp=pp, virtual=virtual, zero=zero, recompute=recompute)
        for tp, pp, virtual, zero, recompute in itertools.product(
            (1, 8), (2, 8, 16, 32), (1, 2, 4), (0, 2, 3), ("none", "full")
        )
        if tp * pp <= WORLD
    ]
    for layout in working(job, layouts, least=20):
        of_all = [total(rank_parts(job, layout, rank)) for rank in range(layout.pp)]
        assert total(fullest(job, layout)[1]) == max(of_all), layout


def test_experts_are_cut_by_ep_and_sharded_over_what_is_left_of_dp():
    job = job_of(MIXTRAL, recipe="zero_paper")
    layout = Layout(world_size=64, tp=2, pp=2, ep=4, zero=1)
    counted = calc.num_parameters(MIXTRAL)
    experts = int(counted["experts"])
    table = int(counted["embedding"])
    # Half of the layers and the embedding: what is left without head and last norm.
    others = ((int(counted) - experts - 2 * table - 4096) // 2 + table) // 2
    mine = experts // (2 * 2 * 4)
    held = rank_parts(job, layout, 0)
    assert float(held["parameters"]) == 2 * (others + mine)
    assert float(held["moments"]) == 8 * (-(-others // 16) + mine // (16 // 4))


def test_a_layer_with_experts_keeps_the_mlps_of_k_experts_and_their_inputs_and_outputs():
    job = job_of(MIXTRAL, fused=False)
    layout = Layout(world_size=64, pp=2, microbatch=1)
    D, F, T = 4096, 14336, 32768
    attention = 4 * D + 4 * D + 2 * (D + 2 * 1024) + 4 * 32 + 2 * D
    per_token = attention + 2 * (4 * 2 * F) + 2 * 2 * D * 2
    assert float(rank_parts(job, layout, 0)["activations"]) == 2 * 16 * T * per_token


@pytest.mark.parametrize(
    ("layers", "num_stages", "virtual", "expected"),
    [
        (8, 4, 1, (2, 2, 2, 2)),
        (126, 128, 8, (0, *(1,) * 126, 0)),
        (126, 16, 1, (7, *(8,) * 14, 7)),
        (61, 4, 1, (16, 15, 15, 15)),
        (61, 8, 2, None),
        (3, 4, 1, None),
    ],
)
def test_layers_are_cut_equally_or_balanced_or_not_at_all(layers, num_stages, virtual, expected):
    assert layer_counts(layers, num_stages, virtual) == expected


def test_the_first_layers_have_no_experts():
    found = [layers_of_rank(DEEPSEEK, Layout(world_size=16, pp=16), rank) for rank in range(16)]
    assert found[0] == (3, 1) and found[1] == (0, 4)
    assert sum(each.total for each in found) == 61


def test_fewer_microbatches_than_stages_are_all_that_is_in_flight():
    few = TrainingSetup(model="llama2-7b", pp=8, num_microbatches=2)
    enough = dataclasses.replace(few, num_microbatches=None)
    held = [float(calc.footprint(each, 0)["activations"]) for each in (few, enough)]
    assert held[0] == held[1] * 2 / 8


def test_a_fused_mlp_keeps_three_tensors_and_not_four():
    whole, fused = (
        calc.activation_bytes("llama2-7b", 1, flash=True, dropout=False, fused=fused)
        for fused in (False, True)
    )
    assert float(whole - fused) == 32 * 4096 * 2 * 11008
    for each in (True, False):  # not gated: input and output of its one function
        same = calc.activation_bytes("gpt2", 1, fused=each)
        assert same == calc.activation_bytes("gpt2", 1)


def test_experts_have_a_tensor_size_of_their_own():
    """8 experts on 8 ranks of tp, whole: one on each. Others are cut by tp as before."""
    job = job_of(MIXTRAL, recipe="zero_paper")
    folded, cut = (Layout(world_size=64, tp=8, ep=ep, etp=etp) for ep, etp in ((8, 1), (1, None)))
    own, alike = (held_by_ranks(MIXTRAL, each)[0] for each in (folded, cut))
    assert own == alike  # 1 of 8 experts, or an eighth of all
    assert folded.expert_shards == cut.expert_shards == 8
    seconds = [calc.plan.estimate(job, each).step.parts for each in (folded, cut)]
    assert float(seconds[0]["tp"]) < float(seconds[1]["tp"]) and "ep" in seconds[0]
    every = held_by_ranks(MIXTRAL, Layout(world_size=64, tp=8, etp=1))[0]
    assert every.experts == 8 * own.experts and every.others == own.others


def test_experts_over_cp_hold_fewer_each():
    by_dp, over_both = (Layout(world_size=16, cp=4, ep=ep) for ep in (4, 8))
    assert (
        held_by_ranks(MIXTRAL, by_dp)[0].experts == 2 * held_by_ranks(MIXTRAL, over_both)[0].experts
    )
    assert (by_dp.expert_shards, over_both.expert_shards) == (4, 2)
    job = job_of(MIXTRAL, num_gpus=16, batch=16)
    assert calc.plan.memory(job, over_both)["gradients"] < calc.plan.memory(job, by_dp)["gradients"]


def test_more_ranks_of_tp_than_key_value_heads_have_copies():
    config = dataclasses.replace(calc.MODELS["llama3-8b"], kv_heads=2)
    D, K, layers = 4096, 128, 32
    of = {tp: held_by_ranks(config, Layout(world_size=tp, tp=tp))[0].total for tp in (1, 2, 8)}
    assert of[2] == -(-of[1] // 2)
    copies = layers * 2 * D * K * (1 - 2 / 8)
    assert of[8] == pytest.approx(of[1] / 8 + copies, abs=1)
    token = {
        tp: float(calc.activation_bytes(config, 1, tp, dropout=False)["query, key, value"])
        for tp in (2, 8)
    }
    assert token[8] == layers * 8192 * 2 * (D / 8 + 2 * K)
    assert token[2] == layers * 8192 * 2 * (D / 2 + 2 * K)


def test_stages_have_the_layers_that_are_given():
    job = job_of("llama2-7b", num_gpus=4, batch=16, recipe="zero_paper")
    layout = Layout(world_size=4, pp=4, stages=(5, 9, 9, 9))
    held = held_by_ranks(job.config, layout)
    assert sum(each.total for each in held) == LLAMA2_7B
    layers = [layers_of_rank(job.config, layout, rank).total for rank in range(4)]
    assert layers == [5, 9, 9, 9]
    assert total(fullest(job, layout)[1]) == max(
        total(rank_parts(job, layout, rank)) for rank in range(4)
    )
    even = calc.plan.estimate(job, dataclasses.replace(layout, stages=None))
    assert calc.plan.estimate(job, layout).step > even.step
    refused = refusal(job, dataclasses.replace(layout, stages=(1, 2, 2, 3)))
    assert refused and "give 8+8+8+8" in refused.reason


def test_zero_3_keeps_units_through_a_pipeline_and_sends_them_once():
    job = job_of("llama2-7b", batch=512)
    kept = Layout(world_size=WORLD, pp=2, zero=3)
    passing = dataclasses.replace(kept, reshard_after_forward=True)
    of_both = [calc.plan.estimate(job, each) for each in (kept, passing)]
    own = held_by_ranks(job.config, kept)[0].total
    assert float(of_both[0].memory["whole units"]) == (2 + 4) * own
    assert of_both[1].memory < of_both[0].memory
    assert float(of_both[0].step["dp"]) < float(of_both[1].step["dp"])
    assert not of_both[0].warnings and "gathered" in of_both[1].warnings[0]
    alone = [Layout(world_size=WORLD, zero=3, reshard_after_forward=each) for each in (False, None)]
    once, twice = (float(calc.plan.estimate(job, each).step["dp"]) for each in alone)
    assert once < twice


def test_copies_of_shards_hold_more_and_gather_inside_a_node():
    job = job_of("llama2-7b")
    whole, hybrid = (Layout(world_size=WORLD, zero=3, shards=each) for each in (None, 8))
    of_both = [calc.plan.estimate(job, each) for each in (whole, hybrid)]
    moments = [float(each.memory["moments"]) for each in of_both]
    assert moments[1] == pytest.approx(8 * moments[0], rel=1e-6)
    assert float(of_both[1].step["dp"]) < float(of_both[0].step["dp"])


@pytest.mark.parametrize("recompute", ["full", "operations"])
def test_every_second_layer_that_recomputes_saves_half(recompute):
    job = job_of("llama2-7b")
    none, every, second = (
        calc.plan.estimate(job, Layout(world_size=WORLD, recompute=how, recompute_every=n))
        for how, n in (("none", 1), (recompute, 1), (recompute, 2))
    )
    for of in (
        lambda each: float(each.memory["activations"]),
        lambda each: float(each.step["compute"]),
        lambda each: float(each.hfu) / float(each.mfu),
    ):
        assert of(none) != of(every)
        assert of(second) == pytest.approx((of(none) + of(every)) / 2)
    setup = TrainingSetup(model="llama2-7b", recompute=recompute, recompute_every=2)
    alike = dataclasses.replace(setup, recompute_every=1), TrainingSetup(model="llama2-7b")
    half = sum(float(calc.footprint(each)["activations"]) for each in alike) / 2
    assert float(calc.footprint(setup)["activations"]) == half


@pytest.mark.parametrize("mixer", ["recurrent", "none"])
def test_layers_that_the_planner_does_not_count_are_refused(mixer):
    hybrid = dataclasses.replace(
        calc.MODELS["llama2-7b"], pattern=((mixer, "dense"), ("full", "dense")),
        recurrent_state=8, recurrent_parameters=8,
    )  # fmt: skip
    with pytest.raises(ValueError, match=f"'{mixer}' layers: .*calc.cache_bytes"):
        job_of(hybrid)


def test_windowed_layers_attend_to_fewer_tokens_in_step_and_mfu():
    long = {"context": 32768}
    full = dataclasses.replace(calc.MODELS["llama2-7b"], **long)
    windowed = dataclasses.replace(
        full, pattern=(("window", "dense"), ("full", "dense")), window=1024
    )
    layout = Layout(world_size=WORLD, tp=8)
    of_full, of_window = (
        calc.plan.estimate(job_of(each, batch=64), layout) for each in (full, windowed)
    )
    assert of_window.step < 0.9 * float(of_full.step)
    assert float(of_window.mfu) == pytest.approx(float(of_full.mfu), rel=0.1)


def kept_of_a_layer(model, recompute="none", precision="bf16", **layout):
    job = Job(model, "zero_paper", calc.cluster("h100", 8), 8, 4096, precision=precision)
    shape = Layout(world_size=8, recompute=recompute, **layout)
    layers = layers_of_rank(job.config, shape, 0).total
    return float(rank_parts(job, shape, 0)["activations"]) / layers / 4096


@pytest.mark.parametrize("tp", [1, 4])
def test_fp8_keeps_inputs_of_linear_layers_in_one_byte(tp):
    # With 8,192 features, 28,672 in the MLP: two norms' outputs and the product have a byte less,
    # and the input of the output layer is a copy in 8 bits.
    whole, in_8 = (kept_of_a_layer("llama3-70b", precision=each, tp=tp) for each in ("bf16", "fp8"))
    assert whole - in_8 == pytest.approx((2 * 8192 + 28672 - 8192) / tp)


def test_selective_recomputation_keeps_compressed_keys_and_no_outputs_of_experts():
    experts = dataclasses.replace(DEEPSEEK, dense_layers=0)
    expanded, compressed = 2 * 3 * 128 * 171, 2 * (1536 + 512 + 64)
    less = kept_of_a_layer(experts) - kept_of_a_layer(experts, "selective")
    assert less == pytest.approx(expanded - compressed + 2 * 8 * 7168)
    mixtral = kept_of_a_layer(MIXTRAL) - kept_of_a_layer(MIXTRAL, "selective")
    assert mixtral == pytest.approx(2 * 2 * 4096)


def test_deepseek_v3_in_fp8_keeps_what_its_experts_get_in_one_byte():
    whole, in_8 = (kept_of_a_layer("deepseek-v3", "selective", each) for each in ("bf16", "fp8"))
    of_dense = 2 * 7168 + 18432 - 128 * 128
    of_experts = 7168 + 8 * 7168 + 9 * 2048 - 128 * 128
    assert whole - in_8 == pytest.approx((3 * of_dense + 58 * of_experts) / 61)
