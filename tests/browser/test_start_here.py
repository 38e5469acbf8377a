"""The first page that a reader opens, from top to bottom: run, turn, answer, check, come back."""

import pytest
from lab_page import becomes, shows, slider

pytestmark = pytest.mark.clock

NOTEBOOK = "00_start_here.ipynb"
PREDICT, CALCULATOR, CHECK = "start-09", "start-23", "start-25"


@pytest.fixture(scope="module")
def page(tab):
    tab.open(NOTEBOOK)
    return tab


def test_a_stub_a_wrong_answer_and_a_right_one_get_their_verdicts(page):
    exercise = page.server.folder / "exercises" / "ring_all_reduce.py"
    solution = (page.server.folder / "solutions" / "ring_all_reduce.py").read_text()
    mine = exercise.read_text()
    try:
        page.run(CHECK)
        shows(page.output(CHECK), "not attempted")
        exercise.write_text(mine.replace("raise NotImplementedError", "return x  #"))
        page.run(CHECK)
        shows(page.output(CHECK), "wrong")
        exercise.write_text(solution)
        page.run(CHECK)
        shows(page.output(CHECK), "passed")
    finally:
        exercise.write_text(mine)


def test_a_prediction_outlives_the_page_and_the_kernel(page):
    page.run(PREDICT)
    box = page.output(PREDICT)
    box.get_by_role("textbox").fill("12 KB")
    page.press(box.get_by_role("button", name="Commit"), "Enter")
    shows(box, "Committed: 12 KB")
    page.come_back()
    page.run(PREDICT)
    shows(page.output(PREDICT), "Earlier you committed to 12 KB")


def test_every_cell_runs_and_the_calculator_answers_the_keyboard(page):
    page.run_all()
    output = page.output(CALCULATOR)
    figure, results = output.locator("img"), output.locator("table")
    before, said = figure.get_attribute("src"), results.inner_text()
    page.press(slider(output, "ranks"), "ArrowRight")
    becomes(lambda: figure.get_attribute("src"), differs_from=before)
    becomes(results.inner_text, differs_from=said)


def test_a_page_that_was_run_whole_reopens_without_errors(page):
    page.run_all()  # or the page is not trusted, and shows no widgets
    page.come_back()
    for cell in (PREDICT, CALCULATOR):
        output = page.output(cell)
        shows(output, "How many bytes" if cell == PREDICT else "each rank sends")
        assert "Error displaying widget" not in output.inner_text()
