"""FLOPs, time, pipelines and checkpoints by formula, each against another way to count."""

import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit import calc

LLAMA = calc.MODELS["llama3-8b"]


def test_a_token_takes_six_operations_per_parameter_and_attention_by_its_pairs():
    num = int(calc.num_parameters(LLAMA))
    scores = 12 * 32 * 4096 * 8192
    assert calc.flops_per_token(LLAMA) == 6 * num + scores
    assert calc.flops_per_token(LLAMA, causal=True) == 6 * num + scores / 2
    assert calc.flops_per_token(LLAMA, attention=False) == 6 * num
    assert calc.flops_per_token(LLAMA, sequence=1024)["attention"] == scores / 8


def test_forward_alone_is_a_third_and_full_recomputation_a_third_more():
    training = calc.flops_per_token(LLAMA)
    assert calc.flops_per_token(LLAMA, training=False) / training == pytest.approx(1 / 3)
    assert calc.flops_per_token(LLAMA, recompute="full") / training == pytest.approx(4 / 3)
    whole = calc.training_flops(1e9, 1e9)
    assert calc.training_flops(1e9, 1e9, "full") / whole == pytest.approx(4 / 3)
    again = calc.flops_per_token(LLAMA, recompute="full")
    assert again["recomputed"] == calc.flops_per_token(LLAMA, training=False)
    assert again["parameters"] == training["parameters"]


def test_forward_alone_has_nothing_to_recompute():
    with pytest.raises(ValueError, match="recompute='full' with training=False"):
        calc.flops_per_token(LLAMA, training=False, recompute="full")


@pytest.mark.parametrize("recompute", [[], {}, None, "some"])
def test_another_recomputation_is_refused_by_name(recompute):
    said = re.escape(f"recompute={recompute!r}: give 'none' or 'full'")
    for call in (
        lambda: calc.flops_per_token(LLAMA, recompute=recompute),
        lambda: calc.training_flops(1e9, 1e9, recompute),
        lambda: calc.training_days(1e9, 1e9, 8, 1e12, recompute=recompute),
    ):
        with pytest.raises(ValueError, match=said):
            call()


@pytest.mark.parametrize("recompute", [{}, {"recompute": "none"}, {"recompute": "full"}])
def test_the_days_of_training_are_those_of_its_operations(recompute):
    days = calc.training_days(1e12, 7e9, 64, 4e14, **recompute)
    work = calc.training_flops(7e9, 1e12, **recompute)
    assert float(days) == pytest.approx(float(work) / (64 * 4e14))


@pytest.mark.parametrize(
    ("name", "tables", "head"),
    [("llama3-8b", 1, 1), ("gpt2", 1, 0), ("llama3.2-1b", 1, 0)],
    ids=["untied", "tied, learned positions", "tied"],
)
def test_what_counts_as_a_parameter_is_a_named_choice(name, tables, head):
    config = calc.MODELS[name]
    num, table = int(calc.num_parameters(name)), config.vocab * config.hidden
    positions = config.context * config.hidden if config.learned_positions else 0

    def counted(parameters):
        flops = calc.flops_per_token(name, attention=False, parameters=parameters)
        return float(flops) / 6

    assert counted("all") == num
    assert counted("non_embedding") == num - (tables + head) * table - positions
    assert counted("matmul") == num - (table if head else 0) - positions, "a tied table is the head"


def test_of_a_mixture_counts_what_a_token_goes_through():
    mixtral = calc.flops_per_token("mixtral-8x7b", attention=False)
    assert mixtral == 6 * int(calc.active_parameters("mixtral-8x7b"))


def test_interleaved_stages_hold_more_the_earlier_they_are():
    assert calc.in_flight_microbatches(4, 8, "interleaved", virtual=2) == [11, 9, 7, 5]
    assert calc.in_flight_microbatches(4, 4, "interleaved", virtual=2) == [8, 8, 7, 5]
    assert calc.in_flight_microbatches(4, 8, "interleaved", virtual=1) == [4, 3, 2, 1]


def test_with_zb_h1_every_stage_holds_what_1f1bs_first_does():
    assert calc.in_flight_microbatches(4, 8, "zb_h1") == [4, 4, 4, 4]
    assert calc.in_flight_microbatches(4, 2, "zb_h1") == [2, 2, 2, 2]


