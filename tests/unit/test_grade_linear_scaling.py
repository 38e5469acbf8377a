"""The grader of linear_scaling: mistakes are told apart, and looking up is refused."""

import math
import random
from fractions import Fraction
from pathlib import Path

import pytest

from labkit.grade import check
from labkit.grade.graders.linear_scaling import GRADER, wrong_form, wrong_numbers
from labkit.grade.graders.scaling_questions import Setup, draw, steps_for
from labkit.grade.graders.scaling_rates import RATES
from labkit.grade.graders.scaling_steps import BATCHES, EPOCHS, TOTALS
from labkit.grade.workspace import Workspace

WORKSPACE = Workspace(Path(__file__).parents[2])
NAME = "linear_scaling"
THEORIES = {
    "global_batch": BATCHES,
    "learning_rate": RATES,
    "steps_per_epoch": EPOCHS,
    "total_steps": TOTALS,
}


def global_batch(setup):
    return math.prod(setup[name] for name in ("num_accumulated", "num_ranks", "per_rank"))


def learning_rate(step, setup):
    """A mean of the two ends, in exact fractions."""
    end = Fraction(setup["base_rate"]) / setup["base_batch"] * global_batch(setup)
    left = max(0, setup["warmup_steps"] - step)
    share = Fraction(left, max(1, setup["warmup_steps"]))
    return float(share * Fraction(setup["start"]) + (1 - share) * end)


def steps_per_epoch(num_samples, setup):
    return math.ceil(num_samples / global_batch(setup))


def total_steps(base_steps, setup):
    steps, rest = divmod(base_steps * setup["base_batch"], global_batch(setup))
    return steps + (1 if rest else 0)


RIGHT = [global_batch, learning_rate, steps_per_epoch, total_steps]


def test_another_right_answer_than_the_solutions_passes():
    verdict = check(NAME, RIGHT, workspace=WORKSPACE)
    assert verdict, verdict


def test_what_is_asked_is_the_papers():
    """ResNet-50 on 256 GPUs, 32 images each: 0.1 for 256 becomes 3.2 for 8,192."""
    setup = Setup(0.1, 256, 32, 256, 1, 780, 0.1)
    assert setup.batch == 8192
    assert steps_for(1_281_167, setup.batch) == 157, "5 epochs of warmup are some 780 steps"
    rates = {step: learning_rate(step, setup.as_dict) for step in (0, 390, 780, 10_000)}
    assert rates == pytest.approx({0: 0.1, 390: 1.65, 780: 3.2, 10_000: 3.2})


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("function", THEORIES)
def test_each_mistake_is_known_by_its_answers(function, seed):
    asked = [q for q in draw(random.Random(seed)) if q.function == function]
    assert wrong_numbers([(q, q.known.right) for q in asked]) is None
    for theory in THEORIES[function]:
        finding = wrong_numbers([(q, theory.answer(q.known)) for q in asked])
        assert finding.diagnosis == theory.name
    assert wrong_numbers([(q, 3 * q.known.right) for q in asked]).diagnosis.startswith("another ")


@pytest.mark.parametrize("seed", range(12))
def test_questions_have_every_end_of_a_warmup_and_no_easy_setup_only(seed):
    questions = draw(random.Random(seed))
    rates = [q.known for q in questions if q.function == "learning_rate"]
    for setup in {known.setup for known in rates}:
        asked = {known.number for known in rates if known.setup == setup}
        last = setup.warmup_steps
        assert asked >= {0, last, last + 1} and max(asked) > last + 50
        assert last == 0 or last - 1 in asked
        assert setup.per_rank != setup.base_batch and setup.start < setup.base_rate
    setups = {known.setup for known in rates}
    assert {setup.warmup_steps for setup in setups} >= {0, 1}
    assert any(setup.batch < setup.base_batch for setup in setups)
    assert {0, 1} <= {min(setup.start, 1) == 0 for setup in setups}
    epochs = [q.known for q in questions if q.function == "steps_per_epoch"]
    assert any(known.number % known.setup.batch == 0 for known in epochs)
    assert all(q.known.setup.as_dict == q.arguments[-1] for q in questions)


@pytest.mark.parametrize(
    ("function", "answer", "diagnosis"),
    [
        ("learning_rate", 1, None),
        ("learning_rate", "0.1", "returns something else"),
        ("learning_rate", True, "returns something else"),
        ("learning_rate", None, "returns something else"),
        ("steps_per_epoch", 10, None),
        ("steps_per_epoch", 10.0, "returns something else"),
        ("global_batch", 10.0, "returns something else"),
    ],
)
def test_the_form_of_an_answer(function, answer, diagnosis):
    question = next(q for q in draw(random.Random(0)) if q.function == function)
    finding = wrong_form(question, answer)
    assert (finding and finding.diagnosis) == diagnosis


LOOKING_UP = {
    "labkit.large_batch": "labkit.large_batch.warmed_up(1.0, 1, 2)",
    "labkit.grade.graders.scaling_questions as its": "its.steps_for(1, 2)",
}


@pytest.mark.parametrize("module", LOOKING_UP)
def test_looking_it_up_is_refused_even_where_the_refusal_is_caught(module, tmp_path):
    solution = WORKSPACE.solution(NAME).read_text()
    first = '    return setup["per_rank"]'
    assert first in solution
    attempt = f"    try: {LOOKING_UP[module]}\n    except Exception: pass\n"
    file = tmp_path / "mine.py"
    file.write_text(f"import {module}\n" + solution.replace(first, attempt + first))
    verdict = check(NAME, file, workspace=WORKSPACE)
    assert verdict.diagnosis == "calls the answer itself", verdict


def test_what_is_written_is_graded_before_the_rest_is(tmp_path):
    solution, stub = (path(NAME).read_text() for path in (WORKSPACE.solution, WORKSPACE.exercise))
    file = tmp_path / "mine.py"
    written = solution.partition("def learning_rate")[0]
    file.write_text(written + "".join(stub.partition("def learning_rate")[1:]))
    verdict = check(NAME, file, workspace=WORKSPACE)
    assert verdict.diagnosis == "a part is still to be written", verdict
    file.write_text(file.read_text().replace(' * setup["num_accumulated"]', ""))
    assert check(NAME, file, workspace=WORKSPACE).diagnosis == "forgets the accumulation"


def test_what_was_tried_is_counted():
    questions = GRADER.questions(random.Random(0))
    assert GRADER.tried(questions) == f"{len(questions)} questions about 7 setups"
