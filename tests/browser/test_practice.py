"""A card and a drill in a notebook: answered by keys, kept, and found again in a new kernel."""

import pytest
from lab_page import shows

from labkit.interview.drills import drills_of
from labkit.interview.drills.session import Round

pytestmark = pytest.mark.clock

NOTEBOOK = "practice.ipynb"
DRILL, SEED = "bubble_of_total", 3
CELLS = {
    "imports": "from labkit.notebook import card, drill",
    "card": "card('co-8')",
    "drill": f"drill({DRILL!r}, seed={SEED})",
}


@pytest.fixture
def practice(lab):
    lab.server.write_notebook(NOTEBOOK, CELLS)
    lab.open(NOTEBOOK)
    lab.run("imports")
    return lab


def test_a_card_is_revealed_ticked_and_graded_and_its_grade_is_kept(practice):
    practice.run("card")
    output = practice.output("card")
    output.get_by_label("Your answer").fill("Each byte leaves every rank almost twice.")
    practice.press(output.get_by_role("button", name="Show the answer"), "Enter")
    shows(output, "In a minute")
    practice.press(output.get_by_role("checkbox").first, "Space")
    shows(output, "1 of ")
    practice.press(output.get_by_role("button", name="hard"), "Space")
    shows(output, "Graded hard, 1 of ")
    practice.come_back()
    practice.run("imports", "card")
    shows(practice.output("card"), "due")
    assert "new" not in practice.output("card").locator(".faint").first.inner_text()


def test_a_drill_rules_on_a_wrong_answer_and_then_on_the_right_one(practice):
    question = Round(drills_of(DRILL), SEED).ask().question
    practice.run("drill")
    output = practice.output("drill")
    shows(output, question.prompt)
    entry = output.get_by_role("textbox")
    entry.fill("0.001%")
    practice.press(entry, "Enter")
    shows(output, "One more try.")
    entry.fill(question.answer_text)
    practice.press(output.get_by_role("button", name="Submit"), "Enter")
    shows(output, f"Answer: {question.answer_text}")
    shows(output, "stored")
