"""The court's data: every claim is there, broken data is refused, a wrong case is found out."""

from dataclasses import replace
from fractions import Fraction

import pytest

from labkit import calc
from labkit.interview.cards import load_topics
from labkit.interview.court import (
    VERDICTS,
    ClaimsError,
    Evidence,
    Exhibit,
    findings,
    load_claims,
    read_claims,
)
from tests.bank_faults import claim_faults as faults

CLAIMS = load_claims()
GOOD = """
[[claims]]
key = "one"
group = "pipelines"
claim = "4 stages and 4 microbatches lose 43% of the time."
verdict = "right"
truth = "Of total time it is 42.9%."
confusion = "Nothing was confused."
topics = ["pp-2"]
sources = ["Huang et al., GPipe, arXiv:1811.06965"]
evidence = [{ says = "42.9%", proof = "calc.bubble_fraction(4, 4)" }]
exhibits = [
  { shows = "of total", claimed = "43%", stands = true, proof = "calc.bubble_fraction(4, 4)" },
]
"""


def good():
    return read_claims(GOOD)["one"]


def test_every_claim_is_on_trial():
    assert len(CLAIMS) == 38


def test_every_verdict_is_given_at_least_once():
    assert {claim.verdict for claim in CLAIMS.values()} == set(VERDICTS)


def test_a_verdict_is_distinguished_from_every_other_by_its_meaning():
    assert len({each.meaning for each in VERDICTS.values()}) == len(VERDICTS)


def test_topics_and_notebooks_exist(request):
    notebooks = {path.stem for path in (request.config.rootpath / "notebooks").glob("*.ipynb")}
    for claim in CLAIMS.values():
        assert set(claim.topics) <= set(load_topics()), claim.key
        assert not claim.notebook or claim.notebook in notebooks, claim.key


def test_no_gpipe_with_4_microbatches_loses_three_eighths():
    """By the closed forms in fractions: (p-1)/(m+p-1) and (p-1)/m."""
    lost = {Fraction(p - 1, 4 + p - 1) for p in range(1, 200)}
    added = {Fraction(p - 1, 4) for p in range(1, 200)}
    assert Fraction(3, 8) not in lost | added


def test_the_quoted_bubble_is_one_of_no_interleaved_schedule_that_exists():
    for microbatches in (4, 32):
        with pytest.raises(ValueError, match="no multiple"):
            calc.bubble_fraction(10, microbatches, "interleaved", virtual=2)
    of_forty = float(calc.bubble_fraction(10, 40, "interleaved", virtual=2))
    assert of_forty == pytest.approx(9 / (2 * 40 + 9))  # the formula is that schedule's


def test_a_good_case_has_no_faults():
    assert faults(good()) == []


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"verdict": "wrong"}, "make no 'wrong'"),
        ({"verdict": "half right"}, "make no 'half right'"),
        ({"truth": "It is 42.9% of the total time, 75% of the ideal."}, "'75%'"),
        ({"truth": "It is 3/7 of the total time."}, "'42.9%' is not in the text"),
        ({"given": ("99 GB",)}, "'99 GB' is not in the text"),
        ({"evidence": (Evidence(says="42.9%", proof="calc.bubble_fraction(4, 5)"),)}, "37.5"),
        ({"evidence": (Evidence(says="42.9%", proof="0.429"),)}, "0.429"),
    ],
)
def test_a_case_that_does_not_hold_is_found_out(changes, fault):
    found = faults(replace(good(), **changes))
    assert any(fault in each for each in found), found


def exhibit(**changes):
    whole = {"shows": "share", "claimed": "43%", "stands": True}
    return Exhibit(**whole | {"proof": "calc.bubble_fraction(4, 4)"} | changes)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"claimed": "44%"}, "42.9% makes stands = False"),
        ({"stands": False}, "42.9% makes stands = True"),
        ({"claimed": "much", "at_least": 0.5}, "makes stands = False"),
        ({"claimed": "little", "more_than": 3 / 7}, "makes stands = False"),
        ({"claimed": "little", "at_most": 0.4}, "makes stands = False"),
        ({"run": "calc.bubble_fraction(4, 5)"}, " 37.5% is measured"),
        ({"run": "calc.bubble_fraction(4, 5)", "within": 0.1}, "~37.5% is measured"),
    ],
)
def test_an_exhibit_that_does_not_hold_is_found_out(changes, fault):
    found = faults(replace(good(), exhibits=(exhibit(**changes),)))
    assert any(fault in each for each in found), found


def test_a_tolerance_covers_a_run_and_no_more():
    near = exhibit(run="calc.bubble_fraction(4, 5)", within=0.15)
    assert faults(replace(good(), exhibits=(near,))) == []


def test_bounds_are_what_a_claim_in_words_means():
    for bounds in ({"at_least": 3 / 7}, {"more_than": 0.4, "at_most": 0.5}):
        (found,) = findings(replace(good(), exhibits=(exhibit(claimed="so", **bounds),)))
        assert found.stands


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('verdict = "right"', 'verdict = "true"', "verdict = 'true'"),
        ('group = "pipelines"\n', "", "group"),
        ('key = "one"', 'kay = "one"', "kay"),
        ("stands = true, ", "", "stands"),
        ('says = "42.9%", ', 'says = "42.9%", source = "a page", ', "42.9%"),
        (', proof = "calc.bubble_fraction(4, 4)" },', " },", "of total"),
        ("exhibits = [", "exhibits = []\nspare = [", "spare"),
        ("[[claims]]", "[[claims", "TOML"),
        ("[[claims]]", "[[claim]]", "[[claims]]"),
    ],
)
def test_broken_data_is_refused(old, new, message):
    broken = GOOD.replace(old, new, 1) if "calc" not in old else new.join(GOOD.rsplit(old, 1))
    assert broken != GOOD
    with pytest.raises(ClaimsError) as caught:
        read_claims(broken)
    assert message in str(caught.value)


def test_two_claims_of_one_key_are_refused():
    with pytest.raises(ClaimsError, match="one"):
        read_claims(GOOD + GOOD)
