"""Verdicts number the calls that a learner's function makes, and no others."""

from pathlib import Path

import pytest

from labkit.comm.operation import Region, Timeline
from labkit.grade import check
from labkit.grade.harness import REGION
from labkit.grade.own_numbers import counted
from labkit.grade.workspace import Workspace
from tests.an_operation import an_operation

WORKSPACE = Workspace(Path(__file__).parents[2])
NAME = "fix_the_mismatch"


def numbers(*operations, starts_s=(0.5, 10.5)):
    """Of operations that were posted at the seconds by which they are numbered."""
    regions = [Region(f"{REGION}{case}", start_s, None) for case, start_s in enumerate(starts_s)]
    timeline = counted(Timeline(list(operations), regions))
    return [operation.sequence for operation in timeline.operations]


def test_each_case_begins_at_1():
    assert numbers(*(an_operation(sequence=second) for second in (2, 3, 11, 12))) == [1, 2, 1, 2]


def test_each_group_and_each_peer_has_numbers_of_its_own():
    of_others = (
        {"group_name": "world.1.0"},
        {"kind": "send", "peer": 1},
        {"kind": "recv", "peer": 1},
    )
    operations = [an_operation(sequence=2, **other) for other in ({}, *of_others)]
    assert numbers(*operations, an_operation("barrier", 3)) == [1, 1, 1, 1, 2]


def test_groups_that_a_grader_makes_are_not_counted():
    split, first = an_operation("split", 2), an_operation(sequence=3)
    assert numbers(split, first) == [2, 1]


REDUCES = "group.all_reduce(shift, op='mean' if group.rank else 'sum')"
THIRD_CALL = (
    "train_step.calls = getattr(train_step, 'calls', 0) + 1\n    if train_step.calls == 3: "
)


@pytest.mark.parametrize(
    ("added", "said"),
    [
        (REDUCES, "in all_reduce #1, "),
        (f"group.all_reduce(shift); {REDUCES}", "in all_reduce #2, "),
        (THIRD_CALL + REDUCES, "in all_reduce #1, "),
        ("if group.rank == 0: group.barrier()", "rank 0 calls barrier #1 "),
    ],
)
def test_a_verdict_counts_from_the_beginning_of_the_function(tmp_path, added, said):
    file, solution = tmp_path / "mine.py", WORKSPACE.solution(NAME).read_text()
    file.write_text(
        solution.replace("    error = x * scale", f"    {added}\n    error = x * scale", 1)
    )
    verdict = check(NAME, file, workspace=WORKSPACE, seed=1)
    assert said in verdict.finding.explanation, verdict
