"""Seconds of a step: against an event simulation, against alpha-beta formulas, and by hand."""

import dataclasses
import itertools

import pytest

from labkit import calc
from labkit.calc import Layout
from labkit.calc.hardware import Cluster, Tier
from labkit.calc.plan import Assumptions, Job
from labkit.calc.plan.computing import (
    Product,
    attention_seconds,
    layer_compute,
    layer_work,
    product_seconds,
    score_flops,
)
from labkit.calc.plan.planned_step import step_parts, times
from labkit.calc.plan.seconds import (
    Span,
    all_to_all_seconds,
    half_seconds,
    layer_seconds,
    optimizer_seconds,
    routed_seconds,
    span_of,
)
from labkit.pipeline import Costs, interleaved, one_f_one_b, plan, simulate

A100 = calc.cluster("a100", 64)
JOB = Job("llama2-7b", "megatron_bf16", A100, 64)
GPT = calc.ModelConfig(layers=32, hidden=4096, heads=32, vocab=51200, context=2048)


def simulated(pieces, pp, virtual):
    m = pieces.num_microbatches
    schedule = plan(one_f_one_b, pp, m)
    if virtual > 1:
        schedule = plan(interleaved, pp, m, virtual=virtual)
    costs = Costs(
        forward=pieces.forward_s, input_gradient=pieces.backward_s, weight_gradient=0.0,
        send=pieces.send_s,
    )  # fmt: skip
    return simulate(schedule, costs).makespan


@pytest.mark.parametrize("virtual", [1, 2, 4])
@pytest.mark.parametrize("pp", [2, 4, 8])
@pytest.mark.parametrize("tp", [1, 2])
def test_the_closed_form_is_what_a_simulation_of_the_schedule_has(pp, virtual, tp):
    # Without a vocabulary all stages are equal, and then the closed form is exact.
    config = dataclasses.replace(GPT, vocab=1)
    job = Job(config, "megatron_bf16", A100, 64, assumptions=Assumptions(product_edge=0))
    layout = Layout(world_size=64, tp=tp, pp=pp, virtual=virtual)
    pieces = calc.plan.pieces(job, layout)
    parts = step_parts(job, layout)
    own = sum(parts.values()) - parts["dp"] - parts["optimizer"]
    # But for the embedding's collectives, and the loss of one word.
    assert own == pytest.approx(simulated(pieces, pp, virtual), rel=1e-5 if tp == 1 else 0.01)
    assert parts["pp"] > 0


@pytest.mark.parametrize(("pp", "virtual"), [(2, 1), (8, 1), (4, 2), (8, 4)])
def test_with_a_head_on_the_last_stage_it_is_close(pp, virtual):
    layout = Layout(world_size=64, tp=2, pp=pp, virtual=virtual)
    pieces, parts = calc.plan.pieces(JOB, layout), step_parts(JOB, layout)
    own = sum(parts.values()) - parts["dp"] - parts["optimizer"]
    assert own == pytest.approx(simulated(pieces, pp, virtual), rel=0.03)


@pytest.mark.parametrize("virtual", [1, 2])
def test_the_bubble_of_equal_stages_is_the_textbooks(virtual):
    config = dataclasses.replace(GPT, vocab=1)
    job = Job(config, "megatron_bf16", A100, 64)
    layout = Layout(world_size=64, pp=4, virtual=virtual)
    parts = step_parts(job, layout)
    num = layout.num_microbatches(64)
    schedule = "interleaved" if virtual > 1 else "1f1b"
    ideal = calc.bubble_fraction(4, num, schedule, virtual, relative_to="ideal")
    assert parts["bubble"] / parts["compute"] == pytest.approx(float(ideal), rel=1e-3)


def test_pieces_add_up_to_the_parts_of_the_step():
    layout = Layout(world_size=64, tp=2, pp=4, virtual=2, zero=1)
    pieces, parts, m = calc.plan.pieces(JOB, layout), step_parts(JOB, layout), 8
    of_rank = [
        sum(pieces.forward_s[rank::4]) + sum(pieces.backward_s[rank::4]) for rank in range(4)
    ]
    mine = sum(parts[name] for name in ("compute", "tp", "cp", "ep"))
    assert mine == pytest.approx(m * max(of_rank))
    assert pieces.num_stages == 8 and pieces.num_microbatches == m
    assert sum(pieces.compute_s[3::4]) * m == pytest.approx(parts["compute"])


