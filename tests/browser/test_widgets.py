"""Every widget, on one page: its names, keys, contrast and width; then each at work, then reopened.

All that is clicked is pressed by a key, as somebody without a mouse does.
"""

import json

import pytest
from playwright.sync_api import expect

from labkit.interview.drills import drills_of
from labkit.interview.drills.session import Round
from labkit.interview.mock import plan_interview

from . import accessibility
from .lab_page import becomes, shows, slider

NOTEBOOK = "widgets.ipynb"
DRILL, SEED = "bubble_of_total", 3
# Each as a notebook shows it, with what it says once something was done with it.
WIDGETS = {
    "calculator": "calculator('laptop: 4 processes')",
    "knobs": "knobs(lambda gpus: [('twice', str(2 * gpus))], gpus=Knob([1, 2, 4], start=2))",
    "memory-calculator": "memory_calculator('llama2-70b')",
    "cache-calculator": "cache_calculator('llama3-70b', gpu='h200', tp=2)",
    "pipeline-calculator": "pipeline_calculator('interleaved', virtual=2)",
    "layout-planner": "layout_planner(gpus=64)",
    "mesh-explorer": "mesh_explorer(dp=2, pp=2, tp=4)",
    "moving-ring": "moving.ring(ringed)",
    "card": "card('co-8')",
    "revealed-card": "shown = card('co-1'); shown.question.reveal(); shown",
    "drill": f"drill({DRILL!r}, seed={SEED})",
    "wrong-drill": "wrong = drill('bubble_of_total', seed=4); wrong.question.finish(); wrong",
    "drawing": "draw('ring-3')",
    "open-puzzle": "schedule_puzzle('let go')",
    "quiz": "asked = quiz('pp', 2, seed=1); asked.next(); asked",
    "take-home": "take_home()",
    "design": "design_round('8b-one-host')",
    "mock": "started = mock_interview(10, 'junior', seed=3); started.start(); started",
    "dashboard": "dashboard()",
    "vote": "vote('gpipe-10-4')",
    "open-prediction": "predict('size', 'How many bytes?', unit='B')",
    "prediction": "right = predict('access', 'How many?', answer=6); right.commit('6'); right",
    "wrong-prediction": "box = predict('other', 'How many?', answer=6); box.commit('3'); box",
    "refused-prediction": "no = predict('third', 'How many?'); no.commit('some'); no",
}
READ = {
    "judgement": "judge('gpipe-10-4', measure=False)",
    "other-judgement": "judge('ring-8', measure=False)",
    "docket": "docket()",
    "table": "table([('bytes', 100, 120, 'B')])",
    "puzzle": "schedule_puzzle('two ranks', 'F0 B0 F1 B1\\nF0 B0 F1 B1')",
    "verdict": "check('ring_all_reduce')",
    "refused": "schedule_puzzle('two ranks', 'F0 F0')",
}
IMPORTS = """
import torch
from labkit import check, run
from labkit.collectives import ring_all_reduce
from labkit.notebook import *
ringed = run(lambda world: ring_all_reduce(torch.ones(8), world), world_size=4)
"""


@pytest.fixture(scope="module")
def page(tab):
    """All widgets on one page, run once."""
    tab.server.write_notebook(NOTEBOOK, {"imports": IMPORTS} | WIDGETS | READ)
    tab.open(NOTEBOOK)
    tab.run_all()
    return tab


@pytest.mark.parametrize("widget", WIDGETS)
def test_every_control_has_a_name(page, widget):
    page.output(widget)  # which brings it to where it is laid out
    assert accessibility.nameless(page.page, widget) == []


@pytest.mark.parametrize("widget", WIDGETS)
def test_tab_reaches_every_control(page, widget):
    assert accessibility.unreached(page.page, page.output(widget)) == []


@pytest.fixture(scope="module", params=["JupyterLab Light", "JupyterLab Dark"])
def themed(page, request):
    page.theme(request.param)
    yield page
    page.theme("JupyterLab Light")


@pytest.mark.parametrize("shown", [*WIDGETS, *READ])
def test_text_can_be_read_in_both_themes(themed, shown):
    assert accessibility.faint(themed.output(shown)) == []


@pytest.fixture(scope="module")
def enlarged(page):
    with page.zoomed(2):
        yield page


@pytest.mark.parametrize("shown", [*WIDGETS, *READ])
def test_nothing_is_cut_off_at_twice_the_size(enlarged, shown):
    assert accessibility.too_wide(enlarged.output(shown)) == []


@pytest.fixture
def again(page):
    """Run a widget's cell again; its output."""

    def again(widget):
        page.run(widget)
        return page.output(widget)

    return again


