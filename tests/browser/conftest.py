"""A JupyterLab and a headless Chromium for all tests here; a screenshot of each failure."""

import os
import re
import shutil
from pathlib import Path

import pytest
from playwright.sync_api import sync_playwright

from .lab_page import LabPage
from .lab_server import LabServer

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


@pytest.fixture(scope="package")
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


@pytest.fixture(scope="package")
def server(chromium, tmp_path_factory):
    with LabServer(tmp_path_factory.mktemp("browser")) as running:
        yield running


@pytest.fixture(scope="package")
def tab(chromium, server):
    """One for all tests: JupyterLab's own files, which are large, are read and compiled once."""
    context = chromium.new_context(viewport={"width": 1280, "height": 900})
    yield LabPage(context.new_page(), server)
    context.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.failed and (tab := item.funcargs.get("tab")):
        folder = Path(item.config.rootpath, "build", "screenshots")
        folder.mkdir(parents=True, exist_ok=True)
        picture = tab.screenshot(folder, re.sub(r"\W+", "-", item.name))
        report.sections.append(("browser", f"screenshot: {picture}\n{tab.server.log()[-3000:]}"))
    return report
