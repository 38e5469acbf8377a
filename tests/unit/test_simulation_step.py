"""A simulated step against a simulation of every rank, and against labkit.pipeline's."""

import itertools

import pytest
from simulated_by_rank import ROWS, every_rank, pieces

from labkit import calc
from labkit.calc import Layout, bubble_fraction
from labkit.calc.plan import Pieces
from labkit.calc.simulate import Jitter, SlowLink, SlowNode, Straggler
from labkit.calc.simulate.simulated_step import costs
from labkit.pipeline import Costs, plan, simulate

LAYOUTS = {
    "dp": Layout(world_size=4),
    "pp": Layout(world_size=4, pp=4),
    "tp": Layout(world_size=4, tp=4),
    "dp x pp": Layout(world_size=6, pp=3),
    "dp x tp x pp": Layout(world_size=16, tp=2, pp=4),
    "dp x cp x tp x pp": Layout(world_size=24, tp=2, cp=2, pp=2),
    "ep": Layout(world_size=16, pp=2, ep=4),
    "another order": Layout(world_size=16, tp=2, pp=4, order=("dp", "pp", "cp", "tp")),
}
DISTURBANCES = {
    "none": (),
    "straggler": (Straggler(3, 1.5),),
    "two stragglers": (Straggler(1, 1.5), Straggler(2, 2.5)),
    "one twice": (Straggler(1, 1.5), Straggler(1, 1.2)),
    "slow node": (SlowNode([0, 1], 3),),
    "slow link": (),
    "all": (Straggler(0, 1.3), SlowNode([3], 2), Straggler(3, 1.1)),
}


def disturbances(layout, name):
    """With slow links of ranks 0 and 1 to their neighbours along pp and dp, where there are any."""
    if name not in ("slow link", "all"):
        return DISTURBANCES[name]
    links = [
        SlowLink(rank, layout.group(axis, rank)[1], 4 + 5 * rank)
        for axis, rank in itertools.product(("pp", "dp"), (0, 1))
        if layout.sizes[axis] > 1 and layout.coordinates(rank)[axis] == 0
    ]
    return (*DISTURBANCES[name], *links)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize("disturbed", DISTURBANCES)
@pytest.mark.parametrize("name", LAYOUTS)
def test_classes_take_exactly_as_long_as_all_ranks(name, disturbed, schedule):
    layout = LAYOUTS[name]
    given = disturbances(layout, disturbed)
    parts = pieces(layout.pp, 6)
    step = calc.simulate.step(parts, layout, given, schedule=schedule)
    assert step.seconds == pytest.approx(every_rank(parts, layout, given, schedule), rel=1e-12)


def test_replicas_that_share_experts_are_in_step_wherever_the_slow_ones_are():
    layout = LAYOUTS["ep"]  # dp 0 to 3 are one replica of the pipeline, dp 4 to 7 the other
    for given in ([Straggler(1, 1.5), Straggler(10, 2)], [Straggler(1, 1.5), Straggler(13, 2)]):
        found = calc.simulate.step(pieces(2, 6), layout, given)
        assert found.seconds == pytest.approx(every_rank(pieces(2, 6), layout, given), rel=1e-12)
        assert sum(each.num_ranks for each in found.classes) == layout.world_size


@pytest.mark.parametrize("disturbed", DISTURBANCES)
def test_interleaved_classes_take_exactly_as_long_as_all_ranks(disturbed):
    layout = Layout(world_size=16, tp=2, pp=4, virtual=2)
    given = disturbances(layout, disturbed)
    parts = pieces(8, 8)
    found = calc.simulate.step(parts, layout, given)
    assert found.schedule == "interleaved"
    assert found.seconds == pytest.approx(
        every_rank(parts, layout, given, "interleaved"), rel=1e-12
    )


@pytest.mark.parametrize("schedule", ROWS)
def test_a_pipeline_alone_is_the_one_that_labkit_pipeline_simulates(schedule):
    virtual = 2 if schedule == "interleaved" else 1
    layout = Layout(world_size=4, pp=4, virtual=virtual)
    nothing = (0.0,) * layout.pp * virtual
    parts = pieces(4 * virtual, 8, reduce_s=nothing, gather_s=nothing, optimizer_s=0)
    step = calc.simulate.step(parts, layout, schedule=schedule)
    halves = [each / 2 for each in parts.backward_s]
    costs = Costs(forward=parts.forward_s, input_gradient=halves, weight_gradient=halves, send=0.25)
    timing = simulate(plan(ROWS[schedule], 4, 8), costs)
    assert step.seconds == pytest.approx(timing.makespan)
    assert step.bubble == pytest.approx(timing.bubble())
    for each, row in zip(step.classes, timing.rows, strict=True):
        assert [span[:3] for span in each.spans] == [tuple(span.op) for span in row]
        times = [time for span in each.spans for time in span[3:]]
        assert times == pytest.approx([time for span in row for time in span[1:]])


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved"])
def test_the_bubble_of_equal_stages_is_the_closed_form(schedule):
    v = 2 if schedule == "interleaved" else 1
    num = 4 * v
    parts = Pieces(
        forward_s=(1.0,) * num,
        backward_s=(2.0,) * num,
        send_s=0,
        reduce_s=(0.0,) * num,
        gather_s=(0.0,) * num,
        optimizer_s=0,
        num_microbatches=12,
    )
    step = calc.simulate.step(
        parts, Layout(world_size=32, tp=2, pp=4, virtual=v), schedule=schedule
    )
    assert step.bubble == pytest.approx(bubble_fraction(4, 12, schedule, v).value)


