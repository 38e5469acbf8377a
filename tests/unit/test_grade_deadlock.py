"""find_the_deadlock: the programs shown are those that run, and what a run is said to show."""

import ast
from pathlib import Path

import pytest

from labkit.grade.graders import deadlock_programs
from labkit.grade.graders.deadlock_answers import (
    constant_answer,
    leavers_named,
    wrong_answer,
    wrong_form,
)
from labkit.grade.graders.deadlock_programs import PROGRAMS
from labkit.grade.graders.deadlock_runs import Shown, run_all, run_program
from labkit.grade.workspace import Workspace

WORKSPACE = Workspace(Path(__file__).parents[2])


def functions_in(path):
    tree = ast.parse(Path(path).read_text())
    return {node.name: ast.dump(node) for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_the_programs_that_the_exercise_shows_are_those_that_the_grader_runs():
    shown = functions_in(WORKSPACE.solution("find_the_deadlock"))
    run = functions_in(deadlock_programs.__file__)
    assert {name: shown[name] for name in PROGRAMS} == run


@pytest.mark.parametrize("n", [2, 3, 4])
@pytest.mark.parametrize(
    ("program", "waits"),
    [
        ("shift", lambda n: {rank: f"recv from {(rank - 1) % n}" for rank in range(n)}),
        ("pass_it_on", lambda n: {}),
        ("log_the_loss", lambda n: {0: "all_reduce"}),
        (
            "epoch",
            lambda n: {2: {}, 3: {0: "all_reduce"}}.get(n, {0: "all_reduce", 1: "all_reduce"}),
        ),
        (
            "two_groups",
            lambda n: {
                rank: "barrier" if rank % 2 or rank == n - 1 else "all_reduce" for rank in range(n)
            },
        ),
    ],
)
def test_a_run_shows_who_waits_in_what(program, waits, n):
    assert run_program(program, n).waits == waits(n)


def test_runs_that_nobody_asks_for_any_more_are_not_begun(monkeypatch):
    begun = []
    monkeypatch.setattr(
        "labkit.grade.graders.deadlock_runs.run_program", lambda *job: begun.append(job) or job
    )
    runs = run_all([("shift", n) for n in range(1000)])
    assert next(runs) == ("shift", 0)
    runs.close()
    assert len(begun) < 1000


THREE = Shown("epoch", 3, {0: "all_reduce"}, (frozenset({"all_reduce"}),) * 3)
EVEN = Shown("epoch", 2, {}, (frozenset({"all_reduce"}),) * 2)
RING = Shown("shift", 2, {0: "recv from 1", 1: "recv from 0"}, (frozenset(),) * 2)


@pytest.mark.parametrize(
    ("shown", "answer", "diagnosis", "rank"),
    [
        (EVEN, {1: "all_reduce"}, "sees a deadlock where there is none", 1),
        (THREE, {}, "overlooks a deadlock", 0),
        (THREE, {1: "all_reduce", 2: "all_reduce"}, "names the ranks that have left", 1),
        (THREE, {0: "all_reduce", 2: "all_reduce"}, "names ranks that get through", 2),
        (RING, {0: "recv from 1"}, "overlooks ranks that wait", 1),
        (RING, {0: "recv from 1", 1: "recv from 1"}, "the wrong neighbour", 1),
        (RING, {0: "send to 1", 1: "send to 0"}, "takes a send for a receive", 0),
        (RING, {0: "recv from 1", 1: "barrier"}, "an operation that is never reached", 1),
    ],
)
def test_a_wrong_answer_is_told_by_program_world_size_and_rank(shown, answer, diagnosis, rank):
    finding = wrong_answer(answer, shown)
    assert finding.diagnosis == diagnosis
    start = f"{shown.program} on {shown.world_size} ranks: you say that rank {rank} "
    assert finding.first_seen.startswith(start)
    assert str(shown) in finding.explanation


@pytest.mark.parametrize(
    ("answer", "diagnosis"),
    [
        ([], "returns no dict"),
        ({3: "barrier"}, "names a rank that there is not"),
        ({0: "recv from -1"}, "not in the form asked for"),
    ],
)
def test_a_wrong_form_names_the_call_once(answer, diagnosis):
    finding = wrong_form(answer, 3, "waits_in_shift")
    assert finding.diagnosis == diagnosis and finding.first_seen == ""
    assert finding.explanation.startswith("waits_in_shift(3) ")


def test_the_same_answer_for_every_world_size_is_named_only_where_it_is_right_somewhere():
    assert constant_answer([({}, EVEN), ({}, THREE)]).diagnosis == "an answer for one world size"
    assert constant_answer([({}, THREE), ({}, THREE)]) is None
    assert constant_answer([({}, EVEN), ({0: "all_reduce"}, THREE)]) is None


def test_who_names_those_that_left_is_told_so_also_where_at_a_smaller_size_all_of_them_leave():
    everyone, of_three = {0: "all_reduce", 1: "all_reduce"}, {1: "all_reduce", 2: "all_reduce"}
    finding = leavers_named([(everyone, EVEN), (of_three, THREE)])
    assert finding.diagnosis == "names the ranks that have left"
    assert finding.first_seen.startswith("epoch on 3 ranks: ")
    assert leavers_named([(everyone, EVEN), ({0: "all_reduce", 1: "all_reduce"}, THREE)]) is None
