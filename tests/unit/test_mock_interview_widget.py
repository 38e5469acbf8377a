"""The mock interview as a widget, by its buttons and a clock that is moved by hand."""

import asyncio
import sys

import pytest

from labkit import progress
from labkit.grade import engine
from labkit.grade.verdict import Outcome
from labkit.interview.mock import Item, Plan, interview, plan_interview
from labkit.notebook import mock_interview
from labkit.notebook.mock import MockInterview, clock_html, named
from labkit.progress import practice
from tests.virtual_loop import run_virtually

QUESTION = Item("question", "rl-1", "Reinforcement learning")
DRILL = Item("drill", "bubble_of_total", "Pipeline parallelism")
EXERCISE = Item("exercise", "ring_all_reduce", "Collectives and networks")


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def box_of(*items, minutes=45):
    """(the box, its clock)"""
    now_s = [0.0]
    return MockInterview(Plan(minutes, "senior", 1, items), lambda: now_s[0]), now_s


def shown(box):
    """The labels of the buttons that can be seen."""
    return [each.description for each in box._buttons if each.layout.display != "none"]


def grade(box, rating):
    """Grade the question on show, and its follow-up."""
    view = box.view
    while box.view is view:
        view.question.grade(rating)


def answer_drill(box):
    asked = box.view._question.asked
    box.view._question.submit(asked.question.answer_text)


def test_a_question_is_shown_graded_and_stored_as_a_card():
    box, now_s = box_of(QUESTION)
    assert shown(box) == ["Start"]
    box._start.click()
    assert shown(box) == ["Skip, for 0 points", "End the interview"]
    assert "1 of 1: a question" in box._place.value
    view, question = box.view, box.view.question
    question.reveal()
    question._points[0].value = True
    now_s[0] = 90
    question._grades["hard"].click()
    follow_up = question.card.chain[0]
    assert view.question.card == follow_up and box.interview.taken == []
    grade(box, "again")
    (taken,) = box.interview.taken
    points = [*question.card.rubric, *(f"{each} (follow-up)" for each in follow_up.rubric)]
    assert taken.score == pytest.approx(1 / len(points)) and taken.seconds == 90
    assert list(taken.missed) == points[1:]
    (event,) = progress.events("card/rl-1", "answer")
    assert event.detail["rating"] == "hard" and shown(box) == ["See the report"]
    assert progress.events(f"card/{follow_up.id}", "answer")
    box._next.click()
    assert shown(box) == [] and "1 of 1 items" in box.report.report.markdown
    assert len(progress.events(kind="mock")) == 1


def test_a_drill_is_judged_and_its_score_is_that_of_the_terminal():
    box, _ = box_of(DRILL, QUESTION)
    box.start()
    same = interview.asked_drill(DRILL, 1)
    assert box.view._question.asked.question == same.question, "other numbers than labkit mock"
    box.view._question.submit("1234%")
    answer_drill(box)
    assert box.interview.taken[0].score == 0.5
    assert practice.state("drill/bubble_of_total").num_answers == 1
    assert shown(box) == ["Next", "End the interview"]
    box._next.click()
    assert "2 of 2: a question" in box._place.value


def test_an_exercise_is_checked_until_it_passes(monkeypatch):
    outcomes = iter([Outcome.WRONG, Outcome.PASSED])

    class Verdict:
        def __init__(self, name):
            self.outcome = next(outcomes)

        def __bool__(self):
            return self.outcome is Outcome.PASSED

        def _repr_html_(self):
            return f"it is {self.outcome.value}"

    monkeypatch.setattr(engine, "check", Verdict)
    box, _ = box_of(EXERCISE)
    box.start()
    assert "Budget, on n ranks" in box._item.children[0].children[0].value, "the contract is shown"
    box.view._check.click()
    assert "it is wrong" in box.view._verdict.value and not box.interview.taken
    view = box.view
    view._check.click()
    assert "it is passed" in view._verdict.value and view._check.disabled
    assert box.interview.taken[0].score == 1


