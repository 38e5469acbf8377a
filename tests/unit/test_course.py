"""Where a learner goes on, from what was done so far."""

import pytest

from labkit import progress
from labkit.grade import hints
from labkit.grade.catalog import load_catalog

NAMES = list(load_catalog())


@pytest.fixture(autouse=True)
def own_home(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path / "home"))


def check(name, outcome):
    progress.record("check", name, outcome=outcome)


def test_the_first_is_where_one_begins():
    assert hints.where_to_go_on() == NAMES[0]
    check(NAMES[3], "not attempted")  # `labkit check` without a name checks every stub
    assert hints.where_to_go_on() == NAMES[0]


def test_work_goes_on_where_it_was_left():
    check(NAMES[5], "wrong")
    assert hints.where_to_go_on() == NAMES[5]
    check("an_exercise_that_is_gone", "wrong")
    assert hints.where_to_go_on() == NAMES[5]


def test_after_a_pass_the_next_open_one_comes():
    check(NAMES[5], "passed")
    check(NAMES[4], "passed")
    assert hints.where_to_go_on() == NAMES[6]
    assert hints.next_open(NAMES[3]) == NAMES[6]


def test_after_the_last_comes_the_first():
    check(NAMES[0], "passed")
    check(NAMES[-1], "passed")
    assert hints.where_to_go_on() == NAMES[1]


def test_where_all_are_passed_the_next_one_comes():
    for name in NAMES:
        check(name, "passed")
    assert hints.next_open(NAMES[2]) == NAMES[3]
    assert hints.next_open(NAMES[-1]) == NAMES[0]


def test_an_open_one_is_never_its_own_next():
    for name in NAMES[1:]:
        check(name, "passed")
    assert hints.next_open(NAMES[0]) == NAMES[1]


def test_the_standing_of_each_is_reported():
    check(NAMES[1], "wrong")
    progress.record("solution", NAMES[1])
    check(NAMES[1], "passed")
    check(NAMES[2], "hung")
    known = hints.standings()
    assert list(known) == NAMES
    assert known[NAMES[1]] == "passed (after seeing the solution)"
    assert (known[NAMES[2]], known[NAMES[3]]) == ("hung", "not attempted")
    assert [name for name in NAMES if hints.is_passed(known[name])] == [NAMES[1]]
