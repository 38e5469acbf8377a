"""Every committed notebook is in its normal form, and stores nothing that it should not."""

import base64
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from scripts.normal_form import PICTURE_BYTES, VOLATILE_MIME, complaints, normal_form

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))


def code(source="1 + 1", *outputs, count=1, **metadata):
    return new_code_cell(
        source, outputs=list(outputs), execution_count=count, metadata=metadata, id=f"c{count}"
    )


def printed(text):
    return new_output("stream", name="stdout", text=text)


def shown(**data):
    return new_output("display_data", data={key.replace("_", "/"): v for key, v in data.items()})


def test_there_are_notebooks_to_look_at():
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_committed_notebook_is_in_its_normal_form(path):
    stored = path.read_text(encoding="utf-8")
    tidied = nbformat.writes(normal_form(nbformat.reads(stored, as_version=4))) + "\n"
    assert stored == tidied, f"run: make notebooks NOTEBOOKS=notebooks/{path.name}"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_committed_notebook_stores_nothing_that_it_should_not(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert complaints(notebook) == []


def test_the_normal_form_of_a_normal_form_is_itself():
    once = normal_form(new_notebook(cells=[new_markdown_cell("# Hello"), code()]))
    assert nbformat.writes(normal_form(once)) == nbformat.writes(once)


def test_metadata_of_a_run_is_dropped_and_tags_stay():
    cell = code(tags=["nbval-ignore-output"], execution={"started": "today"}, scrolled=True)
    mine = {"name": "my-own", "display_name": "mine"}
    metadata = {"widgets": {"state": {}}, "kernelspec": mine, "language_info": {"name": "python"}}
    tidied = normal_form(new_notebook(cells=[cell], metadata=metadata))
    assert tidied.cells[0].metadata == {"tags": ["nbval-ignore-output"]}
    assert set(tidied.metadata) == {"kernelspec", "language_info"}
    assert tidied.metadata.kernelspec.name == "python3"


def test_cells_are_counted_from_one():
    result = new_output("execute_result", data={"text/plain": "2"}, execution_count=17)
    tidied = normal_form(new_notebook(cells=[code(count=12), code("1 + 1", result, count=17)]))
    assert [cell.execution_count for cell in tidied.cells] == [1, 2]
    assert tidied.cells[1].outputs[0].execution_count == 2


def test_ids_stay_and_missing_or_double_ones_are_made_from_the_text():
    cells = [code("a"), code("b"), code("c")]
    cells[2].pop("id")
    # Not by new_notebook, which repairs ids, at random.
    first, second = (normal_form(NotebookNode(cells=cells)).cells for _ in range(2))
    assert first[0].id == "c1"
    assert len({cell.id for cell in first}) == 3
    assert [cell.id for cell in first] == [cell.id for cell in second]


def test_widget_views_are_dropped_and_their_text_stays():
    view = new_output(
        "display_data", data={VOLATILE_MIME: {"model_id": "1"}, "text/plain": "slider"}
    )
    bare = new_output("display_data", data={VOLATILE_MIME: {"model_id": "2"}})
    (cell,) = normal_form(new_notebook(cells=[code("slider()", view, bare)])).cells
    assert [output.data for output in cell.outputs] == [{"text/plain": "slider"}]


def test_neighbours_of_one_stream_become_one():
    errors = new_output("stream", name="stderr", text="c\n")
    cell = code("work()", printed("a\n"), printed("b\n"), errors, printed("d\n"))
    (cell,) = normal_form(new_notebook(cells=[cell])).cells
    assert [output.text for output in cell.outputs] == ["a\nb\n", "c\n", "d\n"]


ERROR = new_output("error", ename="ValueError", evalue="no", traceback=[])
BIG = base64.b64encode(bytes(PICTURE_BYTES + 1)).decode()
FINE = code("print(1)", printed("1\n"), count=2)


@pytest.mark.parametrize(
    ("cell", "complaint"),
    [
        (code("1 / 0", ERROR), "stores an error"),
        (code("draw()", shown(image_png=BIG)), "stores a picture of 100,001 bytes"),
        (code("print(path)", printed("read /home/ada/corpus.txt\n")), "path of one machine"),
        (code("path", shown(text_html="<b>/tmp/x1/trace.json</b>")), "path of one machine"),
        (
            code("import os; os.__file__", printed("/usr/lib/python3.11/os.py")),
            "path of one machine",
        ),
        (code("1 + 1", count=None), "was never run"),
        (code("1 / 0", tags=["raises-exception"]), "passes unseen"),
        (code("# NBVAL_SKIP\n1 / 0"), "is marked nbval-skip"),
    ],
)
def test_complaints_name_the_cell_and_the_fault(cell, complaint):
    (line,) = complaints(new_notebook(cells=[cell, FINE]))
    assert line.startswith("cell 0: ")
    assert complaint in line


def test_a_notebook_that_compares_nothing_is_complained_about():
    ignored = code("print(1)", printed("1\n"), tags=["nbval-ignore-output"])
    assert "nothing is compared" in complaints(new_notebook(cells=[ignored]))[0]


def test_ordinary_outputs_get_no_complaint():
    picture = shown(image_png=base64.b64encode(bytes(PICTURE_BYTES)).decode())
    relative = printed("notebooks/work/tmp/trace.json, 3/tmp/x\n")
    assert complaints(new_notebook(cells=[code("draw()", picture, relative), FINE])) == []
