"""Faults of inject: the diagnosis of a recorded run names the fault and its rank.

A step is 75 ms of waiting (inject/timed_training.py), and a fault 40% of it. `python -m
tests.recorded` records the runs again. How long each fault makes a step is asserted on a clock that
only waiting moves, and of real ranks what can be counted. How often a diagnosis is right on the
machine where it runs, and how small a fault may be: examples/bottlenecks.py.
"""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import labkit
from labkit import inject, profile
from labkit.inject import STEP_S, TimedLayer, slow, timed_training
from labkit.inject.timed_training import LAYERS, ROWS, WIDTH
from labkit.moe.router import TopKRouter
from labkit.profile import what_if
from tests import recorded
from tests.recorded import FAULT_S, FAULTS, SHARE

NAMED = [name for name in FAULTS if name not in ("none", "recompute")]


@pytest.fixture(scope="module")
def traces():
    return {name: recorded.read(name) for name in FAULTS}


@pytest.mark.parametrize("name", NAMED)
def test_the_diagnosis_names_the_fault_and_its_rank(traces, name):
    *_, fault = FAULTS[name]
    first = profile.diagnose(traces[name])[0]
    assert (first.is_fault, first.cause, first.rank) == (True, fault.cause, fault.rank)


def test_a_healthy_run_has_no_fault(traces):
    assert not any(each.is_fault for each in profile.diagnose(traces["none"]))


def test_what_grew_by_recomputation_is_computing_on_all_ranks(traces):
    grown = profile.compare(traces["none"], traces["recompute"]).growths[0]
    assert (grown.term, len(grown.ranks) > 1) == ("compute", True)


def test_the_replay_without_the_straggler_gains_what_it_cost(traces):
    graph = profile.Dependencies(traces["slow"])
    assert graph.seconds(what_if.no_straggler(graph, 2)) < 0.9 * graph.seconds()


LIVE = {
    "none": (),
    "recompute": (inject.Recompute(),),
    "slow": (inject.SlowRank(2, share=5.0),),
    "tiny": (inject.TinyBuckets(),),
    "huge": (inject.OneHugeBucket(),),
}


def trainings(world, folder):
    for name, faults in LIVE.items():
        timed_training(world, f"{folder}/{name}", faults, 2)


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    """The traces of real ranks, two steps each."""
    folder = tmp_path_factory.mktemp("traces")
    labkit.run(trainings, 4, args=(str(folder),), timeout=600)
    return {name: profile.read([folder / name]) for name in LIVE}


def num_waits(trace, rank):
    return sum(each.name == "labkit::wait" for each in trace.ranks[rank].work)


def test_faults_of_real_ranks_compute_as_often_as_they_should(live):
    """A layer waits twice itself: the wait in forward bears the name of the layer's function."""
    for rank in range(4):
        own = num_waits(live["none"], rank)
        assert own == 2 * LAYERS
        assert num_waits(live["recompute"], rank) == 2 * own
        assert num_waits(live["slow"], rank) == (3 * own if rank == 2 else own)


def test_buckets_of_real_ranks_are_as_many_as_the_fault_makes(live):
    for name, num_buckets in {"none": LAYERS, "tiny": 4 * LAYERS, "huge": 1}.items():
        for own in live[name].ranks.values():
            kinds = [each.kind for each in own.exchanges]
            assert kinds == ["all_reduce"] * 2 * num_buckets, name


def test_a_real_straggler_that_takes_six_times_as_long_is_named(live):
    first = profile.diagnose(live["slow"])[0]
    assert (first.is_fault, first.cause, first.rank) == (True, "straggler", 2)


@pytest.fixture
def clock(monkeypatch):
    """A clock that nothing moves but what waits or computes in an injected fault or a layer."""
    clock = SimpleNamespace(now_s=0.0)

    def pass_by(seconds):
        clock.now_s += seconds

    read = {name: lambda: clock.now_s for name in ("monotonic", "perf_counter")}
    monkeypatch.setattr(slow, "time", SimpleNamespace(sleep=pass_by, **read))
    monkeypatch.setattr(slow, "compute", pass_by)
    monkeypatch.setitem(TimedLayer.forward.__globals__, "compute", pass_by)
    return clock


def step_s(clock, fault, rank, num_steps=20):
    """Seconds of a step with this fault on this rank, on average."""
    num_barriers = 0

    def barrier():
        nonlocal num_barriers
        num_barriers += 1

    world, began_s = SimpleNamespace(rank=rank, size=4, barrier=barrier), clock.now_s
    with inject.faults(world, fault):
        model = nn.Sequential(*(TimedLayer() for _ in range(LAYERS)))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        rows = TensorDataset(torch.zeros(ROWS * num_steps, WIDTH))
        for (batch,) in DataLoader(rows, batch_size=ROWS):
            model(batch.requires_grad_()).sum().backward()
            optimizer.step()
    assert num_barriers == (2 * LAYERS * num_steps if fault.cause == "barrier" else 0)
    return (clock.now_s - began_s) / num_steps


@pytest.mark.parametrize(
    ("fault", "more", "within"),
    [
        (inject.SlowRank(2, SHARE), SHARE, 1e-9),
        (inject.NoisyNeighbour(2, SHARE), SHARE, 0.1),  # drawn at random
        # Looked at between two layers, so a bit more than a period lies between two of them.
        (inject.Pauses(2, FAULT_S / 2, period_s=STEP_S / 2), SHARE, 0.1),
        (inject.ItemPerStep(2, FAULT_S), SHARE, 1e-9),
        (inject.SlowLoader(2, FAULT_S), SHARE, 0.021),  # once more where the data ends
        (inject.UnevenShards(2, SHARE), SHARE, 1e-9),
        (inject.Recompute(2), 1 / 3, 1e-9),
        (inject.Jitter(2, SHARE), SHARE, 0.02),
        (inject.BarrierPerLayer(2), 0.0, 1e-9),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, inject.Fault) else "",
)
def test_a_fault_makes_a_step_of_its_rank_longer_by_its_share(clock, fault, more, within):
    assert step_s(clock, fault, rank=2) / STEP_S - 1 == pytest.approx(more, abs=within)
    if fault.cause != "barrier":
        assert step_s(clock, fault, rank=1) == pytest.approx(STEP_S)


def test_a_skewed_router_sends_its_rank_more_tokens():
    """Each of 4 experts has 20 of 80 tokens; with the fault, rank 2's expert has 40% more."""
    probs_NE = torch.eye(4).repeat(20, 1)
    world = SimpleNamespace(rank=0, size=4)
    with inject.faults(world, inject.SkewedRouter(2, SHARE)):
        preferred_NE = TopKRouter.preference(SimpleNamespace(num_experts=4), probs_NE)
    assert preferred_NE.argmax(1).bincount(minlength=4)[2] == 20 * (1 + SHARE)
    assert TopKRouter.preference(None, probs_NE).argmax(1).bincount()[2] == 20
