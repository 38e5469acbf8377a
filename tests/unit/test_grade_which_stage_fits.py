"""The grader of which_stage_fits: mistakes are told apart, and looking up is refused."""

import random
from fractions import Fraction
from pathlib import Path

import pytest

from labkit.grade import check
from labkit.grade.graders.fit_ideas import Idea
from labkit.grade.graders.fit_questions import TERMS, Setup, draw, right
from labkit.grade.graders.which_stage_fits import GRADER
from labkit.grade.workspace import Workspace

WORKSPACE = Workspace(Path(__file__).parents[2])
NAME = "which_stage_fits"


def which_stage_fits(setup):
    """In exact fractions of what is left; a list."""
    room = Fraction(setup["memory_gib"]) * 2**30 - Fraction(setup["reserve_gb"]) * 10**9
    shard, rest = divmod(setup["num_params"], setup["dp"])
    shard += 1 if rest else 0
    num = [setup["num_params"]] * 3
    sizes = [setup[f"{kind}_bytes"] for kind in ("optimizer", "gradient", "parameter")]
    names = []
    for level in range(4):
        terms = [n * size for n, size in zip(num, sizes)] + [setup["activation_bytes"]]
        if sum(terms) <= room:
            return [level, names]
        terms.append(setup["reserve_gb"] * 1e9)
        names.append(TERMS[terms.index(max(terms))])
        if level < 3:
            num[level] = shard
    return [None, names]


def judged(answer, seed=0):
    """What comes of answering every question by a function of what is known."""
    questions = draw(random.Random(seed))
    return GRADER.judge(questions, [answer(each.known) for each in questions])


def test_another_right_answer_than_the_solutions_passes():
    verdict = check(NAME, which_stage_fits, workspace=WORKSPACE)
    assert verdict, verdict


@pytest.mark.parametrize("seed", range(12))
def test_each_mistake_is_known_by_its_answers(seed):
    assert judged(right, seed) is None
    assert judged(Idea().answer, seed) is None
    for theory in GRADER.theories[NAME]:
        assert judged(theory.answer, seed).diagnosis == theory.name
    assert judged(lambda setup: (0, []), seed).diagnosis == "another level"
    only_names = judged(lambda setup: (right(setup)[0], []), seed)
    assert only_names.diagnosis == "another term than the largest"


def in_gigabytes(setup):
    """Right, but for the rounding of quotients."""
    level, names = right(setup)
    for i in range(4):
        terms = setup.terms(i).values()
        if sum(each / 1e9 for each in terms) <= setup.memory_bytes / 1e9:
            return i, (names if i == level else [*names, "optimizer"])[:i]
    return None, (names if level is None else [*names, *["optimizer"] * 4][:4])


@pytest.mark.parametrize("seed", range(12))
def test_sums_that_are_rounded_are_told_from_other_mistakes(seed):
    finding = judged(in_gigabytes, seed)
    assert finding is None or finding.diagnosis == "rounds at the last byte", finding
    off_by_far = judged(lambda setup: in_gigabytes(setup) if setup.dp > 4 else (3, []), seed)
    assert off_by_far.diagnosis == "another level"


def test_a_7b_model_on_80_gib():
    setup = Setup(7 * 10**9, 2, 2, 12, 64, 30 * 10**9, 4.0, 80)
    assert right(setup) == (1, ["optimizer"])
    assert right(Setup(7 * 10**9, 2, 2, 12, 8, 50 * 10**9, 4.0, 80)) == (
        2,
        ["optimizer", "activations"],
    )
    assert right(Setup(7 * 10**9, 2, 2, 12, 64, 90 * 10**9, 4.0, 80))[0] is None


@pytest.mark.parametrize("seed", range(12))
def test_every_level_is_right_somewhere_and_many_fit_to_the_byte(seed):
    setups = [each.known for each in draw(random.Random(seed))]
    assert {right(setup)[0] for setup in setups} == {0, 1, 2, 3, None}
    named = {name for setup in setups for name in right(setup)[1]}
    assert named >= {"optimizer", "gradients", "parameters", "activations"}
    exactly = [
        s for s in setups if any(sum(s.terms(z).values()) == s.memory_bytes for z in range(4))
    ]
    a_byte_less = [
        s for s in setups if any(sum(s.terms(z).values()) == s.memory_bytes + 1 for z in range(4))
    ]
    assert len(exactly) > 3 and len(a_byte_less) > 3 and len(exactly + a_byte_less) > 19
    assert [each.known for each in draw(random.Random(seed + 100))] != setups


@pytest.mark.parametrize(
    ("answer", "is_form"),
    [
        ((2, ["optimizer", "gradients"]), True),
        ([None, ("optimizer",) * 4], True),
        ((0, []), True),
        (2, False),
        ((4, []), False),
        ((True, ["optimizer"]), False),
        ((2, "optimizer"), False),
        ((2, ["Optimizer"]), False),
        ((2, [None]), False),
        (("2", []), False),
        (None, False),
    ],
)
def test_the_form_of_an_answer(answer, is_form):
    assert bool(GRADER.wrong_form(NAME, answer)) is not is_form


LOOKING_UP = {
    "labkit.calc": 'labkit.calc.model_state_bytes(1, "fp32")',
    "labkit.grade.graders.fit_ideas as its": "its.Idea().answer(None)",
}


@pytest.mark.parametrize("module", LOOKING_UP)
def test_looking_it_up_is_refused_even_where_the_refusal_is_caught(module, tmp_path):
    solution = WORKSPACE.solution(NAME).read_text()
    first = "    num_params, shard"
    assert first in solution
    attempt = f"    try: {LOOKING_UP[module]}\n    except Exception: pass\n"
    file = tmp_path / "mine.py"
    file.write_text(f"import {module}\n" + solution.replace(first, attempt + first))
    verdict = check(NAME, file, workspace=WORKSPACE)
    assert verdict.diagnosis == "calls the answer itself", verdict


def test_what_was_tried_is_counted():
    assert GRADER.tried(GRADER.questions(random.Random(0))) == "120 setups"
