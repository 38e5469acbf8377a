"""The calculators where the notebooks have them: a key moves a knob, and what is shown follows."""

import pytest
from lab_page import becomes, slider

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


@pytest.mark.parametrize("name", CALCULATORS)
def test_a_key_moves_a_knob_and_the_answer_follows(lab, name):
    notebook, cells, label, key = CALCULATORS[name]
    lab.open(f"{notebook}.ipynb")
    lab.run(*cells)
    output = lab.output(cells[-1])
    handle, picture = slider(output, label), output.locator("img")
    stood = handle.get_attribute("aria-valuenow")
    drawn = name in PICTURES and picture.get_attribute("src")
    said = name != "ring" and said_at_first(output)
    lab.press(handle, key)
    becomes(lambda: handle.get_attribute("aria-valuenow"), differs_from=stood)
    if name in PICTURES:
        becomes(lambda: picture.get_attribute("src"), differs_from=drawn)
    if name != "ring":  # which says everything in its picture
        becomes(shown_by(output), differs_from=said)


def test_the_button_of_the_memory_calculator_makes_the_change_that_it_names(lab):
    notebook, cells, *_ = CALCULATORS["memory"]
    lab.open(f"{notebook}.ipynb")
    lab.run(*cells)
    output = lab.output(cells[-1])
    said = said_at_first(output)
    lab.press(output.get_by_role("button", name="Make this change"), "Enter")
    becomes(shown_by(output), differs_from=said)
