"""The grader of activation_bytes: mistakes are told apart, and looking up is refused."""

import dataclasses
import random
from fractions import Fraction
from pathlib import Path

import pytest

from labkit.grade import check
from labkit.grade.graders.activation_bytes import GRADER
from labkit.grade.graders.activation_ideas import Idea
from labkit.grade.graders.activation_questions import Layer, draw, right
from labkit.grade.workspace import Workspace

WORKSPACE = Workspace(Path(__file__).parents[2])
NAME = "activation_bytes"


def korthikanti(s, b, h, a, t, sequence_parallel, recompute, flash):
    """The paper's table 2, as a share of s b h; flash added."""
    score = Fraction(5 * a * s, h * t) if recompute == "none" else Fraction(0)
    if flash:
        score = Fraction(4 * a, h * t)
    if recompute == "full":
        share = Fraction(2, t if sequence_parallel else 1)
    elif sequence_parallel:
        share = Fraction(34, t) + score
    else:
        share = 10 + Fraction(24, t) + score
    return int(s * b * h * share)


def judged(answer, seed=0):
    """What comes of answering every question by a function of what is known."""
    questions = draw(random.Random(seed))
    return GRADER.judge(questions, [answer(each.known) for each in questions])


def test_another_right_answer_than_the_solutions_passes():
    verdict = check(NAME, korthikanti, workspace=WORKSPACE)
    assert verdict, verdict


@pytest.mark.parametrize("seed", range(12))
def test_each_mistake_is_known_by_its_answers(seed):
    assert judged(right, seed) is None
    assert judged(Idea().nbytes, seed) is None
    for theory in GRADER.theories[NAME]:
        assert judged(theory.answer, seed).diagnosis == theory.name
    assert judged(lambda layer: 3 * right(layer), seed).diagnosis == "another number of bytes"


def test_what_is_asked_is_the_papers():
    """GPT-3 175B: of a layer's bytes 80 parts are scores, and 34 are not."""
    layer = Layer(2048, 1, 12288, 96, 1, False, "none", False)
    assert right(layer) == 2048 * 12288 * (34 + 80)
    split = dataclasses.replace(layer, t=8)
    assert right(split) == 2048 * 12288 * (10 + 3 + 10)
    assert right(dataclasses.replace(split, sequence_parallel=True)) == right(layer) / 8


@pytest.mark.parametrize("seed", range(12))
def test_every_combination_is_asked_of_layers_that_ranks_divide(seed):
    layers = [each.known for each in draw(random.Random(seed))]
    ways = {(each.recompute, each.flash, each.t > 1, each.sequence_parallel) for each in layers}
    assert len(ways) == 3 * 2 * 3 + 1
    assert all(each.s % each.t == each.h % each.t == each.a % each.t == 0 for each in layers)
    assert [each.known for each in draw(random.Random(seed + 100))] != layers
    assert layers[0].t == 1 and (layers[0].recompute, layers[0].flash) == ("none", False)


@pytest.mark.parametrize(
    ("is_wrong", "where"),
    [
        (lambda layer: layer.flash, "wrong only with flash attention"),
        (lambda layer: layer.recompute == "full", "wrong only with full recomputation"),
        (lambda layer: layer.t > 1, "wrong only with tensor parallelism"),
        (lambda layer: layer.t > 1 or layer.flash, "right on one rank with everything kept"),
        (lambda layer: layer.t == 1, "wrong on one rank with everything kept"),
    ],
)
def test_what_no_theory_explains_says_where_it_goes_wrong(is_wrong, where):
    finding = judged(lambda layer: right(layer) * (1.7 if is_wrong(layer) else 1))
    assert finding.diagnosis == "another number of bytes" and where in finding.explanation


@pytest.mark.parametrize(
    ("answer", "is_form"), [(1, True), (1.5, True), (None, False), ("1", False)]
)
def test_the_form_of_an_answer(answer, is_form):
    assert bool(GRADER.wrong_form(NAME, answer)) is not is_form


LOOKING_UP = {
    "labkit.calc": 'labkit.calc.activation_bytes("gpt2", 1)',
    "labkit.grade.graders.activation_ideas as its": "its.Idea().nbytes(None)",
}


@pytest.mark.parametrize("module", LOOKING_UP)
def test_looking_it_up_is_refused_even_where_the_refusal_is_caught(module, tmp_path):
    solution = WORKSPACE.solution(NAME).read_text()
    first = "    whole = "
    assert first in solution
    attempt = f"    try: {LOOKING_UP[module]}\n    except Exception: pass\n"
    file = tmp_path / "mine.py"
    file.write_text(f"import {module}\n" + solution.replace(first, attempt + first))
    verdict = check(NAME, file, workspace=WORKSPACE)
    assert verdict.diagnosis == "calls the answer itself", verdict


def test_what_was_tried_is_counted():
    assert GRADER.tried(GRADER.questions(random.Random(0))) == "37 layers"