@pytest.mark.parametrize("error", [FileNotFoundError("no such file"), KeyboardInterrupt()])
def test_a_check_that_cannot_be_or_is_interrupted_says_so(monkeypatch, error):
    def check(name):
        raise error

    monkeypatch.setattr(engine, "check", check)
    box, _ = box_of(EXERCISE)
    box.start()
    box.view.check()
    said = "no such file" if str(error) else "interrupted"
    assert said in box.view._verdict.value and not box.view._check.disabled
    assert box.is_going and not box.interview.taken


def test_what_is_skipped_counts_nothing_and_a_card_is_stored_as_not_known():
    box, _ = box_of(QUESTION, DRILL, EXERCISE)
    box.start()
    for _ in range(3):
        box._skip.click()
    assert [each.score for each in box.interview.taken] == [0, 0, 0]
    assert box.report is not None
    for subject in ("card/rl-1", "drill/bubble_of_total"):
        (event,) = progress.events(subject, "answer")
        assert event.detail["rating"] == "again"
    assert box.interview.taken[2].missed == (interview.SKIPPED,)


def test_what_is_skipped_counts_nothing_whatever_is_ticked():
    box, _ = box_of(QUESTION, DRILL)
    box.start()
    question = box.view.question
    question.reveal()
    for point in question._points:
        point.value = True
    box._skip.click()
    (taken,) = box.interview.taken
    assert taken.score == 0 and taken.missed[: len(question.card.rubric)] == question.card.rubric
    (event,) = progress.events("card/rl-1", "answer")
    assert event.detail["rating"] == "again" and event.detail["missed"] == list(
        question.card.rubric
    )


def test_what_was_shown_when_it_was_ended_counts_nothing_and_earns_no_praise():
    box, _ = box_of(QUESTION, DRILL, EXERCISE)
    box.start()
    view = box.view
    while box.view is view:
        for point in view.question._points:
            point.value = True
        view.question.grade("easy")
    box._next.click()
    box._end.click(), box._end.click()
    report = box.report.report
    assert report.score == pytest.approx(4 / 6) and "strong" not in report.markdown
    assert "1 of 3 items" in report.markdown and "4 of 21 planned" in report.markdown
    assert progress.events("drill/bubble_of_total", "answer") == [], "nothing was answered"


def test_time_that_is_up_is_reported_and_cuts_nobody_off():
    box, now_s = box_of(QUESTION, DRILL, minutes=6)
    box.start()
    now_s[0] = 4 * 60 + 30
    assert box._tick()
    assert "1:30 left of 6:00" in box._clock.value and "0:30 over" in box._clock.value
    now_s[0] = 361
    assert not box._tick(), "the clock has nothing more to say"
    assert "Time is up" in box._clock.value and box.view is not None
    grade(box, "good")
    assert shown(box) == ["See the report"]
    box.next()
    assert "drill bubble_of_total" in box.report.report.markdown


def test_to_end_early_takes_two_presses_and_reports_what_there_is():
    box, _ = box_of(QUESTION, DRILL)
    box.start()
    grade(box, "good")
    box._end.click()
    assert box.report is None and "again" in box._note.value
    box._next.click()
    assert box._note.value == "", "going on takes it back"
    box._end.click(), box._end.click()
    assert "1 of 2 items" in box.report.report.markdown
    box.next(), box.skip(), box.end(), box.start()
    assert len(progress.events(kind="mock")) == 1 and len(box.interview.taken) == 2


def test_an_answer_after_the_end_counts_no_more():
    box, _ = box_of(QUESTION, DRILL)
    box.start()
    question = box.view.question
    box.leave()
    question.grade("easy")
    (taken,) = box.interview.taken
    assert taken.score == 0 and box.report.report.score == 0


def test_another_interview_ends_the_one_before():
    first = mock_interview(10, seed=1)
    assert "10 minutes" in repr(first) and first.plan == plan_interview(10, "senior", 1)
    first.start()
    first.skip()
    second = mock_interview(10, seed=1)
    assert first.report is not None and "another one was started" in first._note.value
    assert len(progress.events(kind="mock")) == 1 and second.report is None
    mock_interview(10, seed=2)
    assert second.report is None, "one that was never started has no report"


