"""How far a learner is: what is known of made-up events, and the page that shows it."""

import re

import pytest

from labkit import progress
from labkit.interview.summary import Tally, notebooks_of, standing, standing_of, subjects_by_group
from labkit.notebook import dashboard
from labkit.notebook.progress import page_html, page_text
from labkit.progress import Event, clock, practice
from labkit.progress.practice import record_check

DAY_S, NOON_S = 86_400, 1_700_049_600
GROUPS = list(subjects_by_group())


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def answered(subject, rating, day=0):
    return Event(NOON_S + day * DAY_S, "answer", subject, {"rating": rating}, f"{subject}-{day}")


def rows_of(html, caption):
    """The cells of the table with this caption, as text, without its heading."""
    (table,) = [each for each in re.findall(r"<table.*?</table>", html) if caption in each]
    rows = re.findall(r"<tr>(.*?)</tr>", table)[1:]
    return [
        [re.sub("<[^>]*>", "", cell) for cell in re.findall(r"<t[hd].*?>(.*?)</t[hd]>", row)]
        for row in rows
    ]


def test_a_new_learner_sees_what_to_do_first():
    found = standing()
    assert found.is_new and found.streak == 0 and not any(found.due.values())
    page = page_html(found)
    assert "Nothing is stored yet" in page and "00_start_here.ipynb" in page
    assert "card()" in page and "drill()" in page and "check(" in page
    assert "<table" not in page and "Begin with" in page_text(found)


def test_on_the_site_a_new_learner_gets_links_instead_of_calls(monkeypatch):
    monkeypatch.setattr("labkit.notebook.progress.KEEPS_FILES", False)
    page = page_html(standing())
    assert "../try/cards.html" in page and "card()" not in page and "check(" not in page


def test_what_is_due_is_counted_by_day():
    events = [answered("card/co-8", "good"), answered("card/co-1", "easy")]
    found = standing_of(events, NOON_S + 3 * DAY_S)
    assert found.due["card"] == 1, "good came back after two days; easy takes eight"
    assert list(found.due_days.values()) == [1, 0, 0, 0, 0, 1, 0]
    rows = rows_of(page_html(found), "Due in the next seven days")
    assert [number for _, number in rows] == ["1", "0", "0", "0", "0", "1", "0"]
    assert "overdue included" in rows[0][0] and rows[5][0].startswith("Thursday")


def test_a_drill_of_an_older_labkit_is_never_due():
    events = [answered("drill/stand_still", "again"), answered("drill/outage_cost", "again")]
    found = standing_of(events, NOON_S + DAY_S)
    assert found.due["drill"] == sum(found.due_days.values()) == 1


def test_topics_come_weakest_first_and_the_next_one_is_where_something_is_due():
    found = standing_of([answered("card/co-8", "good"), answered("card/pp-1", "again")], NOON_S)
    assert found.next_topic not in ("Collectives and networks", "Pipeline parallelism")
    late = standing_of([answered("card/co-8", "good")], NOON_S + 5 * DAY_S)
    assert late.next_topic == "Collectives and networks"
    values = [late.topics[group].value for group in late.weakest_first]
    assert values == sorted(values) and set(late.weakest_first) == set(GROUPS)
    rows = rows_of(page_html(late), "Mastery by topic")
    assert [row[0].removesuffix(" (next)") for row in rows] == late.weakest_first
    assert rows[-1][1] == f"{values[-1]:.0%}" and rows[-1][3] == "1"
    assert "15_long_sequences" in notebooks_of("Long sequences and context parallelism")


def test_exercises_show_attempts_hints_and_whether_the_solution_was_seen_first():
    name = "ring_all_reduce"
    progress.record("hint", name, number=1)
    record_check(name, attempted=True, passed=False, outcome="wrong")
    progress.record("solution", name)
    record_check(name, attempted=True, passed=True, outcome="passed")
    found = standing()
    (row,) = rows_of(page_html(found), "Exercises: 1 of")
    today = f"{clock.day_of(clock.now_s()):%d %b %Y}"
    assert row == [name, "✓ yes", "2", "1", "seen before", today]
    assert f"Not started: {len(found.exercises) - 1}" in page_html(found)


