"""The grader of bytes_per_parameter: mistakes are told apart, and looking up is refused."""

import dataclasses
import inspect
import random
from pathlib import Path

import pytest

from labkit import calc
from labkit.grade import check
from labkit.grade.graders.bytes_per_parameter import GRADER
from labkit.grade.graders.recipe_questions import Kept, draw
from labkit.grade.workspace import Workspace

WORKSPACE = Workspace(Path(__file__).parents[2])
NAME = "bytes_per_parameter"


def bytes_per_parameter(recipe):
    """By torch's own sizes; a float."""
    import torch

    dtypes = [recipe["parameters"], recipe["gradients"], recipe["master"], *recipe["moments"]]
    return sum(getattr(torch, dtype).itemsize for dtype in dtypes if dtype) * 1.0


def sharded_from(recipe):
    """From the top down."""
    rest = {**recipe, "casts": "float32"}
    whole = bytes_per_parameter(rest)
    no_optimizer = bytes_per_parameter({**rest, "master": None, "moments": []})
    parameters = no_optimizer / 2 if rest["gradients"] == rest["parameters"] else None
    if parameters is None:
        both = {**rest, "master": None, "moments": [], "gradients": rest["parameters"]}
        parameters = bytes_per_parameter(both) / 2
    return {3: parameters, 2: no_optimizer - parameters, 1: whole - no_optimizer}


RIGHT = [bytes_per_parameter, sharded_from]


def judged(function, answer, seed=0):
    """What comes of answering every question by a function of what is known."""
    asked = [each for each in draw(random.Random(seed)) if each.function == function]
    return GRADER.judge(asked, [answer(each.known) for each in asked])


def test_another_right_answer_than_the_solutions_passes():
    verdict = check(NAME, RIGHT, workspace=WORKSPACE)
    assert verdict, verdict


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("function", GRADER.functions)
def test_each_mistake_is_known_by_its_answers(function, seed):
    assert judged(function, GRADER.rights[function], seed) is None
    for theory in GRADER.theories[function]:
        assert judged(function, theory.answer, seed).diagnosis == theory.name
    strange = judged(function, lambda kept: _tripled(GRADER.rights[function](kept)), seed)
    assert strange.diagnosis.startswith("another ")


def _tripled(answer):
    if isinstance(answer, dict):
        return {key: 3 * value for key, value in answer.items()}
    return 3 * answer


def test_the_famous_recipes_are_those_of_the_calculator():
    named = {each.known.name: each.known for each in draw(random.Random(0))}
    for name, of_calc in {
        "ZeRO's paper, with Adam": "zero_paper",
        "Megatron-LM, with Adam": "megatron_bf16",
        "float32 and Adam": "fp32",
        "autocast and Adam": "amp",
        "16 bits throughout": "pure_bf16",
        "plain SGD": "sgd_plain",
    }.items():
        assert dataclasses.replace(named[name].recipe, name=of_calc) == calc.RECIPES[of_calc]


def test_a_7b_model_is_84_or_112_gigabytes():
    sums = []
    for master in (None, "float32"):
        kept = Kept("7B", "float16", "float16", master, ("float32", "float32"))
        sums.append(7 * GRADER.rights[NAME](kept))
    assert sums == [84, 112]


@pytest.mark.parametrize("seed", range(12))
def test_recipes_are_drawn_anew_and_have_what_is_easily_forgotten(seed):
    kept = [each.known for each in draw(random.Random(seed))]
    assert kept != [each.known for each in draw(random.Random(seed + 100))]
    assert {len(each.moments) for each in kept} >= {0, 1, 2}
    assert {each.master is None for each in kept} == {True, False}
    assert any(each.casts for each in kept)
    assert any(each.gradients != each.parameters for each in kept)


@pytest.mark.parametrize(
    ("function", "answer", "is_form"),
    [
        ("bytes_per_parameter", 16, True),
        ("bytes_per_parameter", 16.0, True),
        ("bytes_per_parameter", "16", False),
        ("bytes_per_parameter", True, False),
        ("bytes_per_parameter", None, False),
        ("sharded_from", {1: 12, 2: 2, 3: 2}, True),
        ("sharded_from", {1: 12, 2: 2}, False),
        ("sharded_from", {"1": 12, "2": 2, "3": 2}, False),
        ("sharded_from", {1: 12, 2: 2, 3: None}, False),
        ("sharded_from", [12, 2, 2], False),
    ],
)
def test_the_form_of_an_answer(function, answer, is_form):
    assert bool(GRADER.wrong_form(function, answer)) is not is_form


LOOKING_UP = {
    "labkit.calc": 'labkit.calc.model_state_bytes(1, "fp32")',
    "labkit.grade.graders.recipe_questions as its": 'its.itemsize("float32")',
}


@pytest.mark.parametrize("module", LOOKING_UP)
def test_looking_it_up_is_refused_even_where_the_refusal_is_caught(module, tmp_path):
    solution = WORKSPACE.solution(NAME).read_text()
    first = "    return sum(sharded_from"
    assert first in solution
    attempt = f"    try: {LOOKING_UP[module]}\n    except Exception: pass\n"
    file = tmp_path / "mine.py"
    file.write_text(f"import {module}\n" + solution.replace(first, attempt + first))
    verdict = check(NAME, file, workspace=WORKSPACE)
    assert verdict.diagnosis == "calls the answer itself", verdict


def test_what_is_written_is_graded_before_the_rest_is(tmp_path):
    file = tmp_path / "mine.py"
    unwritten = "def sharded_from(recipe):\n    raise NotImplementedError\n"
    file.write_text(inspect.getsource(bytes_per_parameter) + unwritten)
    verdict = check(NAME, file, workspace=WORKSPACE)
    assert verdict.diagnosis == "a part is still to be written", verdict
    file.write_text("def bytes_per_parameter(recipe):\n    return 16\n" + unwritten)
    verdict = check(NAME, file, workspace=WORKSPACE)
    assert verdict.diagnosis == "one number for every recipe", verdict


def test_what_was_tried_is_counted():
    assert GRADER.tried(GRADER.questions(random.Random(0))) == "20 recipes"
