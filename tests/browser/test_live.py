"""Parts of the lab in a web page: they answer as Python does, by keyboard too, and keep progress.

One page has a part of each kind; it is served as the site is. Pyodide is fetched once, from npm.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from threading import Thread

import pytest

from labkit import notebook
from labkit.cli.web import server
from labkit.progress import exchange
from tests.unit.test_model_configs import PUBLISHED
from tests.widget_tree import words

from . import accessibility
from .conftest import give_up

ROOT = Path(__file__).parents[2]
PARTS = {
    "card": "card('ze-1')",
    "drill": "drill('me-1')",
    "quiz": "quiz()",
    "vote": "vote('ring-8')",
    "draw": "draw('ring-4')",
    "puzzle": "schedule_puzzle('two ranks')",
    "pipeline": "pipeline_calculator()",
    "memory": "memory_calculator()",
    "cache": "cache_calculator()",
    "traffic": "calculator()",
    "plan": "layout_planner('llama3-8b', gpus=32)",
    "mesh": "mesh_explorer()",
    "interview": "mock_interview(45, 'senior', 3)",
    "design": "design_round('8b-one-host')",
    "take-home": "take_home()",
    "dashboard": "dashboard()",
}
PART = (
    '<div data-cell="{name}"><div class="jp-Cell-outputArea">'
    '<div class="lab-live" data-call="{call}" {more}>the stored answer</div></div></div>'
)
COLOURS = (
    ":root { --color-brand-primary: #0757b5; --color-background-primary: #fff;"
    " --color-foreground-border: #777; --color-background-secondary: #eee;"
    " --color-foreground-secondary: #555; }"
)
# The words of a widget as `words` reads them from Python's.
WORDS = """
async call => {
  const {ask, widgets} = await import('/_static/live/parts.mjs')
  const {model} = JSON.parse(await ask({do: 'show', call}))
  const found = []
  const walk = reference => {
    const {state} = widgets.models.get(reference.replace('IPY_MODEL_', ''))
    if (widgets.models.get(state.layout.replace('IPY_MODEL_', '')).state.display === 'none') return
    if (state._model_name === 'HTMLModel' && state.value) found.push(state.value)
    for (const child of state.children ?? []) walk(child)
  }
  walk(model)
  return found.join(' ')
}
"""
INPUTS = [
    *(f"memory_calculator({model!r}, {device!r})"
      for model in ("llama2-7b", "llama3-8b", "llama3-70b", "gpt3-175b")
      for device in ("24 GB", "80 GB", "141 GB")),
    *(f"pipeline_calculator({name!r}, ranks={ranks}, microbatches={2 * ranks})"
      for name in ("naive", "GPipe", "1F1B", "interleaved", "ZB-H1", "ZB-V")
      for ranks in (2, 3, 4, 8)),
    *(f"calculator({name!r})"
      for name in ("laptop: 4 processes", "one node: 8 GPUs", "cluster: 512 GPUs")),
    *(f"cache_calculator({model!r})" for model in ("llama2-7b", "llama3-8b", "llama3-70b")),
    *(f"layout_planner({model!r}, gpus={gpus}, batch=64)"
      for model in ("llama2-7b", "llama3-8b") for gpus in (8, 16)),
    "schedule_puzzle('two ranks')",
    *(f"vote({claim!r})" for claim in ("ring-8", "size-not-number", "one-or-hundred")),
]  # fmt: skip


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    site = tmp_path_factory.mktemp("site")
    shutil.copytree(ROOT / "book" / "live", site / "_static" / "live")
    command = [sys.executable, "book/python_files.py", str(site / "_static" / "py")]
    made = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    if made.returncode:
        give_up(made.stderr)
    parts = "".join(
        PART.format(name=name, call=call, more="data-progress" if name == "dashboard" else "")
        for name, call in PARTS.items()
    )
    (site / "index.html").write_text(
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Parts</title>'
        '<link rel="icon" href="data:,"><link rel="stylesheet" href="/_static/live/live.css">'
        f'<style>{COLOURS}</style><script type="module" src="/_static/live/live.mjs"></script>'
        f"</head><body>{parts}</body></html>",
        "utf-8",
    )
    with server(site, port=0) as serving:
        Thread(target=serving.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{serving.server_port}/index.html"
        serving.shutdown()


@pytest.fixture(scope="module")
def page(chromium, address):
    """The page with all parts started; and what the console said, which must be nothing."""
    context = chromium.new_context(viewport={"width": 1000, "height": 900})
    page = context.new_page()
    said = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda each: said.append(each.url) if is_elsewhere(each) else None)
    page.goto(address)
    for name in PARTS:
        start(page, name)
    yield page
    assert said == []
    context.close()


def is_elsewhere(request):
    return not request.url.startswith(("http://127.0.0.1:", "blob:", "data:"))


def start(page, name):
    part = page.locator(f'[data-cell="{name}"]')
    part.get_by_role("button", name="Use it here").click()
    status = part.locator(".lab-status")
    status.get_by_text(re.compile("^$|could not start")).wait_for(state="attached", timeout=120_000)
    assert status.inner_text() == ""
    return part


def idle(page):
    page.wait_for_function("document.documentElement.dataset.lab === 'idle'", timeout=120_000)


def test_fifty_inputs_give_in_the_page_what_they_give_in_python(page, tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path))
    assert len(INPUTS) >= 50
    differing = []
    for call in INPUTS:
        name, _, arguments = call.partition("(")
        here = eval(f"make({arguments}", {"make": getattr(notebook, name)})
        if page.evaluate(WORDS, call) != words(here._widget):
            differing.append(call)
    assert differing == []


@pytest.mark.parametrize("name", PARTS)
def test_each_control_has_a_name_and_is_reached_by_tab(page, name):
    output = page.locator(f'[data-cell="{name}"] .lab-live')
    assert accessibility.nameless(page, name) == []
    assert accessibility.unreached(page, output) == []
    assert accessibility.faint(output) == []


def test_a_slider_moved_by_keys_shows_the_last_position_of_many(page):
    part = page.locator('[data-cell="plan"] .lab-live')
    part.get_by_label("GPUs").focus()
    for key in ("ArrowRight", "ArrowRight", "ArrowLeft", "ArrowRight"):
        page.keyboard.press(key)
    idle(page)
    if (button := part.get_by_role("button", name="Plan", exact=True)).count():
        button.click()
        idle(page)
    assert "llama3-8b on 128 x h100" in part.inner_text()


def test_a_schedule_is_typed_and_drawn_and_a_puzzle_answered(page):
    part = page.locator('[data-cell="pipeline"] .lab-live')
    part.get_by_label("Your own schedule").fill("F0 F1 B0 B1\nF0 B0 F1 B1")
    part.get_by_role("button", name="Draw").press("Enter")
    idle(page)
    assert "Your own schedule, at the costs of the knobs. Bubble 33.3%" in part.inner_text()
    puzzle = page.locator('[data-cell="puzzle"] .lab-live')
    puzzle.get_by_label("Your rows").fill("F0 F1 B0 B1\nF0 B0 F1 B1")
    puzzle.get_by_role("button", name="Check").press("Enter")
    idle(page)
    assert "two ranks: passed" in puzzle.inner_text() and puzzle.locator("svg").count() == 1


def test_an_interview_without_torch_says_what_it_leaves_out(page):
    part = page.locator('[data-cell="interview"] .lab-live')
    assert "No exercise and no case" in part.inner_text()
    part.get_by_role("button", name="Start").press("Enter")
    idle(page)
    assert "1 of " in part.inner_text()


def test_a_card_is_answered_by_keyboard_and_remembered_after_a_reload(page, address):
    part = page.locator('[data-cell="card"] .lab-live')
    part.get_by_label("Your answer").focus()
    page.keyboard.type("parameters, gradients, optimizer states")
    part.get_by_role("button", name="Show the answer").press("Enter")
    idle(page)
    first = part.get_by_role("checkbox").first
    first.focus()
    page.keyboard.press("Space")
    idle(page)
    part.get_by_role("button", name="hard").press("Enter")
    idle(page)
    other = page.context.new_page()
    other.goto(address)
    assert "Nothing is stored yet" not in start(other, "dashboard").inner_text()
    with other.expect_download() as given:
        other.get_by_role("button", name="Save progress to a file").click()
    events = json.loads(Path(given.value.path()).read_text())["events"]
    assert "card/ze-1" in {each["subject"] for each in events}
    file = given.value.path()
    assert len(exchange.read_events(Path(file))) == len(events)
    other.get_by_label("Read progress from a file").set_input_files(file)
    other.get_by_text(f"0 events added, {len(events)} were known").wait_for()
    other.close()


def test_a_broken_progress_file_is_refused_in_words(page):
    broken = {"name": "broken.json", "mimeType": "application/json", "buffer": b"{}"}
    page.get_by_label("Read progress from a file").set_input_files(broken)
    page.get_by_text("labkit-progress").wait_for()


def test_a_part_that_cannot_start_says_why_and_keeps_the_stored_answer(page, address):
    other = page.context.new_page()
    other.goto(address)
    place = "document.querySelector('[data-cell=vote] .lab-live')"
    other.evaluate(f"{place}.dataset.call = 'vote(\"no-such\")'")
    part = other.locator('[data-cell="vote"]')
    part.get_by_role("button", name="Use it here").click()
    part.get_by_text("It could not start").wait_for(timeout=60_000)
    assert "no-such" in part.inner_text()
    assert "the stored answer" in part.inner_text()
    other.close()


def test_without_the_files_of_python_a_part_says_so_and_keeps_the_stored_answer(chromium, address):
    context = chromium.new_context()
    context.route("**/lab.zip", lambda route: route.abort())
    page = context.new_page()
    page.goto(address)
    part = page.locator('[data-cell="card"]')
    part.get_by_role("button", name="Use it here").click()
    part.get_by_text("It could not start").wait_for(timeout=60_000)
    assert "the stored answer" in part.inner_text()
    context.close()


def test_without_javascript_the_stored_answers_stand_alone(chromium, address):
    context = chromium.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(address)
    assert page.get_by_text("the stored answer").count() == len(PARTS)
    assert page.get_by_role("button").count() == 0
    context.close()


def test_a_browser_that_stores_nothing_says_so(chromium, address):
    context = chromium.new_context()
    worker = (ROOT / "book" / "live" / "worker.mjs").read_text("utf-8")
    broken = worker.replace("py.FS.syncfs(fromBrowser, ", "((call) => call('no room'))(")
    assert broken != worker
    answer = {"body": broken, "content_type": "text/javascript"}
    context.route("**/worker.mjs", lambda route: route.fulfill(**answer))
    page = context.new_page()
    page.goto(address)
    part = page.locator('[data-cell="card"]')
    part.get_by_role("button", name="Use it here").click()
    part.get_by_role("button", name="Show the answer").click(timeout=120_000)
    part.get_by_text("did not store your progress: no room").wait_for(timeout=120_000)
    context.close()


def test_a_published_config_joins_the_menu_and_a_broken_one_says_why(page):
    raw, num_parameters = PUBLISHED["SmolLM3-3B"]
    part = page.locator('[data-cell="memory"] .lab-live')
    chooser, menu = part.get_by_label("config.json"), part.get_by_label("model", exact=True)
    given = {"name": "config.json", "mimeType": "application/json"}
    chooser.set_input_files({**given, "buffer": json.dumps(raw).encode()})
    part.get_by_text(f"{num_parameters:,}").first.wait_for()  # a file is read meanwhile
    idle(page)
    chosen = menu.evaluate("menu => menu.selectedOptions[0].text")
    assert "3.08B" in chosen
    chooser.set_input_files({**given, "buffer": b"{"})
    part.get_by_role("status").get_by_text("line 1").wait_for()
    assert menu.evaluate("menu => menu.selectedOptions[0].text") == chosen
