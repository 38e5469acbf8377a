"""check: every way in which code can end, and what the verdict says about it."""

import random
import re
import tempfile
from pathlib import Path

import pytest
import torch

from labkit import progress
from labkit.grade import Outcome, check
from labkit.grade.catalog import UnknownExercise
from labkit.grade.exchange import Exchange
from labkit.grade.graders.ring_inputs import random_cases
from labkit.grade.stubs import stub_of
from labkit.grade.submission import NothingToGrade
from labkit.grade.workspace import Workspace

WORKSPACE = Workspace(Path(__file__).parents[2])
NAME = "ring_all_reduce"
SOLUTION = WORKSPACE.solution(NAME)


@pytest.fixture
def checked(tmp_path):
    """The verdict on a program, which must define ring_all_reduce(x, group)."""

    def run(source, **options):
        file = tmp_path / "mine.py"
        file.write_text(source)
        return check(NAME, file, workspace=WORKSPACE, **options)

    return run


def test_the_solution_passes_and_its_verdict_reads_the_same_every_time():
    verdicts = [check(NAME, SOLUTION, workspace=WORKSPACE) for _ in range(2)]
    assert all(verdicts) and verdicts[0].outcome is Outcome.PASSED
    assert verdicts[0].seed != verdicts[1].seed, "inputs are new on every check"
    assert repr(verdicts[0]) == repr(verdicts[1])
    assert verdicts[0]._repr_html_() == verdicts[1]._repr_html_()
    assert "They may ask next" in repr(verdicts[0]), "what to say about it, and what follows"


def test_a_stub_is_not_attempted_and_no_rank_is_started(checked, monkeypatch):
    monkeypatch.setattr("labkit.grade.on_ranks.launch", None)
    verdict = checked(stub_of(NAME, WORKSPACE))
    assert verdict.outcome is Outcome.NOT_ATTEMPTED and not verdict
    assert repr(verdict) == (
        "ring_all_reduce: not attempted: still the stub\n"
        "  Next: write ring_all_reduce and check again.\n"
        '  Stuck: hint("ring_all_reduce")'
    )


def test_a_half_written_part_is_not_attempted_and_named(checked):
    verdict = checked(
        "def ring_all_reduce(x, group):\n"
        "    x = x + 0\n"
        "    raise NotImplementedError('second phase')\n"
    )
    assert (verdict.outcome, verdict.finding.where.line) == (Outcome.NOT_ATTEMPTED, 3)
    assert "second phase" in repr(verdict)


def test_a_function_is_graded_as_a_file_is():
    def mine(x, group):
        return group.all_reduce(x)

    verdict = check(NAME, mine, workspace=WORKSPACE)
    assert verdict.diagnosis == "calls a library collective"
    assert verdict.call == f'check("ring_all_reduce", mine, seed={verdict.seed})'


def test_an_unfinished_function_is_not_attempted():
    def ring_all_reduce(x, group):
        """To be written."""
        raise NotImplementedError

    assert check(NAME, ring_all_reduce, workspace=WORKSPACE).outcome is Outcome.NOT_ATTEMPTED


def test_the_seed_in_the_verdict_repeats_its_inputs(checked):
    wrong = "def ring_all_reduce(x, group):\n    return x * 2\n"
    first = checked(wrong)
    again = checked(wrong, seed=first.seed)
    assert again.finding.first_seen == first.finding.first_seen
    assert f"seed={first.seed})" in repr(first)
    assert checked(wrong, seed=first.seed + 1).finding.first_seen != first.finding.first_seen


@pytest.mark.parametrize(
    ("source", "diagnosis", "line", "words"),
    [
        ("def ring_all_reduce(x, group)\n    pass\n", "is not valid Python", 1, "line 1"),
        ("x = '\0'\n", "is not valid Python", 1, "null byte"),
        ("def something_else(x):\n    return x\n", "cannot be called", None, "keep the name"),
        ("def ring_all_reduce(x):\n    return x\n", "cannot be called", None, "2 arguments"),
        ("import nothing_of_that_name\n", "raises ModuleNotFoundError", 1, "nothing_of_that"),
        (
            "import sys\ndef ring_all_reduce(x, group):\n    sys.exit(3)\n",
            "raises SystemExit",
            3,
            r"sys.exit\(3\)",
        ),
        (
            "def ring_all_reduce(x, group):\n    return group.isend(x, -1)\n",
            "raises ValueError",
            2,
            "dst=-1 is not a rank",
        ),
        (
            "def ring_all_reduce(x, group):\n    return group.rnak\n",
            "raises AttributeError",
            2,
            "a group has no 'rnak'",
        ),
        (
            "import torch\n"
            "def ring_all_reduce(x, group):\n    return torch.empty(1, device='meta').cpu()\n",
            "raises NotImplementedError",
            3,
            "meta",
        ),
    ],
)
def test_code_that_fails_is_crashed_with_its_line(checked, source, diagnosis, line, words):
    verdict = checked(source)
    assert (verdict.outcome, verdict.diagnosis) == (Outcome.CRASHED, diagnosis), verdict
    where = verdict.finding.where
    assert line is None or where.line == line
    assert re.search(words, repr(verdict)), verdict


def test_a_traceback_shows_the_learners_lines_only(checked):
    verdict = checked("def ring_all_reduce(x, group):\n    return x.view(1, 2, 3, 5, 7, 11)\n")
    assert "x.view(1, 2, 3, 5, 7, 11)" in verdict.finding.details
    assert "labkit" not in verdict.finding.details.replace(str(WORKSPACE.root), "")


