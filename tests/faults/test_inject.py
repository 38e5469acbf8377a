"""Real ranks with a fault switched on: the diagnosis names the fault and its rank.

A step is 75 ms of waiting (inject/timed_training.py), and a fault 40% of it: a recording costs half
a second. All faults on all strategies, and how small they may be: examples/bottlenecks.py.
"""

import pytest

import labkit
from labkit import inject, profile
from labkit.inject import (
    STEP_S,
    OneHugeBucket,
    Pauses,
    Recompute,
    SkewedRouter,
    SlowLink,
    SlowLoader,
    SlowRank,
    TinyBuckets,
)
from labkit.profile import what_if

pytestmark = [pytest.mark.alone, pytest.mark.clock]

SHARE = 0.4
FAULT_S = SHARE * STEP_S
RECORDED = {
    "none": ("ddp",),
    "recompute": ("ddp", Recompute()),
    "slow": ("ddp", SlowRank(2, SHARE)),
    "pauses": ("tp", Pauses(3, FAULT_S / 2, period_s=STEP_S / 2)),
    "loader": ("zero3", SlowLoader(1, FAULT_S)),
    "router": ("moe", SkewedRouter(2, SHARE)),
}
ON_NETWORK = {
    "tiny": ("ddp", TinyBuckets()),
    "huge": ("ddp", OneHugeBucket()),
    "link": ("tp", SlowLink(1, 0.02)),
}


def trainings(world, folder):
    for name, (strategy, *faults) in RECORDED.items():
        inject.timed_training(world, f"{folder}/{name}", tuple(faults), 3, strategy)


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    folder = tmp_path_factory.mktemp("traces")
    labkit.run(trainings, 4, args=(str(folder),), timeout=120)
    return {name: profile.read([folder / name]) for name in RECORDED}


def is_first(fault, trace):
    first = profile.diagnose(trace)[0]
    return (first.is_fault, first.cause, first.rank) == (True, fault.cause, fault.rank)


@pytest.mark.parametrize("name", [name for name in RECORDED if name not in ("none", "recompute")])
def test_the_diagnosis_names_the_fault_and_its_rank(traces, name):
    """On a busy machine the latency of gloo may be another one."""
    fault, found = RECORDED[name][-1], profile.diagnose(traces[name])
    assert (fault.cause, fault.rank) in {(each.cause, each.rank) for each in found[:2]}
    assert found[0].is_fault


@pytest.mark.parametrize("name", ON_NETWORK)
def test_faults_of_messages_are_seen_in_the_journal(name):
    strategy, fault = ON_NETWORK[name]
    trace = inject.timed_run(fault, strategy=strategy, num_steps=3, on_network=True)
    assert is_first(fault, trace)


def test_recomputation_computes_each_layer_once_more_on_every_rank(traces):
    def waits(name, rank):
        return sum(each.name == "labkit::wait" for each in traces[name].ranks[rank].work)

    for rank in range(4):  # the one in forward bears the name of its layer's function
        assert waits("recompute", rank) == 2 * waits("none", rank) > 0
    grown = profile.compare(traces["none"], traces["recompute"]).growths[0]
    assert (grown.term, len(grown.ranks) > 1) == ("compute", True)


def test_the_replay_without_the_straggler_gains_what_it_cost(traces):
    graph = profile.Dependencies(traces["slow"])
    assert graph.seconds(what_if.no_straggler(graph, 2)) < 0.9 * graph.seconds()
