"""Make README's moving picture, docs/first_minute.webp, from a real JupyterLab in a real browser.

    python -m scripts.moving_picture    half a minute; needs the Chromium of tests/browser

The page is 00: a prediction, four processes, a deadlock's verdict, and an exercise that fails and
then passes. A frame is taken when the page shows a state. Its time on the screen is for readers.
"""

import argparse
import io
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from matplotlib import font_manager
from PIL import Image, ImageDraw, ImageFont
from playwright.sync_api import sync_playwright

from tests.browser.conftest import browser_path
from tests.browser.lab_page import NOTEBOOK, SELECT, START, LabPage, shows
from tests.browser.lab_server import LabServer

PICTURE = Path(__file__).resolve().parents[1] / "docs" / "first_minute.webp"
PAGE, EXERCISE = "00_start_here.ipynb", "ring_all_reduce"
WIDTH, HEIGHT, CAPTION = 960, 600, 44
QUALITY = 80
# Cells of the page, by id.
SILENT = ("start-picture", "start-03", "start-07")
PREDICT, TRAIN, TIMELINE = "start-09", "start-11", "start-14"
DEADLOCK, CHECK = ("start-19", "start-21"), "start-25"
TO_TOP = f"""([id, part, above]) => {{
    const cell = {NOTEBOOK}.content.widgets.find(each => each.model.id === id).node;
    cell.querySelector(part).scrollIntoView({{block: 'start', behavior: 'instant'}});
    cell.closest('.jp-WindowedPanel-outer').scrollTop -= above; }}"""
INPUT, OUTPUT = ".jp-Cell-inputWrapper", ".jp-Cell-outputWrapper"


class Film:
    """Frames of a tab, each with a caption below it and the time that it is shown."""

    def __init__(self, tab: LabPage) -> None:
        self.tab, self.caption = tab, ""
        self.frames: list[Image.Image] = []
        self.times_ms: list[int] = []
        font = font_manager.findfont("DejaVu Sans")
        self._font = ImageFont.truetype(font, 20)

    def shot(self, seconds: float) -> None:
        """Take a frame; a frame that shows nothing new prolongs the one before it."""
        page = Image.open(io.BytesIO(self.tab.page.screenshot())).convert("RGB")
        frame = Image.new("RGB", (WIDTH, HEIGHT + CAPTION), "#1f2937")
        frame.paste(page, (0, 0))
        draw = ImageDraw.Draw(frame)
        draw.text((20, HEIGHT + CAPTION / 2), self.caption, "white", self._font, anchor="lm")
        if self.frames and frame.tobytes() == self.frames[-1].tobytes():
            self.times_ms[-1] += round(seconds * 1000)
        else:
            self.frames.append(frame)
            self.times_ms.append(round(seconds * 1000))

    def save(self) -> None:
        """Store the film; after its last frame it starts again."""
        first, *others = self.frames
        first.save(
            PICTURE,
            save_all=True,
            append_images=others,
            duration=self.times_ms,
            loop=0,
            quality=QUALITY,
            method=6,
        )


def main() -> None:
    """Store the picture, and print its size."""
    argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0]).parse_args()
    with tempfile.TemporaryDirectory() as folder, opened(Path(folder)) as tab:
        film = Film(tab)
        predict(film)
        run(film)
        deadlock(film)
        exercise(film)
    film.save()
    print(
        f"{PICTURE.name}: {PICTURE.stat().st_size / 1e6:.2f} MB, {len(film.frames)} frames, "
        f"{sum(film.times_ms) / 1000:.0f} s"
    )


@contextmanager
def opened(folder: Path) -> Iterator[LabPage]:
    """A lab's first page without outputs, in a browser that shows nothing else."""
    with sync_playwright() as playwright, LabServer(folder) as server:
        options = ["--no-sandbox", "--disable-dev-shm-usage"]
        path = browser_path(playwright)
        browser = playwright.chromium.launch(executable_path=path, args=options)
        tab = LabPage(browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}), server)
        tab.open(PAGE)
        tab.command("notebook:clear-all-cell-outputs")
        tab.page.evaluate("window.jupyterapp.shell.collapseLeft()")
        tab.run(*SILENT)
        yield tab
        browser.close()


def top(film: Film, cell: str, above: int = 90, part: str = INPUT) -> None:
    """Scroll to a part of a cell, with so many pixels of what comes before it."""
    film.tab.page.evaluate(TO_TOP, [cell, part, above])


def predict(film: Film) -> None:
    """Type a number before anything is measured."""
    film.caption = "1  Predict: a number of yours comes before each measurement"
    film.tab.run(PREDICT)
    box = film.tab.output(PREDICT)
    entry = box.get_by_role("textbox")
    entry.wait_for()
    top(film, PREDICT)
    film.shot(2.5)
    for end in range(1, len("700 kB") + 1):
        entry.fill("700 kB"[:end])
        film.shot(0.15)
    film.tab.press(box.get_by_role("button", name="Commit"), "Enter")
    shows(box, "Committed")
    film.shot(1.5)


def started(film: Film, cell: str) -> None:
    """Run a cell, with a frame while it runs."""
    tab = film.tab
    tab.page.evaluate(SELECT, cell)
    tab.page.evaluate(START, "notebook:run-cell")
    film.shot(1.0)
    tab.page.wait_for_function("window.ended", timeout=120_000, polling=100)
    assert tab.errors() == []


def run(film: Film) -> None:
    """Train on four processes, and see what was sent and when."""
    film.caption = "2  Run: four processes on this machine, and what was really sent"
    top(film, TRAIN)
    started(film, TRAIN)
    film.tab.output(TRAIN)
    top(film, TRAIN)
    film.shot(4)
    film.caption = "2  Run: where the time of a step went, on each rank"
    film.tab.run(TIMELINE)
    top(film, TIMELINE, 60, OUTPUT)
    film.shot(4)


def deadlock(film: Film) -> None:
    """One rank has a batch less: the ranks hang, and the lab says why."""
    film.caption = "3  Break it: one rank has a batch too few, and the others wait forever"
    film.tab.run(DEADLOCK[0])
    top(film, DEADLOCK[1])
    film.shot(2.5)
    started(film, DEADLOCK[1])
    film.caption = "3  Seconds later: which rank, which operation, which line"
    top(film, DEADLOCK[1], 12)
    film.shot(5.5)


def exercise(film: Film) -> None:
    """Check an answer that stops too early, and then one that is right."""
    folder = film.tab.server.folder
    mine = folder / "exercises" / f"{EXERCISE}.py"
    solution = (folder / "solutions" / mine.name).read_text()
    early = solution.replace("# All-gather.", "return total.view(x.shape)\n    # All-gather.")
    film.caption = "4  Build it: the check runs your function on real ranks"
    for text, verdict, caption, seconds in (
        (early, "stops too early", "4  Build it: the check names the mistake", 5.5),
        (solution, "passed", "4  Passed: values, messages and bytes are right", 5),
    ):
        mine.write_text(text)
        top(film, CHECK)
        started(film, CHECK)
        shows(film.tab.output(CHECK), verdict)
        film.caption = caption
        top(film, CHECK, 12)
        film.shot(seconds)
        film.caption = "4  Build it: the next try"


if __name__ == "__main__":
    main()
