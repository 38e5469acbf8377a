"""A notebook in JupyterLab, as a reader sees it: run cells, find outputs, press keys.

Everything waits for a state, never for a time. The limits are for a machine that is busy and cold.
"""

import time
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import expect

KERNEL_MS, CELLS_MS, CHANGE_MS = 120_000, 180_000, 60_000
NOTEBOOK = "window.jupyterapp?.shell.currentWidget"
KERNEL = f"{NOTEBOOK}?.context?.sessionContext"
IS_OPEN = f"""name => {NOTEBOOK}?.context?.isReady && {NOTEBOOK}.context.path.endsWith(name)
    && {KERNEL}.kernelDisplayStatus === 'idle'"""
# Cells have an id in the file, but none in the page.
NAME_CELLS = f"{NOTEBOOK}.content.widgets.forEach(each => each.node.dataset.cell = each.model.id)"
# [cell, error] of all outputs, shown or not.
ERRORS = f"""() => {NOTEBOOK}.content.widgets.flatMap(cell =>
    (cell.model.sharedModel.outputs ?? [])
        .filter(output => output.output_type === 'error')
        .map(output => [cell.model.id, `${{output.ename}}: ${{output.evalue}}`]))"""
SELECT = f"""id => {{ const notebook = {NOTEBOOK}.content;
    notebook.activeCellIndex = notebook.widgets.findIndex(each => each.model.id === id) }}"""
START = """name => { window.ended = null;
    window.jupyterapp.commands.execute(name).then(
        well => window.ended = [well], error => window.ended = [String(error)]) }"""

# A pressed key goes to the element that has the focus at that moment.
AWAIT_KEY = """node => { window.gotKey = false;
    node.addEventListener('keydown', () => { window.gotKey = true }, {once: true}) }"""
CHANGE_THEME = "theme => window.jupyterapp.commands.execute('apputils:change-theme', {theme})"


class LabPage:
    """The one tab of a browser. `page` is playwright's."""

    def __init__(self, page, server):
        self.page, self.server = page, server

    def open(self, notebook):
        """Open notebooks/`notebook` alone, and wait for its kernel."""
        self.page.goto(self.server.url(f"lab/tree/notebooks/{notebook}", "reset"))
        self.page.wait_for_function(IS_OPEN, arg=notebook, timeout=KERNEL_MS)
        self.page.evaluate(NAME_CELLS)

    def come_back(self):
        """Save, end the kernel, and open the page again: what is left is what is on a disk."""
        name = self.page.evaluate(f"{NOTEBOOK}.context.path").rsplit("/", 1)[-1]
        self.command("docmanager:save")
        self.page.goto("about:blank")
        self.server.end_kernels()
        self.open(name)

    def run_all(self):
        """Every cell from the top; none may show an error."""
        assert self.command("notebook:run-all-cells") is True, self.errors()
        assert self.errors() == []

    def run(self, *cells):
        """These cells, by id, in this order; none may show an error."""
        for cell in cells:
            self.page.evaluate(SELECT, cell)
            assert self.command("notebook:run-cell") is True, self.errors()
        assert self.errors() == []

    def errors(self):
        """[cell, error] of every output that is one."""
        return self.page.evaluate(ERRORS)

    def output(self, cell):
        """Return playwright's locator of a cell's output."""
        place = self.page.locator(f'[data-cell="{cell}"] .jp-Cell-outputArea')
        place.scroll_into_view_if_needed(timeout=CHANGE_MS)  # off the screen it is not laid out
        return place

    def command(self, name):
        """One of JupyterLab's own, to its end; what it returns."""
        self.page.evaluate(START, name)
        self.page.wait_for_function("window.ended", timeout=CELLS_MS, polling=100)
        return self.page.evaluate("window.ended[0]")

    def press(self, place, *keys):
        """Press keys at a place, as somebody without a mouse does.

        An answer of the kernel may move the focus away between the two: then once more.
        """
        for key in keys:
            reached = False
            while not reached:
                place.evaluate(AWAIT_KEY)
                place.focus()
                self.page.keyboard.press(key)
                reached = self.page.evaluate("window.gotKey")  # the key may have removed the place

    def theme(self, name):
        """Change JupyterLab's, and wait until the page has it."""
        self.page.evaluate(CHANGE_THEME, name)
        is_set = "name => document.body.dataset.jpThemeName === name"
        self.page.wait_for_function(is_set, arg=name, timeout=CHANGE_MS)

    @contextmanager
    def zoomed(self, factor):
        """As a browser's zoom, the side bar closed: `factor` times fewer pixels of CSS."""
        self.page.evaluate("window.jupyterapp.shell.collapseLeft()")
        usual = self.page.viewport_size
        self.page.set_viewport_size({side: size // factor for side, size in usual.items()})
        try:
            yield self
        finally:
            self.page.set_viewport_size(usual)

    def screenshot(self, folder, name):
        """A picture of the tab, for whoever reads the failure; the path."""
        path = Path(folder) / f"{name}-{time.time_ns()}.png"
        self.page.screenshot(path=path)
        return path


def slider(output, label):
    """The handle of the slider that has `label` in front of it."""
    row = output.locator(".widget-slider").filter(has=output.page.get_by_text(label, exact=True))
    return row.get_by_role("slider")


def becomes(read, differs_from):
    """Wait until `read()` gives something else; AssertionError with what it still gives."""
    deadline = time.monotonic() + CHANGE_MS / 1000
    while (found := read()) == differs_from:
        assert time.monotonic() < deadline, f"it still is {found!r:.200}"
        time.sleep(0.05)
    return found


def shows(place, text):
    """Wait until a place shows `text`."""
    expect(place).to_contain_text(text, timeout=CHANGE_MS)