@pytest.mark.parametrize("given", [{"level": "wizard"}, {"minutes": 5}])
def test_what_is_no_interview_is_refused(given):
    with pytest.raises(ValueError, match=r"give|minutes"):
        mock_interview(**given)


async def ticks():
    """Some seconds on the loop's clock, which take no time."""
    await asyncio.sleep(3)


def test_the_clock_runs_by_itself_and_stops_with_the_interview():
    box, now_s = box_of(QUESTION, minutes=6)

    async def work():
        box.start()
        now_s[0] = 61
        await ticks()
        assert "4:59 left of 6:00" in box._clock.value and box._ticker.is_running
        box.end(), box.end()
        await ticks()
        assert not box._ticker.is_running
        assert len(asyncio.all_tasks()) == 1, "nothing goes on after the end"

    run_virtually(work())


def test_the_clock_stops_at_the_end_of_the_time_and_when_the_box_is_closed():
    async def work():
        for stop in ("time", "close", "another"):
            box, now_s = box_of(QUESTION, minutes=6)
            sys.modules[MockInterview.__module__]._latest.append(box)
            box.start()
            await ticks()
            assert box._ticker.is_running
            if stop == "time":
                now_s[0] = 360
            elif stop == "close":
                box._clock.close()
            else:
                mock_interview(10)
            await ticks()
            assert not box._ticker.is_running, stop
        assert len(asyncio.all_tasks()) == 1

    run_virtually(work())


def test_an_interrupt_stops_the_clock_and_not_the_loop(monkeypatch):
    box, _ = box_of(QUESTION, DRILL)

    async def work():
        box.start()
        with monkeypatch.context() as patch:
            patch.setattr(box.interview, "clock", interrupted)
            await ticks()
        assert not box._ticker.is_running
        box.skip()
        await ticks()
        assert box._ticker.is_running, "the next item starts it again"
        box._ticker.stop()

    def interrupted():
        raise KeyboardInterrupt

    run_virtually(work())


def test_the_report_is_saved_where_the_reader_says(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    box, _ = box_of(DRILL)
    box.start()
    box.skip()
    view = box.report
    assert view._file.description and view._file.value.startswith("~/")
    view._file.value = "~/mine.html"
    view._save_html.click()
    view._save_markdown.click()
    assert "<table>" in (tmp_path / "mine.html").read_text()
    assert (tmp_path / "mine.md").read_text() == view.report.markdown
    assert str(tmp_path / "mine.md") in view._saved.value
    assert view.save("md") is None and "is there already" in view._saved.value
    view._file.value = str(tmp_path / "nowhere" / "mine")
    assert view.save("md") is None and "there is no folder" in view._saved.value


def test_an_ending_that_was_typed_is_no_part_of_the_name():
    assert named(" /a/b.md", "html").name == "b.html"
    assert named("/a/b.v2", "md").name == "b.v2.md"


def test_a_store_that_cannot_be_written_is_reported_in_place(home):
    home.write_text("a file where the folder should be")
    box, _ = box_of(QUESTION)
    box.start()
    box.skip()
    assert box.report.report.score == 0
    page = box.report.widget.children[0].value  # the summary
    assert "could not be written" in page and "not stored" in page


def test_static_forms_give_no_question_away_and_change_for_no_reader():
    box, _ = box_of(QUESTION, DRILL)
    before = box._repr_mimebundle_()
    box.start()
    after = box._repr_mimebundle_()
    for form in ("text/plain", "text/html"):
        assert before[form] == after[form] and "1 question, 1 drill" in before[form]
        assert "gradients" not in before[form]


def test_every_control_has_words_on_it():
    box, _ = box_of(QUESTION)
    box.start()
    box.skip()
    for control in (*box._buttons, box.report._file, box.report._save_html):
        assert control.description


def test_the_clock_is_marked_as_one():
    box, _ = box_of(QUESTION)
    box.start()
    assert 'role="timer"' in clock_html(box.interview)
