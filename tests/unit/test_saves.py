"""Saves: what editors do when they save is seen once, and nothing else is."""

import os
import threading
import time
from multiprocessing import connection

import pytest

from labkit.grade.saves import Saves

PATIENCE_S = 30


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "exercises"
    folder.mkdir()
    (folder / "scan.py").write_text("x = 1\n")
    return folder


def next_save(saves, timeout_s=PATIENCE_S):
    return saves.take() if connection.wait([saves.handle], timeout_s) else set()


def test_a_file_that_is_written_is_a_save(folder):
    with Saves(folder) as saves:
        (folder / "scan.py").write_text("x = 2\n")
        assert next_save(saves) == {"scan.py"}


def test_a_file_that_is_renamed_into_place_is_a_save(folder):
    with Saves(folder) as saves:
        (folder / "scan.py.tmp").write_text("x = 2\n")
        os.replace(folder / "scan.py.tmp", folder / "scan.py")
        assert next_save(saves) == {"scan.py"}


def test_several_at_once_are_one_save(folder):
    with Saves(folder) as saves:
        for number in range(20):
            (folder / "scan.py").write_text(f"x = {number}\n")
        assert next_save(saves) == {"scan.py"}
        assert next_save(saves, 1) == set()


def test_a_save_at_the_first_moment_is_seen(folder):
    for number in range(10):
        with Saves(folder) as saves:
            (folder / "scan.py").write_text(f"x = {number}\n")
            assert next_save(saves) == {"scan.py"}


def test_other_files_and_folders_in_it_are_none(folder):
    (folder / "backups").mkdir()
    with Saves(folder) as saves:
        (folder / "backups" / "scan.py").write_text("old\n")
        (folder / "notes.txt").write_text("mine\n")
        assert next_save(saves, 1) == set()
        (folder / "scan.py").write_text("x = 2\n")
        assert next_save(saves) == {"scan.py"}


def test_a_folder_may_be_a_link(folder, tmp_path):
    (tmp_path / "link").symlink_to(folder)
    with Saves(tmp_path / "link") as saves:
        (folder / "scan.py").write_text("x = 2\n")
        assert next_save(saves) == {"scan.py"}


def test_it_leaves_no_thread_and_no_open_file(folder):
    def num_files():
        return len(os.listdir("/dev/fd"))

    before, threads_before = num_files(), threading.active_count()
    for _ in range(5):
        with Saves(folder):
            (folder / "scan.py").write_text("x = 2\n")
    assert threading.active_count() == threads_before
    # The library's own thread ends a moment after it was told to, and closes its file then.
    end = time.monotonic() + PATIENCE_S
    while num_files() > before and time.monotonic() < end:
        time.sleep(0.02)
    assert num_files() <= before
