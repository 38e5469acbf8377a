"""Numbers that callers pass: which are refused, and with what words."""

import math
from fractions import Fraction

import pytest
import torch

from labkit import arguments


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -0.1, 1, 10**400])
def test_a_number_that_cannot_be_is_a_value_error(value):
    with pytest.raises(ValueError, match="^momentum=.*: 0 or more, below 1$"):
        arguments.number("momentum", value, "0 or more, below 1", least=0, below=1)


@pytest.mark.parametrize("value", ["0.5", True, None, [0.5], 1j, torch.tensor(0.5)])
def test_what_is_no_number_is_a_type_error(value):
    with pytest.raises(TypeError, match="^momentum=.*: give a number; 0 or more$"):
        arguments.number("momentum", value, "0 or more", least=0)


def test_limits_belong_to_the_range_or_do_not():
    assert arguments.number("x", 0, "", least=0, most=1) == 0
    assert arguments.number("x", Fraction(1, 2), "", above=0, below=1) == 0.5
    for limits in ({"above": 0}, {"below": 0}):
        with pytest.raises(ValueError, match="x=0"):
            arguments.number("x", 0, "", **limits)


@pytest.mark.parametrize(
    ("value", "error"), [(2.0, TypeError), (True, TypeError), ("2", TypeError), (0, ValueError)]
)
def test_counts_are_whole(value, error):
    with pytest.raises(error, match=f"^ranks={value!r}: .*1 or more"):
        arguments.whole("ranks", value, "1 or more")


def test_a_long_value_is_cut():
    with pytest.raises(TypeError) as refused:
        arguments.number("x", list(range(1000)), "one")
    assert len(str(refused.value)) < 120


@pytest.mark.parametrize("number", range(1, 50))
def test_divisors_are_those_that_leave_no_rest(number):
    assert arguments.divisors(number) == [d for d in range(1, number + 1) if number % d == 0]