def test_the_longest_path_has_no_gap_and_adds_up_to_the_step():
    for layout, name, overlap in itertools.product(
        LAYOUTS.values(), [*DISTURBANCES, "jitter"], [0, 0.5, 1]
    ):
        given = (Jitter(0.3),) if name == "jitter" else disturbances(layout, name)
        parts = pieces(layout.pp, 6, overlap=overlap)
        step = calc.simulate.step(parts, layout, given)
        path = step.longest_path
        assert path[0].start_s == 0 and path[-1].end_s == step.seconds
        for one, next_one in itertools.pairwise(path):
            assert one.end_s == pytest.approx(next_one.start_s)
        assert sum(step.on_the_path.values()) == pytest.approx(step.seconds)


def test_what_is_exposed_is_on_the_longest_path():
    layout = Layout(world_size=8, tp=2, pp=2)
    step = calc.simulate.step(pieces(2, 4, compute_s=(3.0, 3.3)), layout, schedule="gpipe")
    # F on stage 0, a message, 4 F and 4 B on the slower stage 1, a message, B on stage 0, and dp.
    assert step.seconds == pytest.approx(1 + 0.25 + 4 * 1.1 + 4 * 2.3 + 0.25 + 2 + 1.5 + 0.4 + 0.7)
    assert step.exposed["dp"] == pytest.approx(1.5 + 0.7)
    assert step.exposed["pp"] == pytest.approx(0.5)
    assert step.exposed["tp, cp, ep"] == pytest.approx(4 * (3.4 - 3.3))
    assert step.on_the_path["optimizer"] == pytest.approx(0.4)


def test_an_overlapped_reduce_is_hidden_as_far_as_there_is_a_backward_to_hide_it():
    layout = Layout(world_size=4)

    def seconds(reduce_s, overlap):
        parts = pieces(1, 3, reduce_s=(reduce_s,), gather_s=(0.0,), overlap=overlap)
        return calc.simulate.step(parts, layout).seconds

    computing = 3 * (1.0 + 2.0) + 0.4
    assert seconds(1.5, 0) == pytest.approx(computing + 1.5)
    assert seconds(1.5, 1) == pytest.approx(computing)
    assert seconds(1.5, 0.6) == pytest.approx(computing + 0.6)
    assert seconds(5, 1) == pytest.approx(computing + 3)  # 2 of 5 beside the last backward
    assert seconds(5, 0.5) == pytest.approx(computing + 0.5 + 2.5)


def test_a_gather_is_hidden_in_the_first_forward():
    def seconds(gather_s, overlap):
        parts = pieces(1, 3, reduce_s=(0.0,), gather_s=(gather_s,), overlap=overlap)
        return calc.simulate.step(parts, Layout(world_size=4, zero=1)).seconds

    computing = 3 * (1.0 + 2.0) + 0.4
    assert seconds(2, 0) == pytest.approx(computing + 2)
    assert seconds(1, 1) == pytest.approx(computing)
    assert seconds(4, 1) == pytest.approx(computing + 3)


@pytest.mark.parametrize(
    ("layout", "link", "why"),
    [
        (Layout(world_size=8, tp=4), SlowLink(0, 1, 3), "exchange for tp"),
        (Layout(world_size=8, tp=2, pp=2), SlowLink(0, 3, 3), "send each other nothing"),
    ],
)
def test_a_slow_link_whose_traffic_is_inside_operations_is_refused(layout, link, why):
    with pytest.raises(ValueError, match=why):
        calc.simulate.step(pieces(layout.pp, 4), layout, [link])


@pytest.mark.parametrize("disturbed", ["none", "straggler", "slow node", "slow link", "all"])
@pytest.mark.parametrize("name", ["dp", "dp x pp", "dp x tp x pp"])
def test_what_is_exchanged_in_every_microbatch_is_as_slow_as_its_slowest_link(name, disturbed):
    layout = LAYOUTS[name]
    exchanged = tuple((0.2 + 0.1 * stage, 0.5) for stage in range(layout.pp))
    parts = pieces(layout.pp, 6, exchanged_s=exchanged)
    given = disturbances(layout, disturbed)
    found, expected = calc.simulate.step(parts, layout, given), every_rank(parts, layout, given)
    assert found.seconds == pytest.approx(expected, rel=1e-12)
    assert sum(found.on_the_path.values()) == pytest.approx(found.seconds)


