"""GPUs of two kinds in one job: no other numbers of microbatches make a faster step."""

from dataclasses import replace

import pytest

from labkit import calc
from labkit.calc import Layout
from labkit.calc.plan import Job, estimate, mixed_fleet, plan, verdict

H100, A100 = calc.cluster("h100", 16), calc.cluster("a100", 16)
JOB = Job("llama3-8b", "megatron_bf16", H100, 64, sequence=4096)
LAYOUT = Layout.parse("dp=16 tp=2 zero=1")


@pytest.fixture(scope="module")
def steps():
    return {each.way: each for each in mixed_fleet(JOB, [A100], LAYOUT)}


def seconds(kind, microbatches):
    """A step on 32 GPUs of one kind over the slower network, from the planner."""
    machines = replace(kind, num_gpus=32, slow=A100.slow)
    job = replace(JOB, cluster=machines, global_batch=microbatches * LAYOUT.dp)
    return float(estimate(job, LAYOUT).step)


def test_the_step_is_that_of_the_slowest_kind_and_no_other_shares_are_faster(steps):
    # 64 microbatches; 8 replicas of each kind
    assert steps["equal shares"].microbatches == {"h100": 4, "a100-80g": 4}
    assert float(steps["equal shares"].step) == pytest.approx(seconds(A100, 4))
    every = [max(seconds(H100, m), seconds(A100, 8 - m)) for m in range(1, 8)]
    assert float(steps["shares by speed"].step) == pytest.approx(min(every))
    assert min(every) < seconds(A100, 4)


def test_rates_and_dollars_follow_from_the_step(steps):
    by_speed, alone = steps["shares by speed"], steps["h100 alone"]
    assert by_speed.tokens_per_s == pytest.approx(64 * 4096 / float(by_speed.step))
    dollars_per_s = 16 * (H100.dollars_per_gpu_hour + A100.dollars_per_gpu_hour) / 3600
    dollars = dollars_per_s / by_speed.tokens_per_s * 1e6
    assert by_speed.dollars_per_million_tokens == pytest.approx(dollars)
    best = plan(replace(JOB, cluster=replace(H100, slow=A100.slow))).best
    assert float(alone.step) == pytest.approx(float(best.step))
    assert alone.layout == best.layout
    assert min(by_speed.busy.values()) < 1 == max(by_speed.busy.values())


def test_equal_kinds_get_equal_shares():
    twin = replace(H100, gpu=replace(H100.device, name="twin"), num_gpus=8)
    equal, by_speed, *_ = mixed_fleet(replace(JOB, cluster=replace(H100, num_gpus=8)), [twin])
    assert by_speed.microbatches == equal.microbatches
    assert float(by_speed.step) == float(equal.step)


def test_the_smallest_memory_decides_which_layout_fits():
    layout = Layout.parse("dp=32 zero=1")
    whole = replace(JOB, cluster=replace(H100, num_gpus=32), global_batch=64)
    assert verdict(whole, layout)
    with pytest.raises(ValueError, match="on a100-40g: .* too many"):
        mixed_fleet(JOB, [replace(A100, gpu="a100-40g")], layout)


@pytest.mark.parametrize(
    ("also", "layout", "reason"),
    [
        ([H100], None, "each kind of GPU once"),
        ([A100], "dp=1 tp=8 pp=4", "16 h100 make no whole number of replicas of 32"),
    ],
)
def test_fleets_that_cannot_work_say_why(also, layout, reason):
    with pytest.raises(ValueError, match=reason):
        mixed_fleet(JOB, also, layout and Layout.parse(layout))
