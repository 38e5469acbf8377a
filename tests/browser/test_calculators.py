"""The calculators where the notebooks have them: a key moves a knob, and what is shown follows."""

import nbformat
import pytest
from lab_page import becomes, slider
from lab_server import ROOT

pytestmark = pytest.mark.clock

# notebook, the cells that it takes, the last being the calculator; a knob of it, and a key.
CALCULATORS = {
    "memory": ("05_where_memory_goes", ("cell-2", "cell-44"), "tensor parallel", "ArrowRight"),
    "pipeline": ("09_pipeline_parallel", ("c02", "c44"), "send : forward", "ArrowRight"),
    "planner": ("11_combining_and_planning", ("c02", "c29"), "GPUs", "ArrowLeft"),
    "mesh": ("11_combining_and_planning", ("c02", "c07"), "pp", "ArrowLeft"),
    "ring": ("02_all_reduce_inside_out", ("b2814987", "2f1d1936"), "step", "ArrowRight"),
    "knobs": ("16_claims_court", ("c01", "c14"), "microbatches", "ArrowRight"),
}
PICTURES = ("memory", "pipeline", "ring")


def shown_by(output):
    """Its words, without those of the knobs themselves."""
    return lambda: "\n".join(output.locator(".widget-html-content").all_inner_texts()).strip()


def said_at_first(output):
    """The same once there are any: a widget's box is in the page before its words are."""
    return becomes(shown_by(output), differs_from="")


@pytest.fixture(scope="module")
def page(tab, server):
    """The cells of all of them in one notebook: its kernel imports once."""
    sources = {}
    for notebook, cells, *_ in CALCULATORS.values():
        found = nbformat.read(ROOT / "notebooks" / f"{notebook}.ipynb", as_version=4).cells
        sources |= {f"{notebook}-{each.id}": each.source for each in found if each.id in cells}
    server.write_notebook("calculators.ipynb", sources)
    tab.open("calculators.ipynb")
    return tab


def shown(page, name):
    """The output of a calculator whose cells have been run."""
    notebook, cells, *_ = CALCULATORS[name]
    page.run(*(f"{notebook}-{cell}" for cell in cells))
    return page.output(f"{notebook}-{cells[-1]}")


@pytest.mark.parametrize("name", CALCULATORS)
def test_a_key_moves_a_knob_and_the_answer_follows(page, name):
    *_, label, key = CALCULATORS[name]
    output = shown(page, name)
    handle, picture = slider(output, label), output.locator("img")
    stood = handle.get_attribute("aria-valuenow")
    drawn = name in PICTURES and picture.get_attribute("src")
    said = name != "ring" and said_at_first(output)
    page.press(handle, key)
    becomes(lambda: handle.get_attribute("aria-valuenow"), differs_from=stood)
    if name in PICTURES:
        becomes(lambda: picture.get_attribute("src"), differs_from=drawn)
    if name != "ring":  # which says everything in its picture
        becomes(shown_by(output), differs_from=said)


def test_the_button_of_the_memory_calculator_makes_the_change_that_it_names(page):
    output = shown(page, "memory")
    said = said_at_first(output)
    page.press(output.get_by_role("button", name="Make this change"), "Enter")
    becomes(shown_by(output), differs_from=said)