def one_f_one_b(stages, microbatches):
    """(bubble of total, most in flight by stage), played through: a B takes two F."""
    order = []
    for stage in range(stages):
        warmup = min(stages - stage, microbatches)
        ops = [("F", n) for n in range(warmup)]
        for n in range(microbatches):
            ops.append(("B", n))
            if warmup + n < microbatches:
                ops.append(("F", warmup + n))
        order.append(ops)
    done, clock, nexts = {}, [0] * stages, [0] * stages
    while any(at < len(ops) for at, ops in zip(nexts, order, strict=True)):
        for stage, ops in enumerate(order):
            while nexts[stage] < len(ops):
                kind, n = ops[nexts[stage]]
                source = stage - 1 if kind == "F" else stage + 1
                needed = [("F", n, stage)] if kind == "B" else []
                needed += [(kind, n, source)] if 0 <= source < stages else []
                if not all(each in done for each in needed):
                    break
                begin = max([clock[stage], *(done[each] for each in needed)])
                clock[stage] = done[kind, n, stage] = begin + (1 if kind == "F" else 2)
                nexts[stage] += 1
    busy = 3 * microbatches
    depth = [max(_in_flight(ops)) for ops in order]
    return 1 - busy / max(clock), depth


def _in_flight(ops):
    now = 0
    for kind, _ in ops:
        now += 1 if kind == "F" else -1
        yield now


@given(stages=st.integers(1, 8), microbatches=st.integers(1, 24))
def test_bubble_and_depth_of_1f1b_are_those_of_playing_it_through(stages, microbatches):
    bubble, depth = one_f_one_b(stages, microbatches)
    assert float(calc.bubble_fraction(stages, microbatches)) == pytest.approx(bubble)
    assert calc.in_flight_microbatches(stages, microbatches) == depth


@given(stages=st.integers(1, 64), microbatches=st.integers(1, 512))
def test_the_two_conventions_are_one_bubble(stages, microbatches):
    ideal, total = (
        float(calc.bubble_fraction(stages, microbatches, relative_to=to))
        for to in ("ideal", "total")
    )
    assert total == pytest.approx(ideal / (1 + ideal))


def test_zero2_reduces_every_microbatch_and_zero3_gathers_for_every_one():
    volumes = {
        strategy: float(calc.step_traffic_volume(strategy, microbatches=4))
        for strategy in ("ddp", "zero1", "zero2", "zero3")
    }
    assert volumes == {"ddp": 2, "zero1": 2, "zero2": 5, "zero3": 12}


def test_gradients_may_travel_in_more_bytes_than_parameters():
    sent = calc.step_traffic_bytes("zero1", 8e6, 8, itemsize=2, gradient_itemsize=4)
    assert sent["reduce-scatter"] == 7 / 8 * 8e6 * 4
    assert sent["all-gather"] == 7 / 8 * 8e6 * 2
    assert calc.step_traffic_bytes("ddp", 8e6, 1) == 0


def test_microbatches_may_be_any_whole_number():
    for microbatches in (np.int64(2), 2.0):
        sent = calc.step_traffic_bytes("zero3", 8e6, 8, microbatches=microbatches)
        assert sent.explain() == calc.step_traffic_bytes("zero3", 8e6, 8, microbatches=2).explain()


def test_youngs_interval_loses_least_and_dalys_is_near_it():
    write, mtbf = 60.0, 4 * 3600.0
    young = float(calc.checkpoint_interval(write, mtbf))
    assert young == math.sqrt(2 * write * mtbf)

    def lost(interval):
        return float(calc.lost_share(interval, write, mtbf))

    assert lost(young) < min(lost(0.9 * young), lost(1.1 * young))
    assert lost(young) == pytest.approx(2 * write / young), "half writing, half redone"
    daly = float(calc.checkpoint_interval(write, mtbf, "daly"))
    ratio = write / (2 * mtbf)
    assert daly == pytest.approx(young * (1 + math.sqrt(ratio) / 3 + ratio / 9) - write)
    assert calc.checkpoint_interval(10, 4, "daly") == 4, "where writing takes twice the MTBF"


@pytest.mark.parametrize(
    ("write", "mtbf", "is_outside"), [(10_000, 100, True), (50, 100, True), (49, 100, False)]
)
def test_an_interval_that_would_lose_all_time_says_that_it_is_out_of_range(write, mtbf, is_outside):
    said = {how: calc.checkpoint_interval(write, mtbf, how).convention for how in ("young", "daly")}
    assert ("Young's range" in said["young"]) == is_outside
    assert "Young's range" not in said["daly"]
    young = calc.checkpoint_interval(write, mtbf)
    if write > mtbf / 2:
        with pytest.raises(ValueError, match="all time"):
            calc.lost_share(young, write, mtbf)
    else:
        assert calc.lost_share(young, write, mtbf) <= 1


def test_a_restart_is_paid_at_every_interruption():
    with_restart = calc.lost_share(600, 60, 36_000, restart_s=360)
    assert with_restart - calc.lost_share(600, 60, 36_000) == pytest.approx(0.01)