# A knob of each, and a key.
KNOBS = {
    "calculator": ("ranks", "ArrowRight"),
    "knobs": ("gpus", "ArrowRight"),
    "memory-calculator": ("tensor parallel", "ArrowRight"),
    "cache-calculator": ("requests", "ArrowRight"),
    "pipeline-calculator": ("send : forward", "ArrowRight"),
    "layout-planner": ("GPUs", "ArrowLeft"),
    "mesh-explorer": ("pp", "ArrowLeft"),
}
WITH_A_PICTURE = ("pipeline-calculator",)


def shown_by(output):
    """Its words, without those of the knobs themselves."""
    return lambda: "\n".join(output.locator(".widget-html-content").all_inner_texts()).strip()


def said_at_first(output):
    """The same once there are any: a widget's box is in the page before its words are."""
    return becomes(shown_by(output), differs_from="")


@pytest.mark.parametrize("widget", KNOBS)
def test_a_key_moves_a_knob_and_the_answer_follows(page, again, widget):
    label, key = KNOBS[widget]
    output = again(widget)
    handle, picture = slider(output, label), output.locator("svg[role=img]")
    stood = handle.get_attribute("aria-valuenow")
    drawn = widget in WITH_A_PICTURE and picture.inner_html()
    said = said_at_first(output)
    page.press(handle, key)
    becomes(lambda: handle.get_attribute("aria-valuenow"), differs_from=stood)
    if widget in WITH_A_PICTURE:
        becomes(picture.inner_html, differs_from=drawn)
    becomes(shown_by(output), differs_from=said)


def test_a_schedule_is_written_out_changed_and_drawn(page, again):
    output = again("pipeline-calculator")
    rows = output.get_by_label("Your own schedule")
    page.press(output.get_by_role("button", name="Write it out"), "Enter")
    becomes(rows.input_value, differs_from="")
    rows.fill("F0 F1 B0 B1\nF0 B0 F1 B1")
    page.press(output.get_by_role("button", name="Draw"), "Enter")
    shows(output, "Your own schedule, at the costs of the knobs.")


def test_a_schedule_that_is_none_is_explained(page, again):
    output = again("pipeline-calculator")
    output.get_by_label("Your own schedule").fill("F0 F1 B0 B1\nF0 B0 F1")
    page.press(output.get_by_role("button", name="Draw"), "Enter")
    shows(output, "B1 of stage 1 is missing")


def test_a_puzzle_is_answered_in_its_field(page, again):
    output = again("open-puzzle")
    output.get_by_label("Your rows").fill("F0 F1 F2 F3 B0 B1 B2 B3\nF0 B0 F1 B1 F2 B2 F3 B3")
    page.press(output.get_by_role("button", name="Check"), "Enter")
    shows(output, "it holds too much")
    expect(output.locator("svg[role=img]")).to_be_visible()


def test_the_button_of_the_memory_calculator_makes_the_change_that_it_names(page, again):
    output = again("memory-calculator")
    said = said_at_first(output)
    page.press(output.get_by_role("button", name="Make this change"), "Enter")
    becomes(shown_by(output), differs_from=said)


def test_enter_plans_and_places_a_layout_of_ones_own(page, again):
    output = again("layout-planner")
    entry = output.get_by_role("textbox", name="your own layout")
    entry.fill("dp=1 tp=8 pp=8")
    page.press(entry, "Enter")
    shows(output, "at place ")


def test_a_config_that_is_brought_is_on_the_menu(page, again, tmp_path):
    output = again("cache-calculator")
    file = tmp_path / "config.json"
    file.write_text('{"model_type": "llama"}')
    upload = output.get_by_role("button", name="config.json of your model")

    def bring():
        with page.page.expect_file_chooser() as chooser:
            page.press(upload, "Enter")
        chooser.value.set_files(file)

    bring()
    shows(output, "lacks num_hidden_layers")
    sizes = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 9}
    file.write_text(json.dumps({"model_type": "llama"} | sizes))
    bring()
    shows(output, "2 layers")


def test_a_drill_rules_on_a_wrong_answer_and_then_on_the_right_one(page, again):
    question = Round(drills_of(DRILL), SEED).ask().question
    output = again("drill")
    shows(output, question.prompt)
    entry = output.get_by_role("textbox")
    entry.fill("0.001%")
    page.press(entry, "Enter")
    shows(output, "One more try.")
    entry.fill(question.answer_text)
    page.press(output.get_by_role("button", name="Submit"), "Enter")
    shows(output, f"Answer: {question.answer_text}")
    shows(output, "stored")


