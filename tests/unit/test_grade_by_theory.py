"""Answers of calculation: what counts as the same, and how it is shown."""

import random

import pytest

from labkit.grade.answers import Question
from labkit.grade.by_theory import ByTheory, Theory, agree, shown


class Squares(ByTheory[int]):
    """Squares of numbers."""

    functions = ("square",)
    rights = {"square": lambda number: number * number}
    theories = {
        "square": (
            Theory("doubles", "x + x is no square", lambda number: 2 * number),
            Theory("drops the sign", "never reached", lambda number: 2 * number, 3),
            Theory("cubes", "one factor too many", lambda number: number**3, 3),
        )
    }

    def wrong_form(self, function, answer):
        return "" if type(answer) in (int, float) else "a number"

    def unexplained(self, function, pairs):
        return "another number", f"{len(pairs)} questions"


GRADER = Squares()
NUMBERS = [2, *random.Random(0).sample(range(3, 99), 5)]


def judged(answer):
    asked = [Question("square", (number,), f"of {number}", number) for number in NUMBERS]
    return GRADER.judge(asked, [answer(number) for number in NUMBERS])


def test_right_answers_have_no_finding():
    assert judged(lambda number: float(number**2)) is None


def test_the_first_theory_that_explains_all_answers_is_the_diagnosis():
    # 2 + 2 is 4: the question that is answered rightly by chance is among those to be explained.
    finding = judged(lambda number: number + number)
    assert (finding.diagnosis, finding.hint) == ("doubles", 2)
    assert finding.first_seen == f"square, of {NUMBERS[1]}: got {2 * NUMBERS[1]}, expected " + (
        f"{NUMBERS[1] ** 2:,}"
    )
    assert judged(lambda number: number**3).hint == 3


def test_a_theory_may_add_up_floats_in_another_order():
    assert judged(lambda number: 2 * number * (1 + 2e-16)).diagnosis == "doubles"
    assert judged(lambda number: 2 * number * (1 + 1e-9)).diagnosis == "another number"


def test_what_nothing_explains_has_a_name_of_its_own():
    mixed = judged(lambda number: 2 * number if number < 50 else number**3)
    assert (mixed.diagnosis, mixed.explanation) == ("another number", "6 questions")


def test_form_comes_before_numbers():
    finding = judged(lambda number: None if number == NUMBERS[-1] else 7)
    assert finding.diagnosis == "returns something else" and "None" in finding.explanation


@pytest.mark.parametrize(
    ("got", "wanted", "rtol", "is_same"),
    [
        (2, 2.0, 0, True),
        (True, 1, 0, False),
        (10**12 + 1, 10**12, 0, False),
        (1.0 + 1e-12, 1.0, 1e-9, True),
        ((1, ["a"]), [1, ("a",)], 0, True),
        ((1,), (1, 2), 0, False),
        ({1: 2}, {1: 2.0}, 0, True),
        ({1: 2, 2: 0}, {1: 2}, 0, False),
        (None, None, 0, True),
        (0, None, 0, False),
        ("a", 1, 0, False),
    ],
)
def test_what_counts_as_the_same(got, wanted, rtol, is_same):
    assert agree(got, wanted, rtol) is is_same


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1048576, "1,048,576"),
        (1e12, "1,000,000,000,000"),
        (0.5, "0.5"),
        ({1: 12000}, "{1: 12,000}"),
        ((2, ["optimizer", "gradients"]), "(2, ['optimizer', 'gradients'])"),
        ((None, []), "(None, [])"),
    ],
)
def test_numbers_are_shown_as_a_person_reads_them(value, text):
    assert shown(value) == text
