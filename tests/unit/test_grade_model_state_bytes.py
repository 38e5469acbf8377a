"""The grader of model_state_bytes: mistakes are told apart, and looking up is refused."""

import random
from pathlib import Path

import pytest

from labkit import calc
from labkit.grade import check
from labkit.grade.graders.model_state_bytes import GRADER
from labkit.grade.graders.state_questions import Asked, draw, right
from labkit.grade.workspace import Workspace

WORKSPACE = Workspace(Path(__file__).parents[2])
NAME = "model_state_bytes"


def by_rank(num_params, recipe, zero, dp):
    """What the first rank holds, where the first ranks have one more; as a float."""
    base, rest = divmod(num_params, dp)
    first = base + (rest > 0)
    kinds = [
        recipe["master_bytes"] + sum(recipe["moment_bytes"]),
        recipe["gradient_bytes"],
        recipe["parameter_bytes"],
    ]
    return float(
        sum(size * (first if level < zero else num_params) for level, size in enumerate(kinds))
    )


def judged(answer, seed=0):
    """What comes of answering every question by a function of what is known."""
    questions = draw(random.Random(seed))
    return GRADER.judge(questions, [answer(each.known) for each in questions])


def test_another_right_answer_than_the_solutions_passes():
    verdict = check(NAME, by_rank, workspace=WORKSPACE)
    assert verdict, verdict


@pytest.mark.parametrize("seed", range(12))
def test_each_mistake_is_known_by_its_answers(seed):
    assert judged(right, seed) is None
    for theory in GRADER.theories[NAME]:
        assert judged(theory.answer, seed).diagnosis == theory.name
    assert judged(lambda asked: 3 * right(asked), seed).diagnosis == "another number of bytes"


def test_one_parameter_is_noticed_among_billions():
    asked = Asked(10**11 + 1, calc.RECIPES["zero_paper"], 3, 8)
    assert right(asked) == 16 * (10**11 // 8 + 1)
    off = judged(lambda each: right(each) - (each == draw(random.Random(0))[9].known))
    assert off.first_seen.startswith("model_state_bytes, ")


@pytest.mark.parametrize(
    ("zero", "gigabytes"), [(0, 120), (1, 31.40625), (2, 16.640625), (3, 1.875)]
)
def test_what_is_asked_is_the_papers(zero, gigabytes):
    """Figure 1: 7.5B parameters on 64 ranks."""
    asked = Asked(7_500_000_000, calc.RECIPES["zero_paper"], zero, 64)
    assert right(asked) == by_rank(*asked.arguments) == gigabytes * 1e9


@pytest.mark.parametrize("seed", range(12))
def test_every_level_is_asked_and_ranks_that_do_not_divide(seed):
    asked = [each.known for each in draw(random.Random(seed))]
    for zero in range(4):
        of_level = [each for each in asked if each.zero == zero]
        assert {each.num_params % each.dp == 0 for each in of_level} == {True, False}
        assert min(each.dp for each in of_level) == 1
        assert any(each.dp > each.num_params for each in of_level)
    assert [each.known for each in draw(random.Random(seed + 100))] != asked


@pytest.mark.parametrize(
    ("answer", "is_form"), [(1, True), (1.5, True), (None, False), ("1", False)]
)
def test_the_form_of_an_answer(answer, is_form):
    assert bool(GRADER.wrong_form(NAME, answer)) is not is_form


def test_what_no_theory_explains_says_where_it_goes_wrong():
    only_3 = judged(lambda asked: right(asked) + (asked.zero == 3 and asked.dp > 1))
    assert "on one rank all is right; on several it is wrong at zero 3" in only_3.explanation
    everywhere = judged(lambda asked: right(asked) + 7)
    assert "wrong at zero 0 and 1 and 2 and 3, on one rank as well" in everywhere.explanation


LOOKING_UP = {
    "labkit.calc": 'labkit.calc.model_state_bytes(1, "fp32")',
    "labkit.grade.graders.state_theories as its": "its._up(3, 2)",
}


@pytest.mark.parametrize("module", LOOKING_UP)
def test_looking_it_up_is_refused_even_where_the_refusal_is_caught(module, tmp_path):
    solution = WORKSPACE.solution(NAME).read_text()
    first = "    shard = "
    assert first in solution
    attempt = f"    try: {LOOKING_UP[module]}\n    except Exception: pass\n"
    file = tmp_path / "mine.py"
    file.write_text(f"import {module}\n" + solution.replace(first, attempt + first))
    verdict = check(NAME, file, workspace=WORKSPACE)
    assert verdict.diagnosis == "calls the answer itself", verdict


def test_what_was_tried_is_counted():
    assert GRADER.tried(GRADER.questions(random.Random(0))) == "44 questions about 11 models"
