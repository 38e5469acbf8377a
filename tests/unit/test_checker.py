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

NAME = "model_state_bytes"
ROOT = Path(__file__).parents[2]
PATIENCE_S = 200


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


def wait_until(holds, what):
    deadline_s = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline_s, what
        time.sleep(0.05)


def alive():
    """Process ids; not of the dead that nobody has buried."""
    words = ["ps", "-A", "-o", "pid=,state="]
    lines = subprocess.run(words, capture_output=True, text=True).stdout.splitlines()
    return {int(pid) for pid, state in map(str.split, lines) if state[0] != "Z"}


def hang(checker, workspace):
    """Begin a check that will not end by itself; its rank and its fork server, once they run."""
    said = workspace.root / "processes"
    said.unlink(missing_ok=True)
    workspace.exercise(NAME).write_text(
        f"import os, time\n\ndef {NAME}(*arguments):\n"
        f"    open({str(said)!r}, 'w').write(f'{{os.getpid()}} {{os.getppid()}}\\n')\n"
        "    time.sleep(600)\n"
    )
    checker.begin(NAME, workspace, timeout_s=600)
    wait_until(lambda: said.exists() and said.read_text().endswith("\n"), "its rank")
    return tuple(map(int, said.read_text().split()))


def test_the_answer_is_the_verdict_of_check_and_is_remembered(checker, workspace):
    shutil.copy(workspace.solution(NAME), workspace.exercise(NAME))
    checker.begin(NAME, workspace)
    assert checker.is_busy
    answer = answer_of(checker)
    assert answer.verdict.outcome is Outcome.PASSED and not checker.is_busy
    assert (answer.trouble, answer.warnings) == ("", ())
    assert len(progress.events(NAME, "check")) == 1
    (event,) = progress.events(f"exercise/{NAME}", "answer")
    assert event.detail["rating"] == "good"


def test_a_check_that_is_stopped_leaves_no_rank_and_nothing_to_remember(checker, workspace):
    num_before = len(progress.events(NAME, "check"))
    process, (rank, fork_server) = checker.process_id, hang(checker, workspace)
    with pytest.raises(RuntimeError):  # a second check waits for the end of the first
        checker.begin(NAME, workspace)
    checker.stop()
    answer = answer_of(checker)
    assert (answer.verdict, answer.trouble) == (None, "")
    wait_until(lambda: rank not in alive(), "the end of its rank")
    assert {process, fork_server} <= alive() and checker.process_id == process
    assert len(progress.events(NAME, "check")) == num_before


def test_one_that_is_stopped_as_it_begins_ends_too(checker, workspace):
    for _ in range(5):
        checker.begin(NAME, workspace, timeout_s=600)
        checker.stop()
        assert answer_of(checker).verdict is None


def test_a_missing_file_is_reported_with_the_command_that_restores_it(checker, workspace):
    workspace.exercise(NAME).unlink()
    checker.begin(NAME, workspace)
    answer = answer_of(checker)
    assert answer.verdict is None and f"labkit reset {NAME}" in answer.trouble


def test_a_killed_process_is_reported_once_and_replaced_by_the_next_check(checker, workspace):
    shutil.copy(workspace.solution(NAME), workspace.exercise(NAME))
    first = checker.process_id
    os.kill(first, signal.SIGKILL)  # while it has nothing to do
    wait_until(lambda: checker.handles[0].poll(), "its end")
    checker.begin(NAME, workspace)
    os.kill(checker.process_id, signal.SIGKILL)  # while it checks
    assert "SIGKILL" in answer_of(checker).trouble
    assert checker.handles == [] and checker.take() is None
    second = checker.process_id
    checker.begin(NAME, workspace)
    assert len({first, second, checker.process_id}) == 3


def test_closing_ends_a_check_with_all_its_processes(checker, workspace):
    checker.stop()
    answer_of(checker)
    everything = {*hang(checker, workspace), checker.process_id}
    checker.close()
    wait_until(lambda: not everything & alive(), "the end of the fork server")
