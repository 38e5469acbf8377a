"""scripts/page_sizes.py counts what a reader reads, and finds predictions far from their answer."""

from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from scripts.page_sizes import size_of

PICTURE = new_output("display_data", data={"image/png": "", "text/plain": "picture"})


def size(*cells):
    return size_of(new_notebook(cells=list(cells)))


def test_words_are_text_without_drawings_tags_and_addresses():
    page = "# Two words\n\n```\na --> b\n```\n\n<b>Three</b> [four](https://a.org/b). ![alt](a.svg)"
    assert size(new_markdown_cell(page)).words == 4
    assert size(new_markdown_cell(page)).links == 1


def test_words_before_a_picture_of_text_or_of_a_run_are_counted():
    run = new_code_cell("draw()", outputs=[PICTURE])
    assert size(new_markdown_cell("one two ![three](a.svg) four")).before == 2
    assert size(new_markdown_cell("one two"), run, new_markdown_cell("three")).before == 2
    assert size(new_markdown_cell("one two")).before is None


def test_a_prediction_is_as_far_as_its_reveal():
    asked = new_code_cell('predict("sent", "How much?")')
    between, revealed = new_markdown_cell("text"), new_code_cell('reveal("sent", 3)')
    assert size(asked, between, revealed).distances == {"sent": 2}
    assert (
        size(asked, between, new_markdown_cell("more"), new_markdown_cell("text"), revealed).over[
            -1
        ]
        == "3 cells to a reveal (sent)"
    )
    assert size(asked).distances == {"sent": None}
    assert size(new_code_cell('predict("sent", "How much?", answer=3)')).distances == {"sent": 0}


def test_a_page_over_its_bounds_says_which():
    long = new_code_cell("\n".join(["ax.plot(1)"] + ["x = 1"] * 25))
    page = size(new_markdown_cell("word " * 60 * 75), long)
    assert (page.words, page.code, page.longest, page.plot, page.minutes) == (4500, 26, 26, 1, 79)
    assert page.over == [
        "75 minutes",
        "300 words before a picture",
        "25 lines in a cell",
        "plotting",
    ]