@pytest.mark.parametrize("fatal", ["os._exit(0)", "os.kill(os.getpid(), 9)"])
def test_a_process_that_ends_is_crashed_and_the_next_check_works(checked, fatal):
    verdict = checked(f"import os\ndef ring_all_reduce(x, group):\n    {fatal}\n")
    assert (verdict.outcome, verdict.diagnosis) == (Outcome.CRASHED, "its process ended")
    assert ("SIGKILL" if "kill" in fatal else "exited with code 0") in repr(verdict)
    assert "It printed nothing before that." in repr(verdict), verdict
    assert checked(SOLUTION.read_text())


def test_code_that_waits_while_it_is_loaded_is_hung(checked):
    verdict = checked("while True:\n    pass\n", timeout_s=2.5)
    assert (verdict.outcome, verdict.diagnosis) == (Outcome.HUNG, "does not finish loading")


@pytest.mark.parametrize(
    ("value", "diagnosis"),
    [
        ("None", "returns nothing"),
        ("[1.0]", "returns something that is no tensor"),
        ("x.to_sparse()", "returns something that is no tensor"),
        ("x[None]", "returns another shape"),
        ("x.half()", "returns another dtype"),
    ],
)
def test_a_result_of_another_form_is_wrong(checked, value, diagnosis):
    verdict = checked(f"def ring_all_reduce(x, group):\n    return {value}\n")
    assert (verdict.outcome, verdict.diagnosis) == (Outcome.WRONG, diagnosis)


def test_what_was_printed_is_shown_for_the_case_that_went_wrong_and_cut(checked):
    verdict = checked(
        "def ring_all_reduce(x, group):\n"
        "    for number in range(20_000):\n"
        "        print('line', number)\n"
        "    return x.clone()\n"
    )
    assert "[rank 0] line 19999" in verdict.finding.printed
    assert len(verdict.finding.printed.splitlines()) <= 40


def test_what_passes_on_the_way_to_a_crash_does_not_hide_a_wrong_value(checked):
    verdict = checked(
        "calls = 0\n"
        "def ring_all_reduce(x, group):\n"
        "    global calls\n"
        "    calls += 1\n"
        "    assert calls < 3\n"
        "    return x.clone()\n"
    )
    assert verdict.diagnosis == "nothing is sent"


def test_no_other_ranks_input_and_no_expected_value_is_within_reach(checked, tmp_path, monkeypatch):
    # A folder of this check alone: other tests check beside it.
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    verdict = checked(
        "import glob, tempfile\n"
        "found = glob.glob(tempfile.gettempdir() + '/labkit-grade-*/arguments-*')\n"
        "def ring_all_reduce(x, group):\n"
        "    raise RuntimeError(f'found {len(found)}')\n"
    )
    assert "found 0" in repr(verdict)


def test_arguments_can_be_taken_once_and_only_by_their_rank(tmp_path):
    exchange = Exchange(str(tmp_path))
    for rank in range(2):
        exchange.put_arguments(rank, [(torch.full((2,), rank),)])
    assert exchange.take_arguments(1)[0][0].tolist() == [1, 1]
    assert [path.name for path in tmp_path.iterdir()] == ["arguments-0"]


def test_a_missing_file_says_how_to_restore_it(tmp_path):
    (tmp_path / "exercises").mkdir()
    (tmp_path / "exercises" / "catalog.toml").write_text(WORKSPACE.catalog.read_text())
    with pytest.raises(NothingToGrade, match=r'reset\("ring_all_reduce"\)'):
        check(NAME, workspace=Workspace(tmp_path))
    with pytest.raises(NothingToGrade, match="there is no .*elsewhere.py$"):
        check(NAME, tmp_path / "elsewhere.py", workspace=WORKSPACE)


def test_a_file_that_is_no_text_says_so(tmp_path):
    (tmp_path / "mine.py").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(NothingToGrade, match="cannot be read"):
        check(NAME, tmp_path / "mine.py", workspace=WORKSPACE)


def test_what_is_no_code_at_all_is_a_type_error():
    with pytest.raises(TypeError, match="a function or the path of a file; got a int"):
        check(NAME, 3, workspace=WORKSPACE)


def test_an_unknown_exercise_is_an_error_with_a_suggestion():
    with pytest.raises(UnknownExercise, match="Did you mean 'ring_all_reduce'"):
        check("ring_allreduce", workspace=WORKSPACE)


def test_only_the_learners_own_code_counts_as_progress(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path))
    (tmp_path / "other.py").write_text("def ring_all_reduce(x, group): pass\n")
    check(NAME, tmp_path / "other.py", workspace=WORKSPACE)
    assert progress.events() == []

    def ring_all_reduce(x, group): ...

    check(NAME, ring_all_reduce, workspace=WORKSPACE)
    assert [event.detail["outcome"] for event in progress.events(NAME)] == ["not attempted"]


def test_grading_goes_on_where_progress_cannot_be_kept(tmp_path, monkeypatch):
    (tmp_path / "a-file").write_text("")
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path / "a-file"))

    def ring_all_reduce(x, group): ...

    with pytest.warns(progress.ProgressWarning):
        verdict = check(NAME, ring_all_reduce, workspace=WORKSPACE)
    assert verdict.outcome is Outcome.NOT_ATTEMPTED


def test_every_world_size_gets_the_same_number_of_cases_whatever_the_seed():
    for world_size in range(1, 5):
        counts = {len(random_cases(world_size, random.Random(seed))) for seed in range(20)}
        assert len(counts) == 1, "the verdict of a pass names the number of cases"
