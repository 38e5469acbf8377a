"""Every exercise, graded by the engine of `labkit check`: your own files, or --target solutions."""

from pathlib import Path

import pytest

from labkit.grade import Outcome, check
from labkit.grade.catalog import load_catalog
from labkit.grade.workspace import Workspace

WORKSPACE = Workspace(Path(__file__).parents[2])


@pytest.mark.parametrize("name", load_catalog(WORKSPACE))
def test_passes(name, request):
    target = request.config.getoption("--target")
    file = WORKSPACE.solution(name) if target == "solutions" else None
    verdict = check(name, file, workspace=WORKSPACE)
    if verdict.outcome is Outcome.NOT_ATTEMPTED and target == "mine":
        pytest.skip("not attempted")
    if not verdict:
        pytest.fail(str(verdict), pytrace=False)
