"""Real ranks with a fault switched on, recorded by PyTorch Profiler: the diagnosis names the fault.

A step is 72 ms of waiting (inject/timed_training.py), and a fault 40% of it: other tests run beside
this one. How small a fault may be is measured in examples/bottlenecks.py.
"""

import pytest

import labkit
from labkit import inject, profile
from labkit.inject import NoisyNeighbour, Pauses, Recompute, SlowLoader, SlowRank
from labkit.profile import what_if

pytestmark = pytest.mark.clock

SHARE = 0.4
FAULT_S = SHARE * inject.STEP_S
FAULTS = {
    "none": (),
    "slow": (SlowRank(2, SHARE),),
    "noisy": (NoisyNeighbour(1, SHARE),),
    "pauses": (Pauses(3, FAULT_S / 2),),
    "loader": (SlowLoader(None, FAULT_S),),
    "one loader": (SlowLoader(1, FAULT_S),),
    "recompute": (Recompute(),),
}


def trainings(world, folder):
    for name, faults in FAULTS.items():
        inject.timed_training(world, f"{folder}/{name}", faults, num_steps=5)


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    folder = tmp_path_factory.mktemp("traces")
    labkit.run(trainings, 4, args=(str(folder),), timeout=120)
    return {name: profile.read(sorted((folder / name).glob("*.json"))) for name in FAULTS}


@pytest.mark.parametrize("name", [name for name in FAULTS if name not in ("none", "recompute")])
def test_the_diagnosis_names_the_fault_and_its_rank(traces, name):
    (fault,) = FAULTS[name]
    first = profile.diagnose(traces[name])[0]
    assert (first.is_fault, first.cause, first.rank) == (True, fault.cause, fault.rank)


def test_recomputation_computes_each_layer_once_more_on_every_rank(traces):
    def waits(name, rank):
        return sum(each.name == "labkit::wait" for each in traces[name].ranks[rank].work)

    for rank in range(4):  # the one in forward bears the name of its layer's function
        assert waits("recompute", rank) == 2 * waits("none", rank) > 0


def test_the_replay_without_the_straggler_gains_what_it_cost(traces):
    graph = profile.Dependencies(traces["slow"])
    assert graph.seconds(what_if.no_straggler(graph, 2)) < 0.9 * graph.seconds()
