"""`make notebooks`: which kernel runs, what is stored, and what counts as the same output."""

import sys
import tempfile
from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_notebook

from scripts.notebooks import execute, local_sockets, refresh

TIMED = "import time\nprint(f'{time.perf_counter():.6f} s, pid', __import__('os').getpid())"
COUNTED = "from pathlib import Path\nprint(len(list(Path('.').glob('*.txt'))), 'texts')"


def store(folder, *sources):
    path = folder / "made_up.ipynb"
    nbformat.write(new_notebook(cells=[new_code_cell(source) for source in sources]), path)
    return path


def outputs(path):
    return [cell.outputs[0].text for cell in nbformat.read(path, as_version=4).cells]


def test_a_cell_runs_in_the_python_of_the_tests():
    notebook = new_notebook(cells=[new_code_cell("import sys; print(sys.executable)")])
    assert execute(notebook, Path()).cells[0].outputs[0].text.strip() == sys.executable


def test_all_outputs_are_stored_from_one_run(tmp_path):
    path = store(tmp_path, TIMED, COUNTED)
    assert refresh(path) is None
    timed, counted = outputs(path)
    assert counted == "0 texts\n"
    (tmp_path / "one.txt").touch()
    assert refresh(path) is None
    again, counted = outputs(path)
    assert again != timed and counted == "1 texts\n"


def test_a_cell_that_fails_leaves_the_stored_notebook_alone(tmp_path):
    path = store(tmp_path, "raise ValueError('no corpus')")
    stored = path.read_bytes()
    assert "no corpus" in refresh(path)
    assert path.read_bytes() == stored


def test_kernels_side_by_side_have_sockets_that_no_other_process_is_given(monkeypatch):
    one, other = local_sockets(), local_sockets()
    assert one["transport"] == other["transport"] == "ipc"
    assert one["connection_file"] != other["connection_file"]
    monkeypatch.setattr(tempfile, "tempdir", f"/tmp/{'long' * 20}")
    assert local_sockets() == {}  # there is no room for the path of a socket