def test_where_a_group_is_agrees_with_the_layout():
    for tp, cp, pp, per_node in itertools.product((1, 2, 8, 16), (1, 4), (1, 2), (4, 8)):
        layout = Layout(world_size=128, tp=tp, cp=cp, pp=pp)
        job = Job("llama2-7b", "amp", dataclasses.replace(A100, num_gpus=128,
                                                          gpus_per_node=per_node), 128)  # fmt: skip
        for axis in ("tp", "cp", "pp", "dp"):
            inside, nodes = span_of(job, layout, axis)
            assert inside == layout.in_one_node(axis, per_node), (layout, axis)
            assert nodes == -(-layout.sizes[axis] // inside)


def test_collectives_take_what_the_formulas_of_two_tiers_say():
    whole = Job("gpt2", "amp", A100, 64, assumptions=Assumptions(link_share=1.0))
    alpha, beta = (3e-6, 8e-6), (1 / 300e9, 1 / 25e9)
    for inside, nodes in itertools.product((1, 4, 8), (1, 2, 5)):
        n, where = inside * nodes, Span(inside, nodes)
        tiers = calc.collective("all_reduce", "hierarchical", n, 1e9, ranks_per_host=inside)
        expected = tiers.seconds(alpha, beta)
        assert 2 * half_seconds(whole, 1e9, where) == pytest.approx(expected)
    expected = calc.collective("all_to_all", "pairwise", 8, 1e9).seconds(alpha[0], beta[0])
    assert all_to_all_seconds(whole, 1e9, Span(8, 1)) == pytest.approx(expected)
    # Pairwise, one rank on each node: every message is slow.
    apart = calc.collective("all_to_all", "pairwise", 4, 10**9, ranks_per_host=1)
    expected = apart.seconds(alpha, beta)
    assert all_to_all_seconds(whole, 1e9, Span(1, 4)) == pytest.approx(expected)


def test_one_layer_by_hand():
    a = Assumptions(flash=False, product_edge=0, memory_share=1.0)
    cluster = dataclasses.replace(A100, gpu=dataclasses.replace(A100.device, matmul_share=0.5))
    job = Job(GPT, "zero_paper", cluster, 64, assumptions=a)
    dense, _ = layer_seconds(job, Layout(world_size=64, recompute="full"))
    D, T = 4096, 2048
    N = 12 * D * D + 13 * D  # norms and biases, 13 D, multiply nothing
    flops = 24 * D * D * T + 4 * D * T * T
    moved = T * 2 * (10 * D + 4 * D + 6 * D + 2 * D + 16 * D + 4 * 32 * T)
    forward = flops / (0.5 * 312e12) + (moved + 2 * N) / 2039e9
    backward = 2 * flops / (0.5 * 312e12) + (2 * moved + (2 + 2 * 2) * N) / 2039e9
    assert dense.compute_s == pytest.approx((forward, backward + forward))


def test_small_products_are_slower_by_the_edge_of_each_side():
    a = Assumptions(product_edge=100)
    job = Job(GPT, "zero_paper", A100, 64, assumptions=a)
    seconds = product_seconds(job, [Product(1, 2048, 400, 100)])
    plain = 2 * 2048 * 400 * 100 / (job.device.matmul_share * 312e12)
    assert seconds == pytest.approx(plain * 1.25 * 2)


def test_attention_of_longer_sequences_is_closer_to_its_share():
    def share(length, **changes):
        config = dataclasses.replace(GPT, context=length)
        job = Job(config, "amp", "h100", 64, assumptions=Assumptions(**changes))
        return score_flops(job, length) / attention_seconds(job, length) / job.device.flops_per_s

    device = calc.GPUS["h100"]
    assert share(3072) == pytest.approx(device.attention_share / 2)  # the ramp is as long
    assert share(1 << 20) == pytest.approx(device.attention_share, rel=0.01)
    assert share(3072, attention_share=0.18) == pytest.approx(0.18)


def test_fp8_has_its_own_peak_and_pays_for_quantizing():
    """Linear layers only; attention and the head stay in 16 bits."""
    of = {each: Job("llama3-8b", "amp", "h100", 64, precision=each) for each in ("bf16", "fp8")}
    layer = [Product(1, 8192, 4096, 4096)]
    wide, narrow = (product_seconds(of[each], layer) for each in of)
    assert wide == pytest.approx(2 * narrow, rel=1e-3)
    assert product_seconds(of["fp8"], layer, wide=True) == wide
    works = [layer_work(of[each], 8192, 1, 1, True, 0)[0] for each in of]
    assert works[1].moved > works[0].moved and works[1].attention == works[0].attention
    with pytest.raises(ValueError, match="a100-80g has bf16"):
        Job("llama3-8b", "amp", "a100", 64, precision="fp8")


def test_experts_on_few_nodes_get_a_token_once_per_node():
    cluster = dataclasses.replace(A100, fast=Tier(1e12, 0.0), slow=Tier(1e9, 0.0))
    few = Job("mixtral-8x7b", "megatron_bf16", cluster, 64, assumptions=Assumptions(
        expert_nodes=1, link_share=1.0))  # fmt: skip
    # Over two nodes, of eight ranks: half of the tokens go to the other one, once.
    seconds = routed_seconds(few, 1000, 2, 2, Span(8, 2))
    across, inside = 1000 * 4096 * 2 / 2 / 1e9, 7 / 8 * 2 * 1000 * 4096 * 2 / 1e12
    assert seconds == pytest.approx(across + inside)


def test_what_is_overlapped_is_hidden_as_far_as_there_is_computing():
    layout = Layout(world_size=64, tp=8)
    halves = {
        overlap: layer_seconds(
            Job(
                "llama2-7b", "megatron_bf16", A100, 64, assumptions=Assumptions(tp_overlap=overlap)
            ),
            layout,
        )[0].tp_s[0]
        for overlap in (0.0, 0.5)
    }
    assert halves[0.5] == pytest.approx(halves[0.0] / 2)


def test_other_schedules_have_their_share_of_the_bubble():
    layout = Layout(world_size=64, pp=8)
    bubbles = {
        each: step_parts(
            Job("llama2-7b", "megatron_bf16", A100, 64, assumptions=Assumptions(schedule=each)),
            layout,
        )["bubble"]
        for each in ("1f1b", "zb_h1", "dualpipe")
    }
    assert bubbles["zb_h1"] == pytest.approx(bubbles["1f1b"] / 3)
    assert bubbles["dualpipe"] == pytest.approx(bubbles["1f1b"] * 2 / 3 * 3 / 7)


def test_recomputing_costs_a_forward_pass_and_its_collectives():
    plain, again = (
        layer_seconds(JOB, Layout(world_size=64, tp=4, recompute=each))[0]
        for each in ("none", "full")
    )
    assert again.compute_s[1] == pytest.approx(plain.compute_s[1] + plain.compute_s[0])
    assert again.tp_s[1] == pytest.approx(2 * plain.tp_s[0])


def test_a_ring_of_keys_and_values_hides_behind_attention_where_the_link_is_fast_enough():
    seconds = {}
    for bandwidth in (1e9, 25e9):
        cluster = dataclasses.replace(A100, slow=Tier(bandwidth, 1e-6))
        job = Job("llama3-8b", "amp", cluster, 64, sequence=65536)
        seconds[bandwidth] = layer_seconds(job, Layout(world_size=64, tp=8, cp=8))[0].cp_s
    assert seconds[25e9] == (0.0, 0.0)
    assert all(each > 0 for each in seconds[1e9])


@pytest.mark.parametrize(("zero", "times_over"), [(0, (2, 0)), (1, (1, 1)), (3, (8, 16))])
def test_data_parallel_exchanges_by_level(zero, times_over):
    fast = Tier(100e9, 0.0)
    cluster = Cluster(gpu="a100-80g", num_gpus=8, fast=fast, slow=fast)
    a = Assumptions(link_share=1.0, overlap=0.0)
    job = Job(GPT, "megatron_bf16", cluster, 64, assumptions=a)
    layout = Layout(world_size=8, zero=zero)
    half = float(calc.num_parameters(GPT)) * 7 / 8 / 100e9
    expected = times_over[0] * 4 * half + times_over[1] * 2 * half
    assert step_parts(job, layout)["dp"] == pytest.approx(expected)
    # Once in a step, or in each of the 8 microbatches: one gather of zero 3 is in forward.
    found = times(job, layout)
    assert (found.once == [(0.0, 0.0)]) == (zero == 3)
    assert found.dp == [pytest.approx((2 * half, 6 * half) if zero == 3 else (0, 0))]


def test_what_hides_is_the_share_that_can_and_never_more_than_there_is_to_hide_behind():
    def dp_seconds(overlap, bandwidth):
        cluster = Cluster(
            gpu="a100-80g", num_gpus=16, gpus_per_node=1, fast=A100.fast, slow=Tier(bandwidth)
        )
        job = Job(GPT, "megatron_bf16", cluster, 16, assumptions=Assumptions(overlap=overlap))
        layout = Layout(world_size=16, zero=0)
        return step_parts(job, layout)["dp"], times(job, layout)

    exposed, found = dp_seconds(0.25, 100e9)
    assert exposed == pytest.approx(0.75 * found.once[0][0])
    exposed, found = dp_seconds(1.0, 1e9)
    assert exposed == pytest.approx(found.once[0][0] - found.compute[0][1])


@pytest.mark.parametrize("overlap", [0.0, 0.8, 1.0])
def test_exchanges_of_every_microbatch_lengthen_the_bubble_too(overlap):
    job = Job("llama3-8b", "megatron_bf16", A100, 128, assumptions=Assumptions(overlap=overlap))
    layouts = {zero: Layout(world_size=64, pp=4, zero=zero) for zero in (1, 3)}
    bubbles = {zero: step_parts(job, layout)["bubble"] for zero, layout in layouts.items()}
    in_each = [sum(each) for each in times(job, layouts[3]).dp]
    # The slowest stage is the same: the others wait for the exchanges of three more.
    assert bubbles[3] - bubbles[1] == pytest.approx(sum(in_each) - in_each[-1], rel=1e-9)
    assert bubbles[3] >= bubbles[1] + 3 * (1 - overlap) * min(in_each)


def test_the_rank_that_ends_last_is_the_one_whose_exchange_counts():
    """The first of equal ranks counts: the others finish earlier, by one backward each."""
    job = Job("llama3-8b", "megatron_bf16", A100, 128, assumptions=Assumptions(overlap=0.0))
    layout = Layout(world_size=64, pp=4, zero=1)
    found = times(job, layout)
    assert step_parts(job, layout)["dp"] == pytest.approx(sum(found.once[0]))
    assert sum(found.once[3]) == pytest.approx(sum(found.once[0]), rel=1e-3)


def test_zero_2_reduces_once_for_a_round_where_stages_are_virtual():
    plain, virtual = (
        times(JOB, Layout(world_size=64, tp=2, pp=4, virtual=each, zero=2)) for each in (1, 2)
    )
    assert plain.num_microbatches == 8
    # 4 stages a round: of two reduces of half as much, a fourth in each microbatch.
    reduced = [sum(back for _, back in each.dp) / len(each.dp) for each in (plain, virtual)]
    assert reduced[0] == pytest.approx(4 * 2 * reduced[1], rel=0.01)


def test_experts_far_apart_cost_all_to_alls():
    job = Job("mixtral-8x7b", "megatron_bf16", A100, 64)
    near, far = Layout(world_size=64, ep=8), Layout(world_size=64, tp=8, ep=8)
    assert step_parts(job, Layout(world_size=64))["ep"] == 0
    # 2 of 8 experts for each token, there and back, forward and backward, in 32 layers.
    for layout, num, where in ((near, 1, Span(8, 1)), (far, 8, Span(1, 8))):
        nbytes = 32768 / layout.tp * 2 * 4096 * 2
        one = all_to_all_seconds(job, nbytes, where)
        assert step_parts(job, layout)["ep"] == pytest.approx(num * 32 * 4 * one)


def test_a_ring_sends_keys_forward_and_keys_and_their_gradients_backward():
    cluster = dataclasses.replace(A100, slow=Tier(1e6, 0.0))  # so slow that nothing hides
    job = Job("llama3-8b", "amp", cluster, 64, assumptions=Assumptions(link_share=1.0))
    forward, backward = layer_seconds(job, Layout(world_size=64, tp=8, cp=8))[0].cp_s
    numbers = 7 * 1024 * 2 * 1024 / 8
    assert forward == pytest.approx(numbers * 2 / 1e6, rel=0.01)
    assert backward == pytest.approx(numbers * (2 + 4) / 1e6, rel=0.01)


def test_tensor_parallelism_takes_four_halves_each_way():
    layout = Layout(world_size=64, tp=8)
    half = half_seconds(JOB, 4096 * 4096 * 2, Span(8, 1))
    assert layer_seconds(JOB, layout)[0].tp_s == pytest.approx((4 * half, 4 * half))


def test_scores_with_flash_are_the_masked_half_and_half_a_block():
    job = Job(GPT, "amp", A100, 64)
    assert score_flops(job, 10) == 10 * 2 * 32 * (128 + 128) * (1024 + 64)


def test_quantizing_moves_four_bytes_of_each_input_and_each_weight():
    wide, narrow = (
        layer_work(Job("llama3-8b", "amp", "h100", 64, precision=each), 8192, 1, 1, True, 0)[0]
        for each in ("bf16", "fp8")
    )
    numbers = 8192 * (3 * 4096 + 14336) + 218_112_000
    assert narrow.moved - wide.moved == pytest.approx(4 * numbers / (0.85 * 3350e9))


def test_a_token_of_experts_is_permuted_and_brought_back():
    job = Job("mixtral-8x7b", "megatron_bf16", A100, 64)
    one, two = (layer_work(job, each, 1, 1, True, 2)[0].moved for each in (1024, 2048))
    D = 4096
    linear = 4 * D + 4 * D + 4 * 1024 + 6 * 2 * 14336
    expected = 1024 * 2 * (10 * D + 4 * 2 * D + linear) / (0.85 * 2039e9)
    assert two - one == pytest.approx(expected)


def test_recomputing_by_operations_and_of_latent_attention():
    def again(job, recompute, num_experts=0):
        seconds = (layer_compute(job, 4096, 1, 1, True, each, num_experts)[1]
                   for each in (recompute, "none"))  # fmt: skip
        return next(seconds) - next(seconds)

    work, _ = layer_work(JOB, 4096, 1, 1, True, 0)
    assert again(JOB, "operations") == pytest.approx(work.products / 2 + work.moved)
    a = Assumptions(product_edge=0)
    latent = Job("deepseek-v3", "megatron_bf16", "h100", 64, assumptions=a)
    weights = 1536 * 128 * (128 + 64) + 512 * 128 * (128 + 128)
    expected = 2 * 4096 * weights / (0.68 * 989.4e12)
    assert again(latent, "selective", 8) == pytest.approx(expected)


def test_a_ring_of_more_ranks_than_key_value_heads_sends_one_head_of_each():
    cluster = dataclasses.replace(A100, slow=Tier(1e6, 0.0))  # so slow that nothing hides
    a = Assumptions(link_share=1.0)
    job = Job("llama3-8b", "amp", cluster, 64, assumptions=a)
    forward, _ = layer_seconds(job, Layout(world_size=64, tp=16, cp=4))[0].cp_s
    assert forward == pytest.approx(3 * 2048 * 2 * 128 * 2 / 1e6, rel=0.01)
    gathered = dataclasses.replace(job, assumptions=dataclasses.replace(a, context="gather"))
    both = layer_seconds(gathered, Layout(world_size=64, tp=8, cp=8))[0].cp_s
    assert both == pytest.approx((7 / 8 * 8192 * 2 * 128 * 2 / 1e6,) * 2)


def test_ranks_that_cut_an_expert_exchange_its_tokens_among_themselves():
    job = Job("mixtral-8x7b", "megatron_bf16", A100, 64)
    _, experts = layer_seconds(job, Layout(world_size=64, tp=8, etp=2))
    nbytes = 32768 * 4096 * 2
    attention = half_seconds(job, nbytes, Span(8, 1))
    mlp = half_seconds(job, 2 * nbytes * 2 / 8, Span(2, 1))
    assert experts.tp_s[0] == pytest.approx(2 * attention + 2 * mlp)


@pytest.mark.parametrize(
    ("options", "times_over"),
    [
        # 3/4 of 4 bytes, two halves of 1/2 of a shard's 1 byte, 3/4 of 2 bytes
        ({"zero": 1, "shards": 4}, 3 + 1 + 1.5),
        ({"zero": 3, "reshard_after_forward": False}, 8 * 7 / 8 * (4 + 2)),
    ],
)
def test_exchanges_with_copies_of_shards_and_of_units_that_are_kept(options, times_over):
    link = Tier(100e9, 0.0)
    cluster = Cluster(gpu="a100-80g", num_gpus=8, fast=link, slow=link)
    a = Assumptions(link_share=1.0, overlap=0.0)
    job = Job(GPT, "megatron_bf16", cluster, 64, assumptions=a)
    layout, num = Layout(world_size=8, **options), float(calc.num_parameters(GPT))
    assert step_parts(job, layout)["dp"] == pytest.approx(times_over * num / 100e9)
    # States are read and written, gradients read, parameters written.
    share = num / layout.num_shards
    expected = (2 * 12 + 4 + 2) * share / (0.85 * 2039e9)
    assert optimizer_seconds(job, layout) == pytest.approx(expected)
