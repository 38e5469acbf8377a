"""Every widget by name, by keyboard, in both themes, and at twice the size."""

import accessibility
import pytest
from lab_page import shows

pytestmark = pytest.mark.clock

NOTEBOOK = "widgets.ipynb"
# Each as a notebook shows it, with what it says once something was done with it.
WIDGETS = {
    "calculator": "calculator('laptop: 4 processes')",
    "knobs": "knobs(lambda gpus: [('twice', str(2 * gpus))], gpus=Knob([1, 2, 4], start=2))",
    "memory-calculator": "memory_calculator('llama2-70b')",
    "pipeline-calculator": "pipeline_calculator('interleaved', virtual=2)",
    "layout-planner": "layout_planner(gpus=64)",
    "mesh-explorer": "mesh_explorer(dp=2, pp=2, tp=4)",
    "ring-slider": "ring_slider(ringed)",
    "card": "card('co-8')",
    "revealed-card": "shown = card('co-1'); shown.question.reveal(); shown",
    "drill": "drill('bubble_of_total', seed=3)",
    "wrong-drill": "wrong = drill('bubble_of_total', seed=4); wrong.question.finish(); wrong",
    "mock": "begun = mock_interview(10, 'junior', seed=3); begun.start(); begun",
    "dashboard": "dashboard()",
    "vote": "vote('gpipe-10-4')",
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


@pytest.mark.parametrize("shown", [*WIDGETS, *READ])
def test_nothing_is_cut_off_at_twice_the_size(page, shown):
    with page.zoomed(2):
        assert accessibility.too_wide(page.output(shown)) == []


@pytest.mark.parametrize("key", ["Enter", "Space"])
def test_a_button_with_the_focus_is_pressed_by_a_key(page, key):
    output, verdict = page.output("vote"), {"Enter": "half right", "Space": "units mixed"}[key]
    page.press(output.get_by_role("button", name=verdict), key)
    shows(output, f"You say: {verdict}")
