"""What ranks hand to the driver: plain data, records, and the learner's part of a traceback."""

import pickle
import threading
import traceback

import pytest
import torch

from labkit.grade import own_code, plain_data
from labkit.grade.exchange import Exchange, Record


@pytest.mark.parametrize(
    "x",
    [
        torch.tensor(3.5),
        torch.zeros(0, 4),
        torch.arange(24).view(2, 3, 4).transpose(0, 2),
        torch.tensor([1.5, float("nan"), -0.0], dtype=torch.bfloat16),
        torch.tensor([1 + 2j]),
        torch.tensor([True, False]),
    ],
)
def test_tensors_come_back_as_they_were(x):
    back = plain_data.loads(plain_data.dumps({"x": [x, "text", None, 3]}))
    assert back["x"][1:] == ["text", None, 3]
    torch.testing.assert_close(back["x"][0], x, rtol=0, atol=0, equal_nan=True)


def test_what_would_run_code_in_the_driver_is_refused():
    class Trap:
        def __reduce__(self):
            return print, ("the driver ran the code of a rank",)

    with pytest.raises(pickle.UnpicklingError, match="not plain data"):
        plain_data.loads(pickle.dumps(Trap()))


def test_a_record_is_there_as_a_whole_or_not_at_all(tmp_path):
    exchange = Exchange(str(tmp_path))
    record = Record(torch.ones(2), "Tensor", [], False, "", "NeverWaited", "why", ["f.py", 3, "g"])
    assert exchange.get_record(0, 1) is None
    exchange.put_record(0, 1, record)
    back = exchange.get_record(0, 1)
    assert back.output.tolist() == [1, 1] and back.rule_site == ["f.py", 3, "g"] and back.returned
    assert [path.name for path in tmp_path.iterdir()] == ["record-0-1"]


def test_a_traceback_keeps_the_learners_lines_and_loses_the_machinery():
    try:
        torch.stack(torch.nn.Linear(2, 2)(torch.ones(3)))
    except RuntimeError:
        text = traceback.format_exc()
    assert "torch/nn" in text
    own = own_code.of_traceback(text)
    assert "torch/nn" not in own and "torch.nn.Linear(2, 2)" in own and "RuntimeError" in own


def test_lines_of_a_notebooks_cell_are_the_learners():
    cell = "  Cell 7, line 3, in ring\n    x.view(17)\n"
    text = f'Traceback:\n  File "{torch.__file__}", line 3, in f\n    x\n{cell}Error: y\n'
    assert own_code.of_traceback(text) == f"Traceback:\n{cell}Error: y\n"
    assert str(own_code.site_in_stack(cell)) == "Cell 7:3"


def test_where_a_rank_starts_its_threads_is_no_line_of_the_learners():
    frame = f'  File "{threading.__file__}", line 969 in start\n'
    assert own_code.site_in_stack(frame) is None
    waits = own_code.site_in_stack('  File "answer.py", line 4, in f\n' + frame)
    assert str(waits) == "answer.py:4"


def test_a_line_that_imports_a_library_is_not_to_blame_and_one_of_a_library_is_not_the_learners():
    mine = '  File "/home/me/mine.py", line 1 in <module>\n    import numpy\n'
    imports = '  File "<frozen importlib._bootstrap>", line 1176 in _find_and_load\n'
    numpy = '  File "/home/me/.venv/lib/python3.11/site-packages/numpy/core.py", line 7 in f\n'
    helper = '  File "/home/me/helper.py", line 9 in <module>\n'
    assert own_code.site_in_stack(mine + imports + numpy) is None
    assert str(own_code.site_in_stack(mine + numpy)) == "/home/me/mine.py:1"
    assert str(own_code.site_in_stack(mine + imports + helper)) == "/home/me/helper.py:9"


def test_a_traceback_of_machinery_alone_is_kept():
    text = f'Traceback:\n  File "{torch.__file__}", line 3, in f\n    x\nError: y\n'
    assert own_code.of_traceback(text) == text


def test_the_innermost_line_of_a_stack_that_is_the_learners():
    stack = (
        '  File "<string>", line 1 in <module>\n'
        '  File "/home/me/mine.py", line 7 in outer\n'
        '  File "/home/me/mine.py", line 12 in inner\n'
        f'  File "{torch.__file__}", line 3 in deep\n'
    )
    site = own_code.site_in_stack(stack)
    assert (site.file, site.line, site.function) == ("/home/me/mine.py", 12, "inner")
    assert own_code.site_in_stack('  File "<string>", line 1 in <module>\n') is None
