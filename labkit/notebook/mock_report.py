"""The report of a mock interview on a page, and where it is saved."""

import os
from collections.abc import Callable
from html import escape
from pathlib import Path

import ipywidgets as widgets

from labkit.interview.mock import Report
from labkit.interview.mock.report_file import write_report
from labkit.interview.page import html_of
from labkit.notebook.controls import button, note, row, say
from labkit.notebook.heard import listen
from labkit.progress import clock

_ENDINGS = ("html", "md")


class ReportView:
    """What the interview showed; `save(ending)` does what its buttons do."""

    def __init__(self, make: Callable[[], Report]) -> None:
        """make: the report, which the progress store remembers when it is made."""
        self.report, heard = listen(make)
        self._is_stored = not heard.is_unwritten
        day = clock.day_of(clock.now_s())
        self._file = widgets.Text(
            value=f"~/mock_interview_{day}",
            description="Save the report as",
            layout={"width": "26em"},
        )
        self._save_html = button("Save as HTML", lambda: self.save("html"))
        self._save_markdown = button("Save as Markdown", lambda: self.save("md"))
        self._saved = note()
        summary, details = _pages(self.report)
        save = [self._file, row([self._save_html, self._save_markdown]), self._saved]
        told = widgets.HTML(summary + heard.html + self._stored_html())
        self.widget = widgets.VBox([told, *save, widgets.HTML(details)])

    def focus(self) -> None:
        """The first thing to do with it."""
        self._save_html.focus()

    def save(self, ending: str) -> Path | None:
        """Write the report where the field says; the page says where it is, or why it is not."""
        file = named(self._file.value, ending)
        try:
            write_report(self.report, file)
        except FileExistsError:
            say(self._saved, f"✗ {_code(file)} is there already: choose another name.")
        except (OSError, ValueError) as error:
            say(self._saved, f"✗ Not saved: {escape(str(error))}.")
        else:
            say(self._saved, f"✓ The report is in {_code(file)}.")
            return file
        return None

    def _stored_html(self) -> str:
        if not self.report.taken:
            return ""
        if not self._is_stored:
            return "<p>This interview is <b>not stored</b>.</p>"
        return (
            '<p class="faint">Stored: each answer when it was given, and now the interview as a '
            "whole. <code>dashboard()</code> shows both.</p>"
        )


def named(text: str, ending: str) -> Path:
    """The file that is meant by `text`, whichever of the two endings was typed, or none."""
    stem = text.strip()
    for each in _ENDINGS:
        stem = stem.removesuffix(f".{each}")
    return Path(os.path.expanduser(f"{stem}.{ending}")).absolute()  # "~nobody/x" stays as it is


def _pages(report: Report) -> tuple[str, str]:
    """The result by topic, and what was asked. Its title is the page's already."""
    _, _, body = report.markdown.partition("\n")
    lowered = body.replace("\n## ", "\n#### ")  # below the headings of the notebook
    summary, heading, details = lowered.partition("\n#### What was asked")
    return f'<div class="prompt">Report</div>{html_of(summary)}', html_of(heading + details)


def _code(file: Path) -> str:
    return f"<code>{escape(str(file))}</code>"
