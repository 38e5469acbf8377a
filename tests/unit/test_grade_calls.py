"""check: functions of every kind, and options that no launch could take."""

import functools
import threading
from pathlib import Path

import pytest
import torch

from labkit.grade import check
from labkit.grade.workspace import Workspace

WORKSPACE = Workspace(Path(__file__).parents[2])
NAME = "ring_all_reduce"
SOLUTION = WORKSPACE.solution(NAME)


@pytest.mark.parametrize(
    ("program", "diagnosis"),
    [
        (torch.add, "raises TypeError"),
        ((lambda lock: lambda x, group: lock)(threading.Lock()), "cannot be sent to the ranks"),
        (functools.partial(lambda x, group: None), "returns nothing"),
    ],
    ids=["written in C", "holds a lock", "a partial"],
)
def test_functions_of_every_kind_get_a_verdict_and_no_traceback_of_ours(program, diagnosis):
    verdict = check(NAME, program, workspace=WORKSPACE)
    assert verdict.diagnosis == diagnosis, verdict
    assert "inspect.py" not in repr(verdict) and "attempt_cases" not in verdict.finding.explanation


def test_a_lambda_is_not_named_in_the_call_that_repeats_its_check():
    verdict = check(NAME, lambda x, group: x, workspace=WORKSPACE, seed=1)
    assert verdict.call == 'check("ring_all_reduce", ..., seed=1)'


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"timeout_s": float("inf")}, ValueError),
        ({"timeout_s": float("nan")}, ValueError),
        ({"timeout_s": 0}, ValueError),
        ({"timeout_s": "10"}, TypeError),
        ({"seed": 1.5}, TypeError),
        ({"seed": "1"}, TypeError),
    ],
)
def test_another_timeout_or_seed_is_refused_and_not_blamed_on_the_code(options, error):
    with pytest.raises(error, match=f"{next(iter(options))}="):
        check(NAME, SOLUTION, workspace=WORKSPACE, **options)
