"""A moving picture in a real browser: by keys, in both themes, without motion, without a kernel."""

import pytest
from playwright.sync_api import expect

from labkit.notebook.moving.widget import module_text

from .lab_page import CHANGE_MS, shows

NOTEBOOK = "moving.ipynb"
CELLS = {
    "ring": "import torch\nfrom labkit import run\nfrom labkit.collectives import ring_all_reduce\n"
    "from labkit.notebook import moving\n"
    "ringed = run(lambda world: ring_all_reduce(torch.ones(8), world), world_size=4)\n"
    "picture = moving.ring(ringed)\n"
    "picture.data = picture.data | {'step_ms': 3_600_000}  # no test waits for it\n"
    "picture",
}


@pytest.fixture(scope="module")
def page(tab):
    tab.server.write_notebook(NOTEBOOK, CELLS)
    tab.open(NOTEBOOK)
    tab.page.emulate_media(reduced_motion="reduce")
    tab.run_all()
    yield tab
    tab.page.emulate_media(reduced_motion="no-preference")


def steps_by_keys(page):
    """A reader works with keys alone; the player stands at its first step before and after."""
    output = page.output("ring")
    player = output.locator(".labkit-moving")
    shows(output, "step 0 of 6")
    page.press(player, "ArrowRight")
    shows(output, "step 1 of 6")
    shows(output, "rank 0 sends chunk 3 to rank 1")
    page.press(player, "End")
    shows(output, "Complete: 16 of 16 chunks")
    page.press(player, "ArrowLeft")
    shows(output, "step 5 of 6")
    page.press(output.get_by_role("slider"), "Home")
    shows(output, "step 0 of 6")


def test_it_is_stepped_by_keys_and_stands_still_for_readers_who_want_no_motion(page):
    steps_by_keys(page)
    assert page.output("ring").locator("[data-playing]").count() == 0


def test_space_plays_and_pauses_and_so_does_the_button(page):
    output = page.output("ring")
    player, say = output.locator(".labkit-moving"), output.locator(".say")
    page.press(player, "Space")
    button = output.get_by_role("button").first
    expect(button).to_have_text("Pause", timeout=CHANGE_MS)
    assert say.get_attribute("aria-live") == "off"
    page.press(button, "Enter")
    expect(button).to_have_text("Play", timeout=CHANGE_MS)
    assert say.get_attribute("aria-live") == "polite"
    page.press(player, "Home")


@pytest.mark.parametrize("theme", ["JupyterLab Dark", "JupyterLab Light"])
def test_words_have_the_ink_of_the_theme(page, theme):
    page.theme(theme)
    name = page.output("ring").locator("svg text").first
    dark = "e => getComputedStyle(e).fill.match(/[0-9.]+/g).slice(0, 3).every(c => c < 128)"
    assert name.evaluate(dark) is (theme == "JupyterLab Light")


def test_it_works_on_a_saved_page_whose_kernel_has_ended(page):
    page.come_back()
    steps_by_keys(page)


def test_it_works_on_a_plain_page_and_plays_by_itself_once_it_is_seen(chromium):
    data = {
        "title": "two",
        "ranks": [0, 1],
        "colours": ["#56b4e9", "#f0b13c"],
        "hops": [[[0, 1, 0]]],
    }
    data |= {"states": [[[[0], []], [[], [1]]], [[[0], []], [[0], [1]]]]}
    data |= {"steps": [{"say": "before"}, {"say": "after"}], "step_ms": 50}
    page = chromium.new_page()
    page.set_content("<div id=place></div>")
    page.evaluate(
        "async ([text, data]) => { const url = URL.createObjectURL(new Blob([text], "
        "{type: 'text/javascript'})); const module = await import(url); "
        "module.player(document.getElementById('place'), data, module.ring) }",
        [module_text("ring"), data],
    )
    shows(page.locator(".labkit-moving"), "after")
    expect(page.get_by_role("button", name="Play")).to_be_visible()  # it has paused at the end
    page.close()
