"""straggler_or_deadlock: jobs are what they are said to be, and no rule of thumb is right."""

import random

import pytest

from labkit.grade.graders.straggler_answers import wrong_form, wrong_kind, wrong_rank
from labkit.grade.graders.straggler_cases import Case, draw, run_plan
from labkit.grade.graders.straggler_jobs import STORIES
from labkit.grade.graders.straggler_theories import MISREADINGS, THEORIES, kind_by_cpu

# Roles that are bound to some ranks, so that a shortcut does not work by chance.
NEVER = {"pair": {0, 1}, "ahead": {0, 1}, "sends": {0, 4}, "aside": {0}, "crossed": {4}}


@pytest.fixture(scope="module")
def cases():
    return [run_plan(plan) for plan in draw(random.Random(7))]


def test_every_check_has_a_job_of_each_kind_with_any_culprit():
    plans = [draw(random.Random(seed)) for seed in range(60)]
    assert all(sorted(plan.story for plan in drawn) == sorted(STORIES) for drawn in plans)
    for story in STORIES:
        culprits = {plan.order[0] for drawn in plans for plan in drawn if plan.story == story}
        assert culprits == {0, 1, 2, 3, 4} - NEVER.get(story, set())


def test_whoever_looks_for_no_circle_comes_to_a_rank_that_leads_into_one():
    for seed in range(60):
        order = {plan.story: plan.order for plan in draw(random.Random(seed))}
        # d is blocked and waited for, and before all others of that kind, or behind them.
        assert order["aside"][3] == 0 and order["sends"][3] == 4


def test_misread_members_and_numbers_lead_past_the_culprit():
    for seed in range(60):
        for plan in draw(random.Random(seed)):
            a, b, c, *_ = plan.order
            assert plan.story not in ("pair", "ahead") or b < c < a


def test_no_misreading_of_the_waits_is_right_every_time(cases):
    right = [(case.is_deadlock, case.ranks) for case in cases]
    for misreading in MISREADINGS:
        answers = misreading.answers(cases, 0, 0)
        assert any(
            (kind == "deadlock") != is_deadlock or rank not in ranks
            for (kind, rank), (is_deadlock, ranks) in zip(answers, right, strict=True)
        ), misreading.name
        assert wrong_kind(cases, answers).diagnosis == misreading.name


def test_one_rank_has_posted_a_later_collective_than_another_waits_for(cases):
    (ahead,) = (case for case in cases if case.story == "ahead")
    waiting = [one for one in ahead.shown if one["state"] == "blocked" and one["peer"] is None]
    posted = max(one["posted"]["world"] for one in ahead.shown)
    assert {one["number"] for one in waiting} == {posted - 1}


def test_what_is_shown_is_plain_data_of_the_moment(cases):
    for case in cases:
        assert [one["rank"] for one in case.shown] == [0, 1, 2, 3, 4]
        for one in case.shown:
            assert one["state"] in ("blocked", "running", "returned")
            assert 0 <= one["seconds"] < 60 and 0 <= one["cpu"] < 8
            assert one["posted"]["world"] >= 1 and one["rank"] in one["members"]
            assert bool(one["stack"]) == (one["state"] != "returned")


def test_a_rank_that_runs_is_no_straggler_where_others_wait_in_a_circle(cases):
    (aside,) = (case for case in cases if case.story == "aside")
    assert aside.is_deadlock and len(aside.ranks) == 2
    assert any(one["state"] == "running" for one in aside.shown)


def test_a_rank_that_returned_is_no_deadlock_where_nobody_waits_for_it(cases):
    (slow,) = (case for case in cases if case.story == "input")
    assert not slow.is_deadlock
    assert any(one["state"] == "returned" for one in slow.shown)


def test_no_rule_of_thumb_is_right_every_time(cases):
    for theory in THEORIES:
        assert any(theory.blamed(case.shown) not in case.ranks for case in cases), theory.name


def test_a_core_counts_as_busy_by_the_plan_not_by_the_order_of_what_was_measured():
    """On a machine that is short of cores, busy ones may be measured in just the order of an answer
    that never looked at them."""
    loads = {"compute": 0.5, "pair": 0.4, "ahead": 0.45, "left": 0.2, "crossed": 0.3, "aside": 0.25}
    jobs = [
        Case(story, [{"cpu": load}], story in ("left", "crossed", "aside"), frozenset({0}), True)
        for story, load in loads.items()
    ]
    jobs.append(Case("input", [{"cpu": 0.0}], False, frozenset({0})))
    by_the_order = ["straggler"] * 3 + ["deadlock"] * 4
    assert not kind_by_cpu(jobs, by_the_order)
    assert kind_by_cpu(jobs, ["straggler"] * 6 + ["deadlock"])


def test_some_jobs_of_either_kind_keep_a_core_busy(cases):
    kinds = [(case.kind, case.has_busy_core) for case in cases]
    assert set(kinds) == {(kind, busy) for kind in ("straggler", "deadlock") for busy in (0, 1)}


def test_right_answers_are_right(cases):
    answers = [(case.kind, max(case.ranks)) for case in cases]
    assert wrong_kind(cases, answers) is None and wrong_rank(cases, answers) is None


def test_a_wrong_answer_shows_the_job_as_a_table(cases):
    answers = [("deadlock", min(case.ranks)) for case in cases]
    finding = wrong_kind(cases, answers)
    assert finding.diagnosis == "calls everything a deadlock"
    assert finding.details.splitlines()[0].split()[:3] == ["rank", "state", "operation"]
    assert "{" not in finding.details and "world.1." in finding.details


def test_no_row_of_the_table_is_broken_in_a_terminal_of_80_columns(cases):
    for case in cases:
        rows = wrong_form(None, case).details.splitlines()
        assert len(rows) == 2 * (1 + len(case.shown)) + 1 and max(map(len, rows)) <= 76


def test_a_rank_that_waits_for_a_circle_is_not_in_it():
    shown = [
        {"state": "blocked", "peer": 1, "posted": {}, "number": 1},
        {"state": "blocked", "peer": 0, "posted": {}, "number": 1},
        {"state": "blocked", "peer": 0, "posted": {}, "number": 1},
    ]
    for rank, one in enumerate(shown):
        one |= {"rank": rank, "operation": "send", "group": "world", "members": [0, 1, 2]}
        one |= {"seconds": 1.0 + rank, "cpu": 0.0, "stack": "send"}
    case = Case("sends", shown, True, frozenset({0, 1}))
    assert wrong_rank([case], [("deadlock", 1)]) is None
    assert wrong_rank([case], [("deadlock", 2)]) is not None
