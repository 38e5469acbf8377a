"""What planner and simulator are given by mistake is refused by name, with what would do."""

import pytest

from labkit import calc
from labkit.calc import Layout
from labkit.calc.pieces import Pieces
from labkit.calc.plan import Assumptions, Job
from labkit.calc.simulate import Jitter, SlowNode, Straggler

JOB = Job("llama3-8b", "megatron_bf16", calc.cluster("h100", 64), 512)
LAYOUT = Layout(world_size=64, tp=2)
PIECES = calc.plan.pieces(JOB, LAYOUT)
ALONE = Layout(world_size=2)


def pieces(**changes):
    given = {
        "forward_s": (1.0,), "backward_s": (2.0,), "send_s": 0, "reduce_s": (0.0,),
        "gather_s": (0.0,), "optimizer_s": 0,
    }  # fmt: skip
    return Pieces(**given | changes)


@pytest.mark.parametrize(
    "function",
    [
        calc.plan.verdict,
        calc.plan.estimate,
        calc.plan.memory,
        calc.plan.smallest_change,
        calc.plan.refusal,
    ],
)
def test_functions_of_a_job_and_a_layout_refuse_anything_else(function):
    with pytest.raises(TypeError, match="job=None: give a Job"):
        function(None, LAYOUT)
    with pytest.raises(TypeError, match="layout='tp 8': give a Layout"):
        function(JOB, "tp 8")


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"order": None}, ValueError, "order=None: give pp, dp, cp, tp, each once"),
        ({"order": (1, 2, 3, 4)}, ValueError, "each once"),
        ({"zero": True}, ValueError, "zero=True: give 0, 1, 2 or 3"),
        ({"sequence_parallel": "no"}, TypeError, "sequence_parallel='no': give True or False"),
    ],
)
def test_layouts_refuse(changes, error, said):
    with pytest.raises(error, match=said):
        Layout(world_size=8, **changes)


def test_a_layout_takes_whole_numbers_and_lists_as_they_are_meant():
    layout = Layout(world_size=8, zero=1.0, order=["tp", "dp", "cp", "pp"])
    assert layout == Layout(world_size=8, zero=1, order=("tp", "dp", "cp", "pp"))
    assert hash(layout) and layout.num_microbatches(16.0) == 2
    with pytest.raises(TypeError, match="global_batch='16'"):
        layout.num_microbatches("16")
    with pytest.raises(ValueError, match="gpus_per_node=0"):
        layout.in_one_node("tp", 0)


def test_a_reserve_that_leaves_nothing_is_refused():
    with pytest.raises(ValueError, match="leave nothing of the 85.9 GB of a h100"):
        Job("llama3-8b", "amp", "h100", 64, assumptions=Assumptions(reserve_bytes=1e11))


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"forward_s": 1.0}, TypeError, "forward_s=1.0: give seconds of each stage"),
        ({"forward_s": (0.0,), "backward_s": (0.0,)}, ValueError, "a step takes time"),
        ({"compute_s": (5.0,)}, ValueError, "stage 0 is 5 s, a part of its forward and backward"),
    ],
)
def test_pieces_refuse(changes, error, said):
    with pytest.raises(error, match=said):
        pieces(**changes)


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (lambda: calc.simulate.step(None, LAYOUT), TypeError, "pieces=None: give Pieces"),
        (lambda: calc.simulate.step(PIECES, 64), TypeError, "layout=64: give a Layout"),
        (lambda: calc.simulate.step(PIECES, LAYOUT, Straggler(1, 2)), TypeError, "give a list"),
        (lambda: calc.simulate.step(PIECES, LAYOUT, None), TypeError, "disturbances=None"),
        (
            lambda: calc.simulate.step(pieces(), ALONE, [Jitter(0.1)], most_events=0),
            ValueError,
            "most_events=0",
        ),
        (lambda: SlowNode(5, 2), TypeError, "ranks=5: give all ranks of the node"),
    ],
)
def test_simulations_refuse(call, error, said):
    with pytest.raises(error, match=said):
        call()
