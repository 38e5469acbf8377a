"""Stubs: cut from solutions, recognised as not attempted, and never drifting from them."""

import ast
import os
import subprocess
from pathlib import Path

import pytest

from labkit.grade.catalog import load_catalog
from labkit.grade.grader import functions_of
from labkit.grade.stubs import PLACEHOLDER, StubError, cut_stub, is_unattempted, stub_of
from labkit.grade.workspace import Workspace

WORKSPACE = Workspace(Path(__file__).parents[2])
SOLUTION = '''\
def scan(x, group):
    """The sum so far."""
    ### BEGIN SOLUTION
    total = x.clone()
    return total
    ### END SOLUTION
'''


def test_the_answer_is_replaced_by_a_refusal_at_the_same_depth():
    stub = cut_stub(SOLUTION)
    assert stub == f'def scan(x, group):\n    """The sum so far."""\n    {PLACEHOLDER}\n'


def test_a_program_to_repair_takes_the_place_of_the_answer():
    instead = "    ### INSTEAD\n    # total = x  # no copy\n    #\n    # return total\n    ### END"
    stub = cut_stub(SOLUTION.replace("    ### END", instead))
    assert stub == (
        'def scan(x, group):\n    """The sum so far."""\n'
        "    total = x  # no copy\n\n    return total\n"
    )


def test_a_program_to_repair_is_not_attempted_as_long_as_only_comments_change():
    stub = "def scan(x, group):\n    return x  # why?\n"
    assert is_unattempted('def scan(x, group):\n    """Mine."""\n    return x\n', "scan", stub)
    assert not is_unattempted("def scan(x, group):\n    return x + 0\n", "scan", stub)


def test_every_pair_of_markers_is_cut():
    stub = cut_stub(SOLUTION + SOLUTION.replace("scan", "rescan"))
    assert stub.count(PLACEHOLDER) == 2 and "SOLUTION" not in stub


@pytest.mark.parametrize(
    "broken",
    [
        "def scan(): ...\n",
        SOLUTION.replace("    ### END SOLUTION\n", ""),
        SOLUTION.replace("    ### BEGIN SOLUTION\n", ""),
        SOLUTION.replace("BEGIN", "END"),
        SOLUTION.replace("    ### END", "    ### BEGIN SOLUTION\n    ### END"),
        SOLUTION.replace("    ### BEGIN", "    ### INSTEAD\n    ### BEGIN"),
    ],
)
def test_markers_that_do_not_pair_up_are_an_error(broken):
    with pytest.raises(StubError, match="SOLUTION|INSTEAD"):
        cut_stub(broken, "solutions/scan.py")


@pytest.mark.parametrize(
    "source",
    [
        "def scan(x, group):\n    return x\n",
        "def scan(x, group):\n    raise ValueError\n",
        "def other(x):\n    pass\n",
        "def scan(x, group)\n    pass\n",
        "scan = len\n",
    ],
)
def test_anything_else_is_an_attempt(source):
    assert not is_unattempted(source, "scan", cut_stub(SOLUTION))


@pytest.mark.parametrize("name", load_catalog())
def test_every_stub_is_valid_python_and_not_attempted(name):
    stub = stub_of(name, WORKSPACE)
    assert ast.get_docstring(ast.parse(stub)), "a stub begins with the question and the contract"
    for function in functions_of(name):
        assert is_unattempted(stub, function, stub)
        assert not is_unattempted(WORKSPACE.solution(name).read_text(), function, stub)


@pytest.mark.parametrize("name", load_catalog())
def test_what_git_holds_is_what_would_be_cut(name):
    # Git's copy: what a learner wrote into the file meanwhile is no drift.
    file = f"exercises/{name}.py"
    show = ["git", "-C", str(WORKSPACE.root), "show", f":{file}"]
    try:
        english = os.environ | {"LC_ALL": "C"}
        held = subprocess.run(show, capture_output=True, text=True, env=english)
    except FileNotFoundError:
        pytest.skip("git is not installed")
    if "not a git repository" in held.stderr:
        pytest.skip("not a clone")
    assert held.returncode == 0, held.stderr
    assert held.stdout == stub_of(name, WORKSPACE), (
        f"{file} is not the stub of its solution: run `python -m labkit.grade.stubs {name}`"
    )
