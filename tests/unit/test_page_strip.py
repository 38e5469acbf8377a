"""The strip of a page: its steps, what is done of them, and the minutes that are left."""

import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from labkit import progress
from labkit.notebook.page_strip import Strip, read_page, strip
from labkit.progress.practice import answer, record_check

PAGE = new_notebook(
    cells=[
        new_markdown_cell("# A page\n\n" + "word " * 118),
        new_code_cell('predict("strip-sent", "How much?")'),
        new_code_cell("\n".join(["x = 1"] * 69)),
        new_markdown_cell("## Build it\n\n[`scan`](../exercises/ring_all_reduce.py) `co-2` `scan`"),
        new_markdown_cell("## Ask\n\n`ring_seconds` again `co-2`"),
    ]
)


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path / "home"))


def test_a_page_has_its_predictions_exercises_cards_and_drills_once_each():
    assert [(step.kind, step.name, step.heading) for step in read_page(PAGE).steps] == [
        ("predictions", "strip-sent", "A page"),
        ("exercises", "ring_all_reduce", "Build it"),
        ("cards and drills", "co-2", "Build it"),
        ("cards and drills", "ring_seconds", "Ask"),
    ]


def test_the_strip_follows_what_is_done_and_names_the_next_step():
    line = Strip(read_page(PAGE))
    assert "predictions 0 of 1" in line.text and "12 minutes" in line.text
    assert 'next: predict under "A page"' in line.text
    progress.record("prediction", "strip-sent", text="3", value=3, dimension="")
    assert "predictions 1 of 1" in line.text and "10 minutes" in line.text
    record_check("ring_all_reduce", attempted=True, passed=False, outcome="wrong")
    assert "exercises 0 of 1" in line.text and 'write under "Build it"' in line.text
    record_check("ring_all_reduce", attempted=True, passed=True, outcome="passed")
    answer("card/co-2", "good")
    answer("drill/ring_seconds", "again")
    assert "1 of 1 · cards and drills 2 of 2; about 0 minutes left" in line.text
    assert "next" not in line.text


def test_its_stored_form_is_the_same_for_every_reader():
    line = Strip(read_page(PAGE))
    before = repr(line)
    progress.record("prediction", "strip-sent", text="3", value=3, dimension="")
    assert repr(line) == before == "predictions 1 · exercises 1 · cards and drills 2; 12 minutes"


def test_a_page_that_is_not_there_is_an_error():
    with pytest.raises(FileNotFoundError, match="99_no_page"):
        strip("99_no_page")
    assert "predictions" in repr(strip("24_many_requests_at_once"))
