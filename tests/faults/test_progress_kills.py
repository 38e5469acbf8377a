"""Killed while it writes: no acknowledged answer is lost, and nothing is half done.

Two children at a time answer in a loop, on one store, and report each answer through a pipe after
the store has returned. Both are killed (SIGKILL) at random moments, fifty times over.
"""

import json
import sqlite3
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from labkit.progress import events, home, practice, scheduling

NUM_ROUNDS = 50
KILLER = Path(__file__).parents[1] / "progress_killer.py"


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """The numbers of the answers that each child acknowledged, and how often a log was left."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LABKIT_HOME", str(tmp_path_factory.mktemp("killed")))
        command = [sys.executable, str(KILLER), str(NUM_ROUNDS)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr
        seen = json.loads(done.stdout)
        yield seen["acknowledged"], seen["num_logs_left"]


def test_the_kills_came_in_the_middle_of_writing(killed):
    acknowledged, num_logs_left = killed
    assert len(acknowledged) == 2 * NUM_ROUNDS
    assert sum(map(len, acknowledged.values())) > NUM_ROUNDS
    assert num_logs_left > NUM_ROUNDS / 4
    stored = Counter(event.detail["learner"] for event in events(kind="answer"))
    # Some died after the commit and before they could report it.
    assert any(stored[name] > len(numbers) for name, numbers in acknowledged.items())


def test_every_acknowledged_answer_is_there_once(killed):
    acknowledged, _ = killed
    stored = {name: [] for name in acknowledged}
    for event in events(kind="answer"):
        stored[event.detail["learner"]].append(event.detail["number"])
    for name, numbers in acknowledged.items():
        assert stored[name][: len(numbers)] == numbers, name
        assert len(stored[name]) - len(numbers) in (0, 1), name


def test_states_are_those_that_the_events_give(killed):
    stored = practice.all_states()
    assert len(stored) > NUM_ROUNDS
    assert stored == scheduling.rebuilt(events())


def test_the_store_is_sound(killed):
    opened = sqlite3.connect(home() / "progress.sqlite3")
    try:
        assert opened.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    finally:
        opened.close()
    assert not list(home().glob("*corrupt*"))
