"""How a page looks in JupyterLab with the lab's stylesheet: pictures, lines of text, links."""

import io
import time

import pytest
from PIL import Image

from .lab_page import CHANGE_MS

NOTEBOOK = "page.ipynb"
CELLS = {
    "picture": "from labkit import viz; viz.mesh_map({'dp': 2, 'tp': 4})",
    "ruling": "from labkit.notebook import schedule_puzzle\n"
    "schedule_puzzle('two ranks', 'F0 F1 B0 B1\\nF0 F1 B0 B1')",
    "knobs": "from labkit import viz; from labkit.notebook import Knob, knobs\n"
    "knobs(lambda tp: [viz.mesh_map({'dp': 2, 'tp': tp})], tp=Knob([2, 4], 2))",
    "own-image": "from PIL import Image; Image.new('RGB', (20, 20), 'white')",
    "text": "from IPython.display import Markdown\n"
    "Markdown('Ranks exchange gradients. ' * 36 + '\\n\\n[`exercise`](../exercises/scan.py)')",
}
PICTURES = ("picture", "ruling", "knobs")
BACKGROUND = "getComputedStyle(document.querySelector('.jp-Notebook')).backgroundColor"


@pytest.fixture(scope="module")
def page(tab):
    tab.server.write_notebook(NOTEBOOK, CELLS)
    tab.open(NOTEBOOK)
    tab.run_all()
    yield tab
    tab.theme("JupyterLab Light")


@pytest.mark.parametrize("name", ["01_ranks_and_collectives", "22_failing_and_going_on"])
def test_reading_a_page_of_the_copy_changes_nothing(tab, name):
    file = tab.server.folder / "notebooks" / f"{name}.ipynb"
    stored = file.read_bytes()
    tab.open(file.name)
    assert tab.page.evaluate("window.jupyterapp.shell.currentWidget.context.model.dirty") is False
    tab.command("docmanager:save")
    assert file.read_bytes() == stored


def ground(page, cell):
    """The colour of a picture's upper left corner, and of the page."""
    image = page.output(cell).locator("img").first
    pixel = Image.open(io.BytesIO(image.screenshot())).convert("RGB").getpixel((3, 3))
    return pixel, tuple(int(each) for each in page.page.evaluate(BACKGROUND)[4:-1].split(", "))


@pytest.mark.parametrize("theme", ["JupyterLab Light", "JupyterLab Dark"])
@pytest.mark.parametrize("cell", PICTURES)
def test_a_picture_lies_on_the_page_of_either_theme(page, cell, theme):
    page.theme(theme)
    deadline = time.monotonic() + CHANGE_MS / 1000
    while True:  # a theme's colours may still be on their way
        picture, own = ground(page, cell)
        if max(abs(a - b) for a, b in zip(picture, own, strict=True)) <= 1:
            return
        assert time.monotonic() < deadline, (picture, own)


def test_images_that_do_not_ask_for_it_stay_as_they_are(page):
    page.theme("JupyterLab Dark")
    assert ground(page, "own-image")[0] == (255, 255, 255)


def test_a_line_has_at_most_ninety_characters(page):
    paragraph = page.output("text").locator("p").first
    size = "p => [p.innerText.length, p.offsetHeight / parseFloat(getComputedStyle(p).lineHeight)]"
    length, lines = paragraph.evaluate(size)
    assert 75 < length / round(lines) <= 92  # the last line is short


def test_a_link_made_of_code_has_the_colour_of_links_and_a_line(page):
    link = page.output("text").locator("a").filter(has_text="exercise")
    link_colour, code_colour = link.evaluate(
        "a => [a, a.querySelector('code')].map(each => getComputedStyle(each).color)"
    )
    assert code_colour == link_colour
    assert "underline" in link.evaluate("a => getComputedStyle(a).textDecorationLine")
