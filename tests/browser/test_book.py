"""Pages of the website in a real browser: both themes, wide and narrow, search, moving pictures."""

import subprocess
import sys
import threading
from importlib.util import find_spec
from types import SimpleNamespace

import pytest
from playwright.sync_api import expect

from book.stage import stage
from labkit.cli.web import server

from . import accessibility
from .conftest import give_up
from .lab_page import CHANGE_MS
from .lab_server import ROOT

# One page of each kind: all of them would take a minute to build. `make book` checks all links.
PAGES = (
    *("index", "notebooks/00_start_here", "notebooks/02_all_reduce_inside_out"),
    *("notebooks/16_pipeline_parallel", "notebooks/README", "notebooks/glossary"),
    *("cards/index", "cards/co-2", "claims/pipeline", "exercises/ring_all_reduce"),
    *("try/calculators", "try/planner", "try/pipeline", "docs/numbers_to_know"),
    "code/labkit/collectives/ring.py",
)


@pytest.fixture(scope="module")
def book(tmp_path_factory):
    """The address of a site with PAGES."""
    if find_spec("sphinx") is None:
        give_up("Sphinx is not installed: `make book` and `make test` install it")
    folder = tmp_path_factory.mktemp("book")
    stage(folder / "stage")
    for source in (folder / "stage").rglob("*"):
        page = source.relative_to(folder / "stage").with_suffix("").as_posix()
        is_page = source.suffix in (".md", ".ipynb") and page.split("/")[0] not in (
            "files",
            "static",
        )
        if is_page and page not in PAGES:
            source.unlink()
    command = [sys.executable, "-m", "sphinx", "-Q", "-c", str(ROOT / "book"), "-d"]
    command += [str(folder / each) for each in ("doctrees", "stage", "html")]
    subprocess.run(command, cwd=ROOT, check=True)
    with server(folder / "html", 0) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()


@pytest.fixture
def visit(chromium, book):
    """Open a context of the browser: what it did wrong is in `faults`."""
    contexts = []

    def opened(theme="light", width=1440, **settings):
        context = chromium.new_context(
            viewport={"width": width, "height": 900}, reduced_motion="reduce", **settings
        )
        contexts.append(context)
        context.add_init_script(f"localStorage.setItem('theme', '{theme}')")
        page, faults = context.new_page(), []
        page.on("pageerror", lambda error: faults.append(f"{page.url}: {error}"))
        page.on(
            "console",
            lambda said: said.type == "error" and faults.append(f"{page.url}: {said.text}"),
        )
        own = (f"{book}/", "data:", "blob:")
        page.on(
            "request",
            lambda request: request.url.startswith(own) or faults.append(f"loads {request.url}"),
        )
        page.set_default_timeout(CHANGE_MS)
        return SimpleNamespace(page=page, faults=faults)

    yield opened
    for context in contexts:
        context.close()


@pytest.mark.parametrize("width", [1440, 400])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_each_page_fits_the_screen_can_be_read_and_asks_no_other_host(book, visit, theme, width):
    seen = visit(theme, width)
    is_dark = "getComputedStyle(document.body).backgroundColor.match(/[0-9]+/g).every(c => c < 60)"
    for name in PAGES:
        seen.page.goto(f"{book}/{name}.html")
        wide = seen.page.evaluate("document.documentElement.scrollWidth - innerWidth")
        if wide > 0:
            seen.faults.append(f"{name}: {wide} px wider than the screen")
        if faint := accessibility.faint(seen.page.locator("article")):
            seen.faults.append(f"{name}: too little contrast: {faint[:3]}")
        assert seen.page.evaluate(is_dark) is (theme == "dark"), name
    assert seen.faults == []


@pytest.mark.parametrize(
    ("asked", "found"), [("1F1B", "16_pipeline_parallel"), ("ring", "ring_all_reduce")]
)
def test_search_finds_a_term(book, visit, asked, found):
    seen = visit()
    seen.page.goto(f"{book}/index.html")
    seen.page.get_by_role("textbox", name="Search").fill(asked)
    seen.page.keyboard.press("Enter")
    expect(seen.page.locator(f'#search-results a[href*="{found}"]').first).to_be_visible()
    assert seen.faults == []


def test_a_moving_picture_is_stepped_by_keys(book, visit):
    seen = visit()
    seen.page.goto(f"{book}/notebooks/02_all_reduce_inside_out.html")
    seen.page.locator(".lab-moving").scroll_into_view_if_needed()
    player = seen.page.locator(".labkit-moving")
    player.focus()
    for _ in range(2):
        seen.page.keyboard.press("ArrowRight")
    expect(player).to_contain_text("step 2 of 6")
    assert seen.faults == []


def test_without_scripts_a_part_shows_its_stored_answer_and_an_answer_can_be_unfolded(book, visit):
    seen = visit(java_script_enabled=False)
    seen.page.goto(f"{book}/try/calculators.html")
    expect(seen.page.locator(".lab-live").first).to_contain_text("parameters")
    expect(seen.page.get_by_role("button", name="Use it here")).to_have_count(0)
    seen.page.goto(f"{book}/cards/co-2.html")
    answer = seen.page.locator("details", has_text="The answer in a minute").locator("p").first
    expect(answer).to_be_hidden()
    seen.page.get_by_text("The answer in a minute").click()
    expect(answer).to_be_visible()
