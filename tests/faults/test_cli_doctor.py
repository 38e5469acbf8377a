"""labkit doctor and labkit list in a terminal: what they print, and their exit status."""

import re
import sys
from pathlib import Path

import pytest

from labkit import cli
from labkit.launch import checkup
from labkit.launch.checkup import Finding, Level

FINE = Finding("cores", "4")
WARNED = Finding("memory", "1.0 GB", Level.WARNING, "too little for a notebook", "buy some")
BROKEN = Finding("a run of 2 ranks", "OSError: no [red]room[/]", Level.ERROR, "all need it", "look")


@pytest.fixture
def run_doctor(monkeypatch, capsys):
    def call(findings, columns=80):
        monkeypatch.setattr(checkup, "check_up", lambda: findings)
        monkeypatch.setattr(sys, "argv", ["labkit", "doctor"])
        monkeypatch.setenv("COLUMNS", str(columns))
        with pytest.raises(SystemExit) as end:
            cli.main()
        return end.value.code or 0, capsys.readouterr().out

    return call


def test_a_machine_on_which_all_is_well(run_doctor):
    status, out = run_doctor([FINE])
    assert status == 0
    assert "Everything works here." in out and "What to do" not in out


def test_a_warning_says_what_to_do_and_is_no_failure(run_doctor):
    status, out = run_doctor([FINE, WARNED])
    assert status == 0
    assert "Why it matters: too little for a notebook" in out
    assert "What to do: buy some" in out
    assert "Runs work here, with 1 warning." in out


def test_a_problem_comes_first_and_is_the_exit_status(run_doctor):
    status, out = run_doctor([WARNED, BROKEN])
    assert status == 1
    assert out.index("What to do: look") < out.index("What to do: buy some")
    assert "OSError: no [red]room[/]" in out, "text of an error is no markup"
    assert "Runs do not work here yet: 1 problem to solve first." in out


def test_nothing_is_cut_in_a_narrow_terminal(run_doctor):
    _, out = run_doctor([FINE, WARNED, BROKEN], columns=40)
    assert "…" not in out
    for finding in (FINE, WARNED, BROKEN):
        assert finding.text.replace(" ", "") in "".join(out.split())


def test_the_command_judges_this_machine(run_doctor):
    status, out = run_doctor(checkup.check_up())
    assert status == 0, out
    assert "a run of 2 ranks" in out


@pytest.mark.parametrize("columns", [120, 100, 80, 60, 40])
def test_no_name_in_the_list_is_cut(monkeypatch, capsys, tmp_path, columns):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path))
    monkeypatch.chdir(Path(__file__).parents[2])
    monkeypatch.setattr(sys, "argv", ["labkit", "list"])
    monkeypatch.setenv("COLUMNS", str(columns))
    with pytest.raises(SystemExit):
        cli.main()
    out = capsys.readouterr().out
    assert "ring_all_reduce" in out and "…" not in out
    assert "attempted" in out.replace("not ", ""), "the standing is cut"
    assert max(map(len, out.splitlines())) <= columns
    if columns >= 100:
        assert "01_ranks_and_collectives" in out
    elif columns >= 60:
        assert re.search(r"ring_all_reduce +01 +not attempted", out), "its notebook is missing"
