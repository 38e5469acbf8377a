"""Functions that are asked questions: what crosses from their process, and what they may not do."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from labkit.comm.operation import Region, Timeline
from labkit.grade import answers as answers_module
from labkit.grade import check
from labkit.grade.answering import QUESTION, Answer
from labkit.grade.answers import Question, ask
from labkit.grade.outcome import Finding, Outcome
from labkit.grade.submission import Submission
from labkit.grade.workspace import Workspace
from labkit.launch.errors import RunTimeout

WORKSPACE = Workspace(Path(__file__).parents[2])
NAME = "find_the_deadlock"


@pytest.fixture
def asked(tmp_path):
    """Answers of a file that defines f(x), to questions about each x."""

    def ask_about(source, *values, timeout_s=10.0):
        file = tmp_path / "mine.py"
        file.write_text(source)
        code = Submission.read(file, NAME, ("f",), WORKSPACE)
        questions = [Question("f", (value,), f"number {value}", None) for value in values]
        return ask(code, questions, timeout_s)

    return ask_about


def test_plain_data_comes_back_as_it_was(asked):
    source = "def f(x):\n    return {x: ['send to 1', (None, True, -1.5)], 'deep': {(1, 2): {}}}\n"
    assert asked(source, 3, 4) == [
        {3: ["send to 1", (None, True, -1.5)], "deep": {(1, 2): {}}},
        {4: ["send to 1", (None, True, -1.5)], "deep": {(1, 2): {}}},
    ]


def test_numbers_of_numpy_and_other_kinds_of_dicts_and_tuples_are_plain_data(asked):
    source = (
        "import collections\nimport numpy as np\n"
        "Pair = collections.namedtuple('Pair', 'a b')\n"
        "def f(x):\n"
        "    kept = collections.defaultdict(list)\n"
        "    kept[np.int64(x)].append(Pair(np.float32(0.5), np.float64(x)))\n"
        "    return kept\n"
    )
    answers = asked(source, 3)
    assert answers == [{3: [(0.5, 3.0)]}] and type(next(iter(answers[0]))) is int
    assert type(answers[0]) is dict and type(answers[0][3][0]) is tuple


def test_a_range_is_the_list_of_its_numbers(asked):
    assert asked("def f(x):\n    return [range(x), range(x, 5)]\n", 3) == [[[0, 1, 2], [3, 4]]]


@pytest.mark.parametrize(
    "value",
    [
        "{0}",
        "range(10**12)",
        "__import__('numpy').float32('nan')",
        "__import__('numpy').arange(2)",
        "float('nan')",
        "object()",
        "print",
        "[[1], {2: {3}}]",
        "10**5000",
        "loop",
        "Trap()",
    ],
)
def test_everything_else_is_named_by_its_type_and_never_reaches_the_driver(asked, value):
    finding = asked(
        "class Trap(int):\n"
        "    def __repr__(self):\n"
        "        return '__import__(\"os\").abort()'\n"
        "loop = []\n"
        "loop.append(loop)\n"
        f"def f(x):\n    return {value}\n",
        1,
    )
    assert finding.diagnosis == "returns something that is no plain data", finding


def test_all_questions_are_asked_in_one_process_in_order(asked):
    source = "seen = []\ndef f(x):\n    seen.append(x)\n    return list(seen)\n"
    assert asked(source, 5, 6) == [[5], [5, 6]]


def test_a_crash_names_the_question_and_the_line(asked):
    finding = asked("def f(x):\n    return 1 // (x - 2)\n", 1, 2, 3)
    assert (finding.diagnosis, finding.where.line) == ("raises ZeroDivisionError", 2)
    assert finding.first_seen == "f(2), number 2"
    assert finding.explanation.startswith("it raised ZeroDivisionError at mine.py, line 2")


def test_an_endless_loop_names_the_question_and_the_line(asked):
    finding = asked("def f(x):\n    while x > 1:\n        pass\n    return x\n", 1, 2, timeout_s=4)
    assert finding.diagnosis == "does not come to an end" and finding.first_seen == "f(2), number 2"
    assert finding.where.line in (2, 3)


@pytest.mark.parametrize(
    "attempt",
    [
        "import subprocess; subprocess.run(['true'])",
        "import os; os.system('true')",
        "import os; os.fork()",
        "import labkit; labkit.run(print, 1)",
        "import multiprocessing; multiprocessing.Process(target=print).start()",
    ],
)
def test_running_something_is_refused_even_where_the_error_is_caught(asked, attempt):
    source = f"def f(x):\n    try:\n        {attempt}\n    except Exception:\n        return x\n"
    finding = asked(source, 1)
    assert isinstance(finding, Finding), "the answer of the code that ran something was taken"
    assert finding.diagnosis == "runs something instead of answering"
    assert (finding.where.file.endswith("mine.py"), finding.where.line) == (True, 3)


def test_threads_of_the_usual_kind_may_answer_and_are_watched(tmp_path):
    file, values = tmp_path / "mine.py", []
    for called in ("len('abc')", "labkit.calc.ring_all_reduce_bytes(8, 2)"):
        file.write_text(
            "import threading\nimport labkit.calc\n"
            "def f(x):\n    found = []\n"
            f"    thread = threading.Thread(target=lambda: found.append({called}))\n"
            "    thread.start()\n    thread.join()\n    return found\n"
        )
        code = Submission.read(file, NAME, ("f",), WORKSPACE)
        values.append(ask(code, [Question("f", (1,), "one", None)], 10.0, ("calc",)))
    assert values[0] == [[3]]
    assert values[1].diagnosis == "calls the answer itself", values[1]


def test_the_driver_never_executes_the_code(asked, tmp_path):
    mark = tmp_path / "pids"
    source = (
        f"import os\nopen({str(mark)!r}, 'a').write(str(os.getpid()))\ndef f(x):\n    return x\n"
    )
    assert asked(source, 1) == [1] and mark.read_text() != str(os.getpid())


def test_what_is_written_is_judged_and_what_is_missing_is_named(tmp_path):
    stub = WORKSPACE.exercise(NAME).read_text()
    refusal = '    raise NotImplementedError("not attempted yet: your code replaces this line")\n'
    file = tmp_path / "mine.py"
    first = (
        "    return {rank: f'recv from {(rank - 1) % world_size}' for rank in range(world_size)}\n"
    )
    file.write_text(stub.replace(refusal, first, 1))
    verdict = check(NAME, file, workspace=WORKSPACE)
    assert verdict.diagnosis == "a part is still to be written"
    assert "waits_in_shift" not in verdict.finding.explanation
    assert "waits_in_pass_it_on" in verdict.finding.explanation
    file.write_text(stub.replace(refusal, "    return {}\n", 1))
    assert check(NAME, file, workspace=WORKSPACE).diagnosis == "overlooks a deadlock"


def test_several_functions_of_a_notebook_are_given_as_a_list():
    def waits_in_shift(world_size): ...
    def waits_in_pass_it_on(world_size):
        return []

    def waits_in_log_the_loss(world_size): ...
    def waits_in_epoch(world_size): ...
    def waits_in_two_groups(world_size): ...

    given = [
        waits_in_two_groups,
        waits_in_pass_it_on,
        waits_in_shift,
        waits_in_epoch,
        waits_in_log_the_loss,
    ]
    verdict = check(NAME, given, workspace=WORKSPACE)
    assert verdict.diagnosis == "returns no dict", verdict
    assert 'check("find_the_deadlock", [waits_in_shift, waits_in_pass_it_on, ' in verdict.call
    with pytest.raises(TypeError, match="a list of the functions waits_in_shift, .*; got f"):

        def f(world_size): ...

        check(NAME, f, workspace=WORKSPACE)


def test_a_process_that_never_came_to_the_code_is_given_longer_once(monkeypatch):
    """A machine too busy to start a process says nothing about the code."""
    given_s = []

    def never(code, questions, timeout_s, *rules):
        given_s.append(timeout_s)
        return Finding(Outcome.HUNG, "never began", "")

    monkeypatch.setattr(answers_module, "ask", never)
    code = SimpleNamespace(unwritten=())
    grader = SimpleNamespace(
        questions=lambda rng: [],
        tried=str,
        answers_are_in=(),
        arguments_stay=False,
        takes_iterators=False,
    )
    graded = answers_module.Answers.grade(grader, code, seed=0, timeout_s=2.0)
    assert given_s == [2.0, 8.0] and graded.finding.outcome is Outcome.HUNG


def test_the_question_at_which_it_stood_is_named_though_answered_a_moment_later(monkeypatch, asked):
    def answered_since(folder, index):
        return Answer(repr(index), "int") if index < 2 else None

    def time_is_up(*_, **__):
        regions = [Region(QUESTION, 0.0, 0.1), Region(QUESTION, 0.1, None)]
        stack = '  File "/home/someone/mine.py", line 2 in f\n'
        raise RunTimeout("", timeline=[Timeline([], regions, 0.0, 10.0)], stacks=[stack])

    monkeypatch.setattr(answers_module, "read_answer", answered_since)
    monkeypatch.setattr(answers_module, "launch", time_is_up)
    finding = asked("def f(x): ...\n", 1, 2, 3)
    assert finding.diagnosis == "does not come to an end" and finding.first_seen == "f(2), number 2"


def test_a_generator_answers_with_what_it_yields_where_that_is_allowed(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("def f(x):\n    while x < 4:\n        yield x\n        x += 1\n")
    code = Submission.read(file, NAME, ("f",), WORKSPACE)
    questions = [Question("f", (1,), "one", None)]
    assert ask(code, questions, 10.0, takes_iterators=True) == [[1, 2, 3]]
    refused = ask(code, questions, 10.0)
    assert refused.diagnosis == "returns something that is no plain data", refused
    file.write_text("import itertools\nf = itertools.count\n")
    endless = Submission.read(file, NAME, ("f",), WORKSPACE)
    assert ask(endless, questions, 10.0, takes_iterators=True)[0][:2] == [1, 2]
    file.write_text("def f(x):\n    yield x\n    yield 1 // 0\n")
    crashes = Submission.read(file, NAME, ("f",), WORKSPACE)
    finding = ask(crashes, questions, 10.0, takes_iterators=True)
    assert (finding.diagnosis, finding.where.line) == ("raises ZeroDivisionError", 3)
