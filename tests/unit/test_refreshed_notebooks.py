"""Parts of a notebook's stored output stay as they are when it is executed again."""

import pytest
from nbformat import v4

from scripts.normal_form import normal_form
from scripts.notebooks import keep_equal_texts


def notebook(number, text, source="run(f, 2)"):
    """Its last cell is the n-th that is executed, and printed this."""
    output = v4.new_output("stream", name="stdout", text=text)
    cells = [v4.new_code_cell("pass", id=f"c{n}", execution_count=n) for n in range(1, number)]
    cells += [v4.new_code_cell(source, id="last", execution_count=number, outputs=[output])]
    return normal_form(v4.new_notebook(cells=cells))


@pytest.mark.parametrize(
    ("old", "new", "is_kept"),
    [
        (notebook(3, "took 1.0 s\n"), notebook(3, "took 2.0 s\n"), True),
        (notebook(3, "took 1.0 s\n"), notebook(3, "took 2.0 s, alas\n"), False),
        (notebook(3, "at cell 3, line 2\n"), notebook(4, "at cell 4, line 2\n"), False),
        (notebook(3, "took 1.0 s\n"), notebook(3, "took 2.0 s\n", source="run(g, 2)"), False),
    ],
    ids=["another duration", "another text", "another number of the cell", "another source"],
)
def test_only_a_text_that_differs_in_nothing_else_stays(old, new, is_kept):
    text = new.cells[-1].outputs[0].text
    keep_equal_texts(old, new)
    expected = old.cells[-1].outputs[0].text if is_kept else text
    assert new.cells[-1].outputs[0].text == expected
