"""A card, a drill, a mock interview and the dashboard in a notebook: answered by keys, and kept."""

import pytest
from lab_page import becomes, shows

from labkit.interview.drills import drills_of
from labkit.interview.drills.drill_session import Round
from labkit.interview.mock import plan_interview

pytestmark = pytest.mark.clock

NOTEBOOK = "practice.ipynb"
DRILL, SEED = "bubble_of_total", 3
CELLS = {
    "imports": "from labkit.notebook import card, dashboard, drill, mock_interview",
    "drill": f"drill({DRILL!r}, seed={SEED})",
    "mock": "mock_interview(10, 'junior', seed=3)",
    "card": "card('co-8')",
    "dashboard": "dashboard()",
}


@pytest.fixture(scope="module")
def page(tab, server):
    server.write_notebook(NOTEBOOK, CELLS)
    tab.open(NOTEBOOK)
    tab.run("imports")
    return tab


def test_a_drill_rules_on_a_wrong_answer_and_then_on_the_right_one(page):
    question = Round(drills_of(DRILL), SEED).ask().question
    page.run("drill")
    output = page.output("drill")
    shows(output, question.prompt)
    entry = output.get_by_role("textbox")
    entry.fill("0.001%")
    page.press(entry, "Enter")
    shows(output, "One more try.")
    entry.fill(question.answer_text)
    page.press(output.get_by_role("button", name="Submit"), "Enter")
    shows(output, f"Answer: {question.answer_text}")
    shows(output, "stored")


def test_the_clock_runs_and_an_interview_that_is_ended_early_is_reported(page, tmp_path):
    page.run("mock")
    output = page.output("mock")
    page.press(output.get_by_role("button", name="Start"), "Enter")
    shows(output, "left of 10:00")
    clock = output.get_by_role("timer")
    becomes(clock.inner_text, differs_from=clock.inner_text())
    page.press(output.get_by_role("button", name="Skip"), "Enter")
    shows(output, "2 of 3")
    end = output.get_by_role("button", name="End the interview")
    page.press(end, "Enter")
    shows(output, "The interview is not over.")
    page.press(end, "Enter")
    shows(output, "Report")
    output.get_by_label("Save the report as").fill(str(tmp_path / "mine"))
    page.press(output.get_by_role("button", name="Save as Markdown"), "Enter")
    shows(output, "The report is in")
    text = (tmp_path / "mine.md").read_text()
    skipped, shown, unseen = plan_interview(10, "junior", 3).items
    for item in (skipped, shown):
        assert f"`{item.name}`): **0%**" in text
    assert f"Not reached: {unseen.kind} {unseen.name}." in text


def test_a_card_is_revealed_ticked_and_graded_and_its_grade_is_counted_and_kept(page):
    page.run("card", "dashboard")
    output = page.output("card")
    output.get_by_label("Your answer").fill("Each byte leaves every rank almost twice.")
    page.press(output.get_by_role("button", name="Show the answer"), "Enter")
    shows(output, "In a minute")
    page.press(output.get_by_role("checkbox").first, "Space")
    shows(output, "1 of ")
    page.press(output.get_by_role("button", name="hard"), "Space")
    shows(output, "Graded hard, 1 of ")
    page.press(page.output("dashboard").get_by_role("button", name="Refresh"), "Enter")
    shows(page.output("dashboard"), "1 day in a row")
    page.come_back()
    page.run("imports", "card", "dashboard")
    shows(page.output("card"), "due")
    assert "new" not in page.output("card").locator(".faint").first.inner_text()
    shows(page.output("dashboard"), "1 day in a row")
