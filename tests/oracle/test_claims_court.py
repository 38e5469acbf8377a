"""The claims court: every verdict follows from its exhibits, and every number is proved.

What journals and meters count must agree exactly; what a clock reads, within each exhibit's own
tolerance. One test a claim, so that runs are shared within a process.
"""

import pytest

from labkit.interview.court import faults, findings, load_claims
from labkit.interview.runs import idle_time, throttled_tensors

CLAIMS = load_claims()
WITH_CLOCKS = {key for key, each in CLAIMS.items() if any(one.within for one in each.exhibits)}


@pytest.mark.parametrize("key", [key for key in CLAIMS if key not in WITH_CLOCKS])
def test_a_verdict_holds(key):
    assert faults(CLAIMS[key]) == []


@pytest.mark.alone
@pytest.mark.clock
@pytest.mark.parametrize("key", sorted(WITH_CLOCKS))
def test_a_verdict_that_a_clock_has_part_in_holds(key):
    idle_time.timing.cache_clear()  # tried again, it is measured again
    throttled_tensors._by_count.cache_clear()
    assert faults(CLAIMS[key]) == []


def test_most_claims_are_tried_by_a_real_run():
    measured = [
        key
        for key, claim in CLAIMS.items()
        if any(each.run or "runs." in each.proof for each in claim.exhibits)
    ]
    assert len(measured) >= 13, measured


def test_what_is_measured_is_no_repetition_of_what_is_predicted():
    for claim in CLAIMS.values():
        for each in claim.exhibits:
            assert "calc." not in each.run, f"{claim.key}: {each.shows}"
            assert "runs." not in each.proof or not each.run, f"{claim.key}: {each.shows}"


@pytest.mark.parametrize("num_stages", [2, 3])
@pytest.mark.alone
@pytest.mark.clock
def test_the_quoted_formula_is_far_from_what_ranks_do(num_stages):
    """(p-1)/(2m+p-1) for m = 2, against clocks: the runs can tell the two apart."""
    idle_time.timing.cache_clear()
    quoted, true = ((num_stages - 1) / (k * 2 + num_stages - 1) for k in (2, 1))
    found = idle_time.share(num_stages, 2)
    assert abs(found - true) < abs(found - quoted)


def test_findings_without_runs_measure_nothing():
    (first, *_) = findings(CLAIMS["gpipe-10-4"], measure=False)
    assert first.measured is None and first.measured_text == ""
    assert first.found == pytest.approx(9 / 13)
