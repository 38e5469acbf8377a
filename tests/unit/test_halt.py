"""The kernel's state of a process, in words."""

import os

import pytest

from labkit.doctor.halt import Halt, cure, halt_of


def says(folder, stat, status=""):
    (folder / "71").mkdir()
    (folder / "71" / "stat").write_text(stat)
    (folder / "71" / "status").write_text(status)
    return halt_of(71, folder)


def test_a_stopped_process_is_let_go_on_by_a_signal(tmp_path):
    halt = says(tmp_path, "71 (python) T 1 71 71 0")
    assert "SIGSTOP" in halt.description and "`kill -CONT 71`" in cure([halt])


def test_a_name_with_brackets_is_not_taken_for_a_state(tmp_path):
    assert says(tmp_path, "71 (a) T (b)) S 1 71 71 0") is None


def test_a_debugger_is_named_and_no_signal_helps(tmp_path):
    halt = says(tmp_path, "71 (python) t 1 71 71 0", "Name:\tpython\nTracerPid:\t85\n")
    assert "debugger (process 85)" in halt.description and halt.is_stop
    assert cure([halt]) == ""


def test_uninterruptible_sleep_is_no_stop(tmp_path):
    halt = says(tmp_path, "71 (python) D 1 71 71 0")
    assert "uninterruptible" in halt.description and not halt.is_stop
    assert cure([halt]) == ""


@pytest.mark.parametrize("stat", ["71 (python) R 1", "71 (python) Z 1", "", "71"])
def test_whatever_else_it_does_is_no_halt(tmp_path, stat):
    assert says(tmp_path, stat) is None


def test_of_a_process_that_is_gone_nothing_is_known(tmp_path):
    assert halt_of(71, tmp_path) is None
    assert halt_of(None, tmp_path) is None


def test_we_run():
    assert halt_of(os.getpid()) is None


def test_several_are_let_go_on_at_once():
    halts = [Halt("is stopped", continued_by=71), Halt("is held"), Halt("", continued_by=72)]
    assert "`kill -CONT 71 72`" in cure(halts)
