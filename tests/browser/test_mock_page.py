"""A mock interview with its clock, ended early; and the dashboard, before and after."""

import re

import pytest
from lab_page import becomes, shows

from labkit.interview.mock import plan_interview

pytestmark = pytest.mark.clock

NOTEBOOK = "mock.ipynb"
CELLS = {
    "imports": "from labkit.notebook import card, dashboard, mock_interview",
    "mock": "mock_interview(10, 'junior', seed=3)",
    "card": "card('co-8')",
    "dashboard": "dashboard()",
}


@pytest.fixture
def page(lab):
    lab.server.write_notebook(NOTEBOOK, CELLS)
    lab.open(NOTEBOOK)
    lab.run("imports")
    return lab


def begin(page):
    """Start the interview; its output, with the clock running."""
    page.run("mock")
    output = page.output("mock")
    page.press(output.get_by_role("button", name="Start"), "Enter")
    shows(output, "left of 10:00")
    return output


def test_the_clock_runs_and_an_interview_that_is_ended_early_is_reported(page, tmp_path):
    output = begin(page)
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


def test_the_dashboard_counts_what_was_answered_also_in_a_new_kernel(page):
    page.run("card", "dashboard")
    output = page.output("card")
    page.press(output.get_by_role("button", name="Show the answer"), "Space")
    page.press(output.get_by_role("button", name=re.compile("^good")), "Space")
    shows(output, "Graded good")
    page.press(page.output("dashboard").get_by_role("button", name="Refresh"), "Enter")
    shows(page.output("dashboard"), "1 day in a row")
    page.come_back()
    page.run("imports", "dashboard")
    shows(page.output("dashboard"), "1 day in a row")