def test_drills_predictions_and_votes_count_right_of_judged():
    events = [
        answered("drill/bubble_of_total", "good", 0),
        answered("drill/bubble_of_total", "hard", 1),
        answered("drill/bubble_of_total", "again", 2),
        answered("drill/one_of_an_older_labkit", "good", 2),
        answered("prediction/start-bytes", "good"),
        answered("prediction/pp-saved", "again"),
        Event(NOON_S, "vote", "gpipe-10-4", {"verdict": "right"}),
        Event(NOON_S + 1, "vote", "gpipe-10-4", {"verdict": "wrong"}),
        Event(NOON_S, "vote", "bubble-8-16", {"verdict": "right"}),
        Event(NOON_S, "vote", "no claim any more", {"verdict": "right"}),
    ]
    found = standing_of(events, NOON_S + 2 * DAY_S)
    assert found.drills == {"Pipeline parallelism": Tally(3, 2, 1)}
    assert found.predictions == Tally(2, 1, 1) and found.votes == Tally(2, 1, 1)
    page = page_html(found)
    assert rows_of(page, "Drills by topic") == [["Pipeline parallelism", "2", "3", "1"]]
    assert rows_of(page, "votes on claims") == [
        ["Predictions", "1", "2"],
        ["Votes on claims", "1", "2"],
    ]


def test_interviews_show_the_latest_first():
    events = [
        Event(NOON_S + day * DAY_S, "mock", "senior", {"minutes": 45, "score": day / 10})
        for day in range(7)
    ]
    rows = rows_of(page_html(standing_of(events, NOON_S + 7 * DAY_S)), "Mock interviews")
    assert [row[3] for row in rows] == ["60%", "50%", "40%", "30%", "20%"]


def test_an_event_that_makes_no_sense_is_left_out_and_reported():
    progress.record("mock", "senior", minutes=45, score="x")
    progress.record("mock", "senior", minutes=45, score=0.5)
    progress.record("hint", "ring_all_reduce", number=[])
    practice.answer("card/co-8", "good")
    box = dashboard()
    assert [row[3] for row in rows_of(box._page.value, "Mock interviews")] == ["50%"]
    assert "mock&#x27;s score is &#x27;x&#x27;" in box._page.value
    assert "hint&#x27;s number is []" in box._page.value
    with pytest.warns(progress.ProgressWarning, match="rating 'fine'"):
        assert standing_of([answered("card/co-8", "fine")], NOON_S).num_events == 0


def test_refresh_reads_the_store_again():
    box = dashboard()
    assert "Nothing is stored yet" in box._page.value
    practice.answer("card/co-8", "good")
    (refresh,) = [each for each in box._widget.children[-1].children if hasattr(each, "click")]
    refresh.click()
    assert "1 day in a row" in box._page.value and "As of" in box._status.value


def test_a_store_that_cannot_be_read_is_reported_in_place(home):
    home.write_text("a file where the folder should be")
    box = dashboard()
    assert "could not be read" in box._page.value and "Nothing is stored" not in box._page.value


def test_without_fsrs_there_is_all_but_mastery(monkeypatch):
    monkeypatch.setattr("labkit.progress.scheduling.is_installed", lambda: False)
    practice.answer("card/co-8", "good")
    found = standing()
    assert found.topics == {} and found.next_topic is None and found.streak == 1
    assert "pip install fsrs" in page_html(found)


def test_the_static_form_is_of_nobody_and_that_of_given_events_is_theirs():
    practice.answer("card/co-8", "good")
    static = dashboard()._repr_mimebundle_()
    assert "in a row" not in static["text/html"] + static["text/plain"]
    given = dashboard(standing_of([answered("card/co-8", "good")], NOON_S))
    assert "1 day in a row" in given._repr_mimebundle_()["text/html"] and "1 day" in repr(given)
    assert "Refresh" not in str([type(each) for each in given._widget.children])


def test_tables_have_captions_and_scopes_and_bars_are_numbers_too():
    practice.answer("card/co-8", "good")
    page = page_html(standing())
    assert page.count("<caption") == page.count("<table") == 2
    assert "<th>" not in page and page.count("<th ") == page.count('<th scope="')
    for bar in re.findall(r'<span[^>]*>([^<]*)</span><div aria-hidden="true"', page):
        assert re.fullmatch(r"\d+%?", bar)
    assert "#" not in re.sub(r"var\([^)]*\)", "", page), "a colour that is not the theme's"


@pytest.mark.parametrize("value", ["x", 0, []])
def test_what_is_no_standing_is_reported_with_a_fix(value):
    with pytest.raises(TypeError, match="of="):
        dashboard(value)
