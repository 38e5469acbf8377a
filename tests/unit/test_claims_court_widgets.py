"""Votes and judgements, as a notebook shows them."""

import re
from dataclasses import replace

import pytest

from labkit import progress
from labkit.course.pipeline import evidence
from labkit.interview.court import VERDICTS, Evidence, findings, load_claims, record
from labkit.notebook import court, docket, judge, vote
from labkit.progress import clock, practice


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(court, "_unsaved", {})
    return tmp_path / "home"


def test_a_button_votes_and_the_vote_is_kept():
    box = vote("ring-8")
    box._buttons.value = "wrong"
    (event,) = progress.events("ring-8", "vote")
    assert event.detail == {"verdict": "wrong"}
    assert "You say: wrong" in vote("ring-8")._status.value
    assert vote("ring-8")._buttons.value == "wrong"


def test_there_is_a_button_for_each_verdict_that_says_what_it_means():
    buttons = vote("ring-8")._buttons
    assert [name for name, _ in buttons.options] == list(VERDICTS)
    assert list(buttons.tooltips) == [each.meaning for each in VERDICTS.values()]
    assert buttons.description


def test_the_latest_vote_counts_and_the_same_vote_is_stored_once():
    box = vote("ring-8")
    for verdict in ("wrong", "right", "right"):
        box.choose(verdict)
    assert [each.detail["verdict"] for each in progress.events("ring-8", "vote")] == [
        "wrong",
        "right",
    ]
    assert "You voted 'right', and so" in repr(judge("ring-8", measure=False))


def test_before_a_vote_nothing_is_chosen():
    assert vote("ring-8")._buttons.value is None
    assert "You did not vote." in repr(judge("ring-8", measure=False))


def test_a_vote_that_cannot_be_stored_counts_in_this_session(home):
    home.write_text("a file where the folder should be")
    with pytest.warns(progress.ProgressWarning):
        vote("70b-280").choose("wrong")
    assert "You voted 'wrong'" in repr(judge("70b-280", measure=False))


def ratings(key):
    return [event.detail["rating"] for event in progress.events(f"claim/{key}", "answer")]


def test_a_judged_vote_is_an_answer_once():
    vote("ring-8").choose("right")
    vote("70b-280").choose("right")
    assert ratings("ring-8") == []
    for key in ("ring-8", "70b-280", "ring-8", "gpipe-4"):
        judge(key, measure=False)
    assert (ratings("ring-8"), ratings("70b-280"), ratings("gpipe-4")) == (["good"], ["again"], [])
    vote("70b-280").choose("wrong")  # the verdict has been read: this is copying
    judge("70b-280", measure=False)
    assert ratings("70b-280") == ["again"]


def test_a_claim_that_is_due_is_open_again(monkeypatch):
    vote("ring-8").choose("right")
    judge("ring-8", measure=False)
    assert vote("ring-8")._buttons.value == "right"
    later_s = practice.state("claim/ring-8").due_s + 60
    monkeypatch.setattr(clock, "now_s", lambda: later_s)
    assert [state.subject for state in practice.due()] == ["claim/ring-8"]
    again = vote("ring-8")
    assert again._buttons.value is None and "Your vote?" in again._status.value
    again._buttons.value = "right"
    assert vote("ring-8")._buttons.value == "right"
    judge("ring-8", measure=False)
    judge("ring-8", measure=False)
    assert ratings("ring-8") == ["good", "good"]
    assert len(progress.events("ring-8", "vote")) == 2


def test_a_vote_that_could_not_be_stored_is_no_answer(monkeypatch):
    monkeypatch.setitem(court._unsaved, "ring-8", "right")
    assert "so does the court" in repr(judge("ring-8", measure=False))
    assert ratings("ring-8") == []


def test_static_forms_are_the_same_for_every_reader():
    box = vote("gpipe-4")
    before = box._repr_mimebundle_()
    box.choose("right")
    after = box._repr_mimebundle_()
    for form in ("text/plain", "text/html"):
        assert before[form] == after[form]
        assert "37.5%" in before[form] and "under-specified" in before[form]


def test_a_judgement_shows_claimed_and_calculated_and_the_reasons():
    text, html = repr(judge("bubble-8-16", measure=False)), judge("bubble-8-16", measure=False).html
    for shown in (text, html):
        assert "half right" in shown and "43.75%" in shown and "30.4%" in shown
        assert load_claims()["bubble-8-16"].confusion.split(".")[0] in shown
    assert "calc.bubble_fraction(8, 16)" in html


def test_a_run_that_contradicts_the_calculation_is_not_passed_over(monkeypatch):
    one, two = findings(load_claims()["bubble-8-16"], measure=False)
    for within, said in ((0.2, "This machine is busy"), (0.0, "One of them is wrong")):
        exhibit = replace(one.exhibit, within=within)
        found = [replace(one, exhibit=exhibit, measured=2 * one.found), two]
        monkeypatch.setattr(court, "findings", lambda *_, found=found, **__: found)
        shown = judge("bubble-8-16")
        assert said in repr(shown) and said in shown.html


def test_a_recorded_time_says_when_and_where_and_one_measured_again_does_not(monkeypatch):
    """The exhibits of GPipe, whose runs are replaced: nothing is measured in this test."""
    kept = record()
    for shown in (repr(judge("gpipe-10-4")), judge("gpipe-10-4").html):
        assert kept.date in shown and kept.machine in shown
    monkeypatch.setattr(
        evidence, "gpipe_spans", lambda *_: kept.times["pipeline.evidence.gpipe_spans(10, 4)"]
    )
    assert kept.date not in repr(judge("gpipe-10-4", remeasure=True))
    assert kept.date not in repr(judge("gpipe-10-4", measure=False))
    assert kept.date not in repr(judge("70b-280"))


def test_a_published_figure_is_called_so_and_what_is_pending_is_said(monkeypatch):
    shown = judge("vllm-24x")
    assert "3.5x, published" in repr(shown)
    assert "pending" not in shown.html
    claim = load_claims()["ring-8"]
    waiting = replace(claim, evidence=(*claim.evidence, Evidence(pending="a switch that adds")))
    monkeypatch.setattr(court, "claim_of", lambda key: waiting)
    assert "pending: a switch that adds" in judge("ring-8").html


def test_the_docket_counts_votes_and_agreement():
    vote("ring-8").choose("right")
    vote("70b-280").choose("right")
    text = repr(docket())
    assert re.findall(r"\d+", text.splitlines()[0]) == ["38", "2", "1"]
    assert len(text.splitlines()) == 39
    verdicts = [line[:16].strip() for line in text.splitlines()[1:]]
    assert sum(map(bool, verdicts)) == 2, "a claim without a vote keeps its verdict"


def test_what_does_not_exist_is_refused_with_what_does():
    with pytest.raises(KeyError, match="the claims are ring-8"):
        vote("gpipe")
    with pytest.raises(KeyError, match="not on trial"):
        judge("gpipe")
    with pytest.raises(ValueError, match="right with care"):
        vote("ring-8").choose("guilty")
