"""Checker: checks in a process of their own, which are stopped in the middle and leave nothing."""

import os
import shutil
import signal
import subprocess
import time
from multiprocessing import connection
from pathlib import Path

import pytest

from labkit import progress
from labkit.grade.checker import Checker
from labkit.grade.outcome import Outcome
from labkit.grade.workspace import Workspace

NAME = "ring_all_reduce"
ROOT = Path(__file__).parents[2]
HANGS = "import time\n\ndef ring_all_reduce(x, group):\n    time.sleep(600)\n"
PATIENCE_S = 120


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    clone = Workspace(tmp_path_factory.mktemp("clone"))
    for folder in ("exercises", "solutions"):
        shutil.copytree(ROOT / folder, clone.root / folder)
    return clone


@pytest.fixture(scope="module")
def checker(tmp_path_factory):
    """One for all tests: each may leave it idle, or with no process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LABKIT_HOME", str(tmp_path_factory.mktemp("home")))
        with Checker() as checker:
            yield checker


def answer_of(checker):
    deadline_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s:
        connection.wait(checker.handles, 0.2)
        if (answer := checker.take()) is not None:
            return answer
    raise AssertionError("no answer")


def below(pid):
    """Process ids of all that a process, and what it has started, has started."""
    listing = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True)
    pairs = [tuple(map(int, line.split())) for line in listing.stdout.splitlines()]
    found, unseen = set(), {pid}
    while unseen:
        unseen = {child for child, parent in pairs if parent in unseen}
        found |= unseen
    return found


def wait_until(holds, what):
    deadline_s = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline_s, what
        time.sleep(0.05)


def hang(checker, workspace):
    """Begin a check that will not end by itself; the processes of it once its ranks are there."""
    workspace.exercise(NAME).write_text(HANGS)
    before = below(checker.process_id)
    checker.begin(NAME, workspace, timeout_s=600)
    wait_until(lambda: len(below(checker.process_id) - before) >= 3, "its three ranks")
    return below(checker.process_id) - before


def test_the_answer_is_the_verdict_of_check_and_is_remembered(checker, workspace):
    shutil.copy(workspace.solution(NAME), workspace.exercise(NAME))
    num_before = len(progress.events(NAME, "check"))
    checker.begin(NAME, workspace)
    assert checker.is_busy
    answer = answer_of(checker)
    assert answer.verdict.outcome is Outcome.PASSED and not checker.is_busy
    assert (answer.trouble, answer.warnings) == ("", ())
    assert len(progress.events(NAME, "check")) == num_before + 1


def test_a_second_check_waits_for_the_end_of_the_first(checker, workspace):
    hang(checker, workspace)
    with pytest.raises(RuntimeError, match="a check runs already"):
        checker.begin(NAME, workspace)
    checker.stop()
    answer_of(checker)


def test_a_check_that_is_stopped_leaves_no_rank_and_nothing_to_remember(checker, workspace):
    num_before = len(progress.events(NAME, "check"))
    process, ranks = checker.process_id, hang(checker, workspace)
    checker.stop()
    answer = answer_of(checker)
    assert (answer.verdict, answer.trouble) == (None, "")
    wait_until(lambda: not ranks & below(process), "the end of its ranks")
    assert len(progress.events(NAME, "check")) == num_before
    assert checker.process_id == process


def test_one_that_is_stopped_as_it_begins_ends_too(checker, workspace):
    workspace.exercise(NAME).write_text(HANGS)
    for _ in range(5):
        checker.begin(NAME, workspace, timeout_s=600)
        checker.stop()
        assert answer_of(checker).verdict is None


def test_a_file_that_is_missing_is_told_as_the_command_does(checker, workspace):
    workspace.exercise(NAME).unlink()
    checker.begin(NAME, workspace)
    answer = answer_of(checker)
    assert answer.verdict is None and f"labkit reset {NAME}" in answer.trouble


def test_a_process_that_dies_is_told_once_and_the_next_check_has_another(checker, workspace):
    hang(checker, workspace)
    os.kill(checker.process_id, signal.SIGKILL)
    assert "has ended by SIGKILL" in answer_of(checker).trouble
    assert checker.handles == [] and checker.take() is None
    shutil.copy(workspace.solution(NAME), workspace.exercise(NAME))
    checker.begin(NAME, workspace)
    assert answer_of(checker).verdict
    os.kill(checker.process_id, signal.SIGKILL)  # while it has nothing to do
    wait_until(lambda: checker.handles[0].poll(), "its end")
    checker.begin(NAME, workspace)
    assert answer_of(checker).verdict


def test_closing_ends_a_check_with_all_its_processes(workspace):
    with Checker() as checker:
        hang(checker, workspace)
        everything = {checker.process_id} | below(checker.process_id)
    assert checker.process_id not in alive()
    wait_until(lambda: not everything & alive(), "the end of the fork server")


def alive():
    listing = subprocess.run(["ps", "-A", "-o", "pid="], capture_output=True, text=True)
    return set(map(int, listing.stdout.split()))
