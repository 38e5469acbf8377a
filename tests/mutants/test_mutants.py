"""Typical wrong answers, whole programs each: every one gets its own diagnosis and no other.

A mutant's docstring names the outcome and the diagnosis that it must get.
"""

import ast
import functools
import random
import re
from pathlib import Path

import pytest

from labkit.grade import Outcome, check
from labkit.grade.catalog import load_catalog
from labkit.grade.graders import deadlock_runs, fit_175b, straggler_or_deadlock
from labkit.grade.graders.straggler_cases import run_all
from labkit.grade.workspace import Workspace

WORKSPACE = Workspace(Path(__file__).parents[2])
MUTANTS = sorted(Path(__file__).parent.glob("*/*.py"))
# A program that loops is ended by its timeout; nothing is learned from a longer one.
SECONDS = {"hung": 3.5}
SEED = 20261122


def expected(mutant):
    """(outcome, diagnosis) from the docstring; the docstring may be all that parses."""
    text = mutant.read_text(encoding="utf-8")
    return tuple(re.search(rf'^{key}: "(.+)"$', text, re.M)[1] for key in ("outcome", "diagnosis"))


@pytest.fixture(autouse=True, scope="module")
def _stuck_jobs_are_run_once():
    """Each takes seconds, and mutants of one seed are shown the same ones."""
    with pytest.MonkeyPatch.context() as patch:
        run_once = functools.cache(lambda plans: run_all(list(plans)))
        patch.setattr(straggler_or_deadlock, "run_all", lambda plans: run_once(tuple(plans)))
        patch.setattr(deadlock_runs, "run_program", functools.cache(deadlock_runs.run_program))
        yield


@pytest.fixture(autouse=True, scope="module")
def _fastest_layouts_are_found_once():
    """They are worked out for each task that is drawn, 12 of them in 3 s of computing; mutants of
    one seed are asked for the same ones.
    """
    draw = fit_175b.GRADER.questions
    of_seed = functools.cache(lambda state: draw(generator(state)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fit_175b.GRADER, "questions", lambda rng: list(of_seed(rng.getstate())))
        yield


def generator(state):
    rng = random.Random()
    rng.setstate(state)
    return rng


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_gets_its_own_diagnosis(mutant):
    seconds = SECONDS.get(expected(mutant)[0], 20.0)
    name = mutant.parent.name
    verdict = check(name, mutant, seed=SEED, timeout_s=seconds, workspace=WORKSPACE)
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
