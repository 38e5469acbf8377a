"""calc refuses wrong arguments by name, with a fix: one table for all of it."""

import pytest

from labkit import calc
from labkit.calc import Layout
from labkit.calc.pieces import Pieces
from labkit.calc.plan import Assumptions, Job
from labkit.calc.simulate import Jitter, SlowNode, Straggler

JOB = Job("llama3-8b", "megatron_bf16", calc.cluster("h100", 64), 512)
LAYOUT = Layout(world_size=64, tp=2)
PIECES = calc.plan.pieces(JOB, LAYOUT)


def collective(algorithm="ring", operation="all_reduce", world_size=4, **more):
    return calc.collective(operation, algorithm, world_size, **more)


def layout(**changes):
    return Layout(**{"world_size": 8, **changes})


def pieces(**changes):
    given = {
        "forward_s": (1.0,), "backward_s": (2.0,), "send_s": 0, "reduce_s": (0.0,),
        "gather_s": (0.0,), "optimizer_s": 0,
    }  # fmt: skip
    return Pieces(**given | changes)


def step(asked, of=LAYOUT, disturbances=(), **more):
    return calc.simulate.step(asked, of, disturbances, **more)


# function, arguments of which the last is wrong, class of the error, what else it says
REFUSED = [
    (collective, {"world_size": 0}, ValueError, ""),
    (collective, {"world_size": 2.5}, ValueError, ""),
    (collective, {"world_size": "4"}, TypeError, ""),
    (collective, {"nbytes": -1}, ValueError, ""),
    (collective, {"nbytes": float("nan")}, ValueError, ""),
    (collective, {"rank": 0, "itemsize": 4, "nbytes": 1001}, ValueError, "itemsize=4"),
    (collective, {"nbytes": 1000, "rank": 4}, ValueError, "0 to 3"),
    (collective, {"operation": "allreduce"}, ValueError, "all_reduce"),
    (collective, {"algorithm": "rings"}, ValueError, "ring"),
    (collective, {"algorithm": "hierarchical", "ranks_per_host": 3}, ValueError, "1, 2 or 4"),
    (calc.chunk_numels, {"world_size": 4, "numel": -1}, ValueError, ""),
    (calc.crossover_bytes, {"first": "ring", "second": "tree", "n": 4,
                            "beta": 1e-9, "alpha": -1}, ValueError, ""),
    (calc.lost_gpu_hours, {"until_noticed_s": 1, "restart_s": 1, "since_checkpoint_s": 1,
                           "num_gpus": 0}, ValueError, ""),
    (layout, {"order": ("dp", "tp")}, ValueError, "each once"),
    (layout, {"zero": 4}, ValueError, "0, 1, 2 or 3"),
    (layout, {"tp": 3}, ValueError, ""),
    (layout(tp=2).in_one_node, {"axis": "tp", "gpus_per_node": 0}, ValueError, ""),
    (Job, {"model": "llama3-8b", "recipe": "amp", "cluster": "h100", "global_batch": 64,
           "assumptions": Assumptions(reserve_bytes=1e11)}, ValueError, "85 GB"),
    (pieces, {"forward_s": 1.0}, TypeError, ""),
    (pieces, {"compute_s": (5.0,)}, ValueError, "stage 0"),
    (step, {"asked": None}, TypeError, "pieces=None"),
    (step, {"asked": PIECES, "of": 64}, TypeError, "layout=64"),
    (step, {"asked": PIECES, "disturbances": Straggler(1, 2)}, TypeError, ""),
    (step, {"asked": pieces(), "of": Layout(world_size=2), "disturbances": [Jitter(0.1)],
            "most_events": 0}, ValueError, ""),
    (SlowNode, {"factor": 2, "ranks": 5}, TypeError, ""),
    (Straggler, {"rank": 1, "factor": 0.5}, ValueError, ""),
]  # fmt: skip
OF_A_JOB = [getattr(calc.plan, each) for each in
            ("verdict", "estimate", "memory", "smallest_change", "refusal")]  # fmt: skip
REFUSED += [(each, {"job": None, "layout": LAYOUT}, TypeError, "job=None") for each in OF_A_JOB]
REFUSED += [(each, {"job": JOB, "layout": "tp 8"}, TypeError, "") for each in OF_A_JOB]


@pytest.mark.parametrize(("function", "given", "error", "also"), REFUSED)
def test_a_wrong_argument_is_refused_by_name(function, given, error, also):
    with pytest.raises(error) as refused:
        function(**given)
    name = list(given)[-1] if not also.endswith("=None") else "job"
    said = str(refused.value)
    assert also in said and (name in said or also), said


def test_a_pair_is_needed_for_two_tiers():
    two_tiers = collective("hierarchical", ranks_per_host=2)
    with pytest.raises(TypeError, match=r"alpha=.*\(fast, slow\)"):
        two_tiers.seconds(1e-6, (1e-9, 1e-8))


def test_a_count_may_come_as_a_float():
    assert (
        collective(world_size=4.0, nbytes=8e6).sent_bytes == collective(nbytes=8_000_000).sent_bytes
    )
    assert layout(zero=1.0) == layout(zero=1)
    assert layout().num_microbatches(16.0) == 2