@pytest.mark.parametrize(
    ("exchanged", "why"),
    [(((0.1, 0.1),) * 3, "is of 3 stages"), (((1.5, 0.1),) * 2, "give parts of them")],
)
def test_pieces_check_what_is_exchanged_in_them(exchanged, why):
    with pytest.raises(ValueError, match=why):
        pieces(2, 4, exchanged_s=exchanged)


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize(
    ("model", "gpus", "batch", "cut"),
    [
        ("llama3-8b", 64, 512, {}),
        ("llama3-8b", 64, 512, {"pp": 4}),
        ("llama3-8b", 64, 512, {"pp": 4, "virtual": 2}),
        ("llama3-70b", 512, 1024, {"tp": 8}),
        ("llama3-70b", 512, 1024, {"tp": 8, "pp": 8}),
        ("mixtral-8x7b", 64, 512, {"ep": 8, "pp": 2}),
    ],
)
def test_the_planner_and_the_simulator_agree(model, gpus, batch, cut, zero):
    """Within 2%: the planner's parts add up, and in the simulator a few of them overlap."""
    job = calc.plan.Job(model, "megatron_bf16", calc.cluster("h100", gpus), batch)
    layout = Layout(world_size=gpus, zero=zero, **cut)
    planned = float(calc.plan.estimate(job, layout).step)
    found = calc.simulate.step(calc.plan.pieces(job, layout), layout).seconds
    assert planned * 0.98 < found < planned * 1.002


def test_a_straggler_is_named_with_its_place_and_its_cost():
    layout = Layout(world_size=16, tp=2, pp=2)
    step = calc.simulate.step(pieces(2, 8), layout, [Straggler(13, 1.5), SlowLink(0, 8, 1.1)])
    alone = every_rank(pieces(2, 8), layout, [SlowLink(0, 8, 1.1)])
    share = 1 - alone / step.seconds
    assert f"Rank 13 (pp 1, dp 2, tp 1), slower by 1.5, costs {share:.0%} of the step" in str(step)
    assert "all 2 disturbances together" in str(step)
    calm = calc.simulate.step(pieces(2, 8), layout)
    assert "No rank is slower" in str(calm)


def test_a_disturbance_costs_what_the_step_would_gain_without_it_and_with_the_others():
    layout, given = Layout(world_size=16, tp=2, pp=2), [Straggler(13, 1.5), Straggler(4, 2)]
    found = costs(calc.simulate.step(pieces(2, 8), layout, given))
    whole = every_rank(pieces(2, 8), layout, given)
    expected = {
        each: 1 - every_rank(pieces(2, 8), layout, [other]) / whole
        for each, other in (given, given[::-1])
    }
    assert dict(found) == pytest.approx(expected)
    assert found[0].disturbance == Straggler(4, 2)


def test_ranks_that_behave_the_same_are_simulated_once():
    parts = pieces(16, 64)
    large = Layout(world_size=98_304, tp=8, pp=16)
    per_replica = 2 * 16 * 64
    assert calc.simulate.step(parts, large).num_events == per_replica
    three = [Straggler(5, 1.5), Straggler(800, 1.5), SlowNode(range(16, 24), 2)]
    # Ranks 5 and 800 are in the same stage of their replicas, and equally slow.
    step = calc.simulate.step(parts, large, three)
    assert step.num_events == 3 * per_replica
    assert sum(each.num_ranks for each in step.classes) == large.world_size
    jittery = calc.simulate.step(parts, large, [*three, Jitter(0.02)], most_events=50_000)
    assert jittery.num_events <= 50_000 + 3 * per_replica


def test_pieces_of_another_layout_and_ranks_that_are_not_there_are_refused():
    layout = Layout(world_size=8, pp=2)
    with pytest.raises(ValueError, match="3 stages, and the layout has pp=2"):
        calc.simulate.step(pieces(3, 4), layout)
    with pytest.raises(ValueError, match="rank=8"):
        calc.simulate.step(pieces(2, 4), layout, [Straggler(8, 1.5)])
    with pytest.raises(TypeError, match="give a Straggler"):
        calc.simulate.step(pieces(2, 4), layout, ["rank 5"])
    with pytest.raises(ValueError, match="factor=0.5"):
        Straggler(1, 0.5)
    with pytest.raises(ValueError, match="no link to itself"):
        SlowLink(1, 1, 2)
    with pytest.raises(ValueError, match="give the ranks"):
        SlowNode([], 2)
