"""A report as a file: Markdown or HTML, by the ending of its name."""

from pathlib import Path

from labkit.interview.mock.report import Report

_FORMS = {".md": "markdown", ".html": "html"}


def require_report_name(file: Path) -> None:
    """Raises ValueError unless a report can have this name: before an interview, not after it."""
    if file.suffix not in _FORMS:
        raise ValueError(f"{file}: give a name that ends in {' or '.join(_FORMS)}")
    if not file.parent.is_dir():
        raise ValueError(f"{file}: there is no folder {file.parent}")


def write_report(report: Report, file: Path, *, replace: bool = False) -> None:
    """Raises ValueError as above, FileExistsError unless `replace`, OSError from the disk."""
    require_report_name(file)
    with file.open("w" if replace else "x", encoding="utf-8") as opened:
        opened.write(getattr(report, _FORMS[file.suffix]))
