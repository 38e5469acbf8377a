"""The claims court: every verdict follows from its exhibits, and every number is proved.

What journals and meters count must agree exactly. What a clock reads is in the court's record, and
agrees within each exhibit's own tolerance: `python -m scripts.court_times` prints it beside what
this machine measures. One test a claim, so that runs are shared within a process.
"""

import pytest

from labkit import calc
from labkit.interview import evidence, runs
from labkit.interview.court import findings, load_claims, record
from labkit.interview.recorded_times import times_of
from labkit.pipeline import Costs, gpipe, plan
from tests.bank_faults import claim_faults
from tests.replayed import replayed_step

CLAIMS = load_claims()
TIMED = [each for claim in CLAIMS.values() for each in claim.exhibits if each.within]


@pytest.mark.parametrize("key", CLAIMS)
def test_a_verdict_holds(key):
    assert claim_faults(CLAIMS[key]) == []


class Asked(dict):
    """Times, and the names of those that were read."""

    def __init__(self, times):
        super().__init__(times)
        self.names = set()

    def __getitem__(self, name):
        self.names.add(name)
        return super().__getitem__(name)


def test_the_record_has_the_times_of_every_exhibit_that_allows_a_tolerance_and_no_others():
    times = Asked(record().times)
    with times_of(times):
        assert all(evidence.value(each.run) > 0 for each in TIMED)
    assert times.names == record().times.keys()
    assert record().machine and record().date


def test_a_time_that_is_not_in_the_record_says_how_to_measure_it():
    with times_of({}), pytest.raises(LookupError, match=r"gpipe_spans\(2, 3\): .*court_times"):
        runs.pipeline.idle_share(2, 3)


def test_measured_again_a_step_takes_no_less_than_its_operations():
    """Ranks that sleep: two stages and two microbatches are three forwards and three backwards."""
    assert runs.pipeline.gpipe_timing(2, 2).makespan >= 3 * 3 * runs.pipeline.FORWARD_S
    assert 0 < runs.pipeline.idle_share(2, 2) < 1


def test_most_claims_are_tried_by_a_real_run():
    measured = [
        key for key, claim in CLAIMS.items() if any(each.is_measured for each in claim.exhibits)
    ]
    assert len(measured) >= 13, measured


def test_what_is_measured_is_no_repetition_of_what_is_predicted():
    for claim in CLAIMS.values():
        for each in claim.exhibits:
            assert "calc." not in each.run, f"{claim.key}: {each.shows}"
            assert "runs." not in each.proof or not each.run, f"{claim.key}: {each.shows}"


@pytest.mark.parametrize("num_stages", [2, 3])
def test_the_quoted_formula_is_far_from_what_ranks_do(num_stages):
    """(p-1)/(2m+p-1) for m = 2, against the order of real ranks: the runs tell the two apart."""
    costs = Costs(forward=1, input_gradient=1, weight_gradient=1)
    found = replayed_step(plan(gpipe, num_stages, 2), costs).bubble()
    assert found == pytest.approx(float(calc.bubble_fraction(num_stages, 2, "gpipe")), rel=1e-9)
    assert found > 1.4 * (num_stages - 1) / (4 + num_stages - 1)


def test_findings_without_runs_measure_nothing():
    (first, *_) = findings(CLAIMS["gpipe-10-4"], measure=False)
    assert first.measured is None and first.measured_text == ""
    assert first.found == pytest.approx(9 / 13)
