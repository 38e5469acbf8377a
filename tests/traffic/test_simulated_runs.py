"""Simulated steps against real ones on throttled clusters: on a virtual clock they are equal.

Real ranks perform each step, and their journals are replayed over the case's links. What the
machine adds to a step in real time is printed by examples/cluster_simulation.py.
"""

import importlib.util
from dataclasses import replace
from pathlib import Path

import pytest

from labkit import calc

TOLERANCE = 0.05


def load_example():
    path = Path(__file__).parents[2] / "examples" / "cluster_simulation.py"
    spec = importlib.util.spec_from_file_location("cluster_simulation_example", path)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    return example


EXAMPLE = load_example()
EXAMPLE.NUM_STEPS = 1
CASES = {case.name: case for case in EXAMPLE.cases()}
# Chunks of these rings wait less than calc's formula says: the example's docstring says why.
OVER_TWO_TIERS = {"dp 4, slow tier": 0.011, "dp 4, straggler": 0.03}


@pytest.mark.parametrize("name", CASES)
def test_a_real_step_takes_as_long_as_the_simulated_one_by_the_links_and_its_order(name):
    simulated, replayed = EXAMPLE.simulated(CASES[name]).seconds, EXAMPLE.replayed(CASES[name])
    less = OVER_TWO_TIERS.get(name, 0.0)
    assert (1 - less - 1e-9) * simulated <= replayed <= (1 + 1e-9) * simulated


def test_in_real_time_a_step_never_takes_less():
    case = CASES["pp 2, interleaved"]
    assert EXAMPLE.measured(case) >= (1 - 1e-9) * EXAMPLE.simulated(case).seconds


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.disturbances])
def test_without_its_disturbance_a_case_would_not_pass(name):
    case = CASES[name]
    disturbed, calm = (
        EXAMPLE.simulated(each).seconds for each in (case, replace(case, disturbances=()))
    )
    assert disturbed > (1 + TOLERANCE) * calm


def test_messages_and_reduces_take_a_part_that_would_be_missed():
    for case in CASES.values():
        step = EXAMPLE.simulated(case)
        computing = step.seconds - sum(step.exposed.values())
        assert step.seconds > (1 + TOLERANCE) * computing, case.name


def test_the_cases_have_2_to_8_ranks_both_tiers_and_what_makes_ranks_unequal():
    assert {case.layout.world_size for case in CASES.values()} == {2, 4, 8}
    kinds = {type(each) for case in CASES.values() for each in case.disturbances}
    assert kinds == {calc.simulate.Straggler, calc.simulate.SlowLink}
    assert {case.schedule for case in CASES.values()} == {"gpipe", "1f1b", "interleaved"}
