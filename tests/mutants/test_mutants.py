"""Typical wrong answers, whole programs each: every one gets its own diagnosis and no other.

A mutant's docstring names the outcome and the diagnosis that it must get.
"""

import ast
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from labkit.grade import Outcome, check
from labkit.grade.catalog import load_catalog
from labkit.grade.workspace import Workspace

WORKSPACE = Workspace(Path(__file__).parents[2])
MUTANTS = sorted(Path(__file__).parent.glob("*/*.py"))
# A program that loops is ended by its timeout; nothing is learned from a longer one.
SECONDS = {"hung": 3.5}


def expected(mutant):
    """(outcome, diagnosis) from the docstring; the docstring may be all that parses."""
    text = mutant.read_text(encoding="utf-8")
    return tuple(re.search(rf'^{key}: "(.+)"$', text, re.M)[1] for key in ("outcome", "diagnosis"))


@pytest.fixture(scope="module")
def verdicts(request):
    """Of the mutants that are asked for, two at a time: much of a check is waiting."""
    items = request.session.items  # a cell of a notebook has no module
    asked = [item for item in items if getattr(item, "module", None) is request.module]
    mutants = [item.callspec.params["mutant"] for item in asked if "mutant" in item.fixturenames]
    with ThreadPoolExecutor(2) as pool:
        yield {mutant: pool.submit(verdict_on, mutant) for mutant in mutants}
        pool.shutdown(cancel_futures=True)


def verdict_on(mutant):
    seconds = SECONDS.get(expected(mutant)[0], 20.0)
    return check(mutant.parent.name, mutant, timeout_s=seconds, workspace=WORKSPACE)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_gets_its_own_diagnosis(mutant, verdicts):
    verdict = verdicts[mutant].result()
    assert (verdict.outcome.value, verdict.diagnosis) == expected(mutant), verdict


@pytest.mark.parametrize("name", load_catalog(WORKSPACE))
def test_there_are_at_least_six_mistakes_with_different_diagnoses(name):
    diagnoses = {expected(mutant)[1] for mutant in MUTANTS if mutant.parent.name == name}
    assert len(diagnoses) >= 6


def test_mutants_are_whole_programs_of_an_exercise_with_a_known_outcome():
    for mutant in MUTANTS:
        assert mutant.parent.name in load_catalog(WORKSPACE), mutant
        assert Outcome(expected(mutant)[0]) is not Outcome.PASSED, mutant
        assert ast.get_docstring(ast.parse(mutant.read_text())).startswith("Mutant: "), mutant
