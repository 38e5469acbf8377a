"""The one-page sheet: each number is proved, and the stored files are those of the table."""

import re

import pytest

from labkit.interview.evidence import prove, uses
from scripts import sheet

ROWS = [row for rows in sheet.sections().values() for row in rows]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.says)
def test_a_number_is_what_its_expression_gives(row):
    assert uses(row.proof, "calc")
    proved = prove(row.says, row.proof)
    assert proved.holds, proved.reason


def test_there_are_35_to_50_numbers_each_with_an_explanation_of_its_own():
    assert 35 <= len(ROWS) <= 50
    assert len({row.what for row in ROWS}) == len(ROWS)


def test_the_stored_page_is_the_tables():
    assert sheet.PAGE.read_text(encoding="utf-8") == sheet.page(), "run python -m scripts.sheet"


def test_the_pdf_is_one_page_and_was_printed_from_the_stored_page():
    assert sheet.num_pages() == 1
    assert sheet.PDF.read_bytes().endswith(sheet.mark()), "run python -m scripts.sheet"


def test_the_page_loads_nothing():
    assert not re.search(r"src=|href=|url\(|@import", sheet.page())


def test_a_line_that_is_no_row_is_refused_with_its_section(monkeypatch, tmp_path):
    broken = tmp_path / "numbers.md"
    broken.write_text(
        "# Numbers\n\n## Serving\n\n| number | | proof |\n|---|---|---|\n| 7 | of |\n"
    )
    monkeypatch.setattr(sheet, "TABLE", broken)
    with pytest.raises(ValueError, match=r"numbers.md, Serving: '\| 7 \| of \|' is no row; write"):
        sheet.sections()