def test_the_clock_runs_and_an_interview_that_is_ended_early_is_reported(page, again, tmp_path):
    output = again("mock")
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


def test_a_card_is_revealed_ticked_and_graded_and_its_grade_is_counted(page, again):
    output, dashboard = again("card"), page.output("dashboard")
    output.get_by_label("Your answer").fill("Each byte leaves every rank almost twice.")
    page.press(output.get_by_role("button", name="Show the answer"), "Enter")
    shows(output, "In a minute")
    page.press(output.get_by_role("checkbox").first, "Space")
    shows(output, "1 of ")
    page.press(output.get_by_role("button", name="hard"), "Space")
    shows(output, "Graded hard, 1 of ")
    said = dashboard.inner_text()
    page.press(dashboard.get_by_role("button", name="Refresh"), "Enter")
    becomes(dashboard.inner_text, differs_from=said)


def test_a_drawing_is_filled_by_keys_and_its_first_wrong_cell_is_marked(page, again):
    output = again("drawing")

    def cell(rank, step):
        return output.get_by_label(f"rank {rank}, step {step}", exact=True)

    cell(0, 1).click()
    page.page.keyboard.type("1:0")
    page.page.keyboard.press("ArrowDown")
    page.page.keyboard.type("2:1")
    assert cell(1, 1).input_value() == "2:1"
    check = output.get_by_role("button", name="Check")
    page.press(check, "Enter")
    shows(output, "rank 2, step 1")
    expect(cell(2, 1)).to_have_attribute("aria-invalid", "true")
    expect(cell(2, 1)).to_be_focused()
    page.press(output.get_by_role("button", name="Continue the pattern"), "Enter")
    expect(cell(2, 1)).to_have_value("0:2")
    page.press(output.get_by_role("button", name="Show an answer"), "Space")
    expect(cell(2, 4)).not_to_have_value("")
    page.press(check, "Enter")
    shows(output, "Right.")
    expect(cell(2, 1)).to_have_attribute("aria-invalid", "false")


def test_a_quiz_takes_one_choice_and_goes_on(page, again):
    output = again("quiz")
    page.press(output.get_by_role("button").first, "Enter")
    shows(output, "Right is")
    page.press(output.get_by_role("button", name="Next question"), "Enter")
    shows(output, "2 of 2")


def test_the_court_tells_a_wrong_vote_from_a_right_one_and_keeps_it(page, again):
    votes = page.output("vote")
    for key, verdict, said in (
        ("Enter", "half right", "You voted 'half right'."),
        ("Space", "wrong", "You voted 'wrong', and so does the court."),
    ):
        page.press(votes.get_by_role("button", name=verdict, exact=True), key)
        shows(votes, f"You say: {verdict}")
        shows(again("judgement"), said)
    shows(again("docket"), "you voted on 1, and on 1 of them as the court did")


def test_a_stub_a_wrong_answer_and_a_right_one_get_their_verdicts(page, again):
    exercise = page.server.folder / "exercises" / "ring_all_reduce.py"
    solution = (page.server.folder / "solutions" / "ring_all_reduce.py").read_text()
    mine = exercise.read_text()
    shows(page.output("verdict"), "not attempted")
    try:
        exercise.write_text(mine.replace("raise NotImplementedError", "return x  #"))
        shows(again("verdict"), "wrong")
        exercise.write_text(solution)
        shows(again("verdict"), "passed")
    finally:
        exercise.write_text(mine)


def test_a_page_reopens_with_its_widgets_and_what_was_committed(page, again):
    box = page.output("open-prediction")
    box.get_by_role("textbox").fill("12 KB")
    page.press(box.get_by_role("button", name="Commit"), "Enter")
    shows(box, "Committed: 12 KB")
    shows(again("open-prediction"), "Earlier you committed to 12 KB")
    page.come_back()
    shows(page.output("open-prediction"), "Earlier you committed to 12 KB")
    shows(page.output("calculator"), "each rank sends")
    for widget in WIDGETS:
        output = page.output(widget)
        assert "Error displaying widget" not in output.inner_text()
        assert output.evaluate(MARKS) == [True, []], widget


# [there is a line that says to run the cell, the red icons] of widgets without a kernel.
MARKS = """output => {
    const parts = [...output.querySelectorAll('.jupyter-widgets-disconnected')];
    const content = (node, which) => getComputedStyle(node, which).content;
    return [parts.some(each => content(each.parentElement, '::after').includes('Run this cell')),
        parts.map(each => content(each, '::before')).filter(each => each !== 'none')] }"""
