"""The first page that a reader opens: check, answer, run it whole, come back."""

import pytest

from .lab_page import shows

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


def test_a_page_that_was_run_whole_reopens_with_its_widgets_and_what_was_committed(page):
    page.run(PREDICT)
    box = page.output(PREDICT)
    box.get_by_role("textbox").fill("12 KB")
    page.press(box.get_by_role("button", name="Commit"), "Enter")
    shows(box, "Committed: 12 KB")
    page.run_all()  # or the page is not trusted, and shows no widgets
    page.come_back()
    for cell, said in (
        (PREDICT, "Earlier you committed to 12 KB"),
        (CALCULATOR, "each rank sends"),
    ):
        output = page.output(cell)
        shows(output, said)
        assert "Error displaying widget" not in output.inner_text()
