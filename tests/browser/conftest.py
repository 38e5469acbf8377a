"""JupyterLab and a headless Chromium for a file's tests; a screenshot of each failure."""

import os
import re
import shutil
from pathlib import Path

import pytest
from lab_page import LabPage
from lab_server import LabServer
from playwright.sync_api import sync_playwright

REQUIRE = "LABKIT_REQUIRE_BROWSER"  # set by .ci/run: there a skip is a failure
NAMES = ("chromium", "chromium-browser", "google-chrome")


def browser_path(playwright):
    """The browser of this system, or the one that playwright has installed; None without."""
    for name in NAMES:
        if found := shutil.which(name):
            return found
    own = playwright.chromium.executable_path
    return own if Path(own).exists() else None


def give_up(reason):
    (pytest.fail if os.environ.get(REQUIRE) == "1" else pytest.skip)(reason)


@pytest.fixture(scope="module")
def chromium():
    """playwright's Browser. While it is open its thread has a running event loop, which tests of
    other files that run after it in this process must not find."""
    with sync_playwright() as playwright:
        path = browser_path(playwright)
        if path is None:
            give_up(
                f"no browser here: none of {', '.join(NAMES)} is installed; "
                "apt-get install chromium, or playwright install chromium"
            )
        # In a container there is mostly neither the right to make a sandbox nor a large /dev/shm.
        options = ["--no-sandbox", "--disable-dev-shm-usage"]
        browser = playwright.chromium.launch(executable_path=path, args=options)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def server(chromium, tmp_path_factory):
    with LabServer(tmp_path_factory.mktemp("browser")) as running:
        yield running


@pytest.fixture(scope="module")
def tab(chromium, server):
    """A module's tests share a tab, and with it the cache of JupyterLab's own files."""
    context = chromium.new_context(viewport={"width": 1280, "height": 900})
    yield LabPage(context.new_page(), server)
    context.close()


@pytest.fixture
def lab(tab, server):
    """The tab, and afterwards no kernel that a next test could find something in."""
    yield tab
    server.end_kernels()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    tab = item.funcargs.get("tab") or item.funcargs.get("lab")
    if report.failed and tab is not None:
        folder = Path(item.config.rootpath, "build", "screenshots")
        folder.mkdir(parents=True, exist_ok=True)
        picture = tab.screenshot(folder, re.sub(r"\W+", "-", item.name))
        report.sections.append(("browser", f"screenshot: {picture}\n{tab.server.log()[-3000:]}"))
    return report
