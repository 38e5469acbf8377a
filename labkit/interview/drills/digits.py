"""When two numbers are the same to so many significant digits.

    7.46 to 2 digits         7.41 to 7.51, both included: half a unit of the second digit, 0.1
    0.0304 to 2 digits       0.0299 to 0.0309
    14 exactly               14, and nothing else

A number is right if it is at most half a unit of the last required digit away from the truth. So
the truth rounded to that digit is right, and to any later one. All of it holds in the unit in which
the number was typed, for there a person rounds: 97.04 GiB are 104.2 GB, and both 97 GiB and
100 GB are right to two digits.
"""

import math

_ROUNDING = 1e-9  # of a unit that was converted and back
_TOO_LONG = 1e9  # from here on with a power of ten: 3.14e23


def half_unit(value: float, digits: int) -> float:
    """Half a unit of the digit at that place of `value`, counted from its first that is not 0."""
    # By the text, for log10(1000) may be 2.9999999999999996.
    exponent = int(f"{abs(value):.15e}".partition("e")[2])
    return 0.5 * 10.0 ** (exponent + 1 - digits)


def agrees(typed: float, truth: float, digits: int | None) -> bool:
    """Whether `typed` is `truth` to so many digits; None: exactly, for what is counted."""
    if digits is None:
        return math.isclose(typed, truth, rel_tol=_ROUNDING)
    return abs(typed - truth) <= half_unit(truth, digits) + _ROUNDING * abs(truth)


def may_be_confused(one: float, other: float, digits: int | None) -> bool:
    """Whether one typed number could agree with both."""
    if digits is None:
        return math.isclose(one, other, rel_tol=_ROUNDING)
    reach = half_unit(one, digits) + half_unit(other, digits)
    return abs(one - other) <= reach + _ROUNDING * max(abs(one), abs(other))


def rounded_text(value: float, digits: int | None) -> str:
    """As a person writes it: "7.5", "0.030", "1,120", to so many digits; None: a whole number."""
    if digits is None:
        return f"{round(value):,}"
    if abs(value) >= _TOO_LONG:
        return f"{value:.{digits - 1}e}".replace("e+", "e")
    places = digits - 1 - int(f"{abs(value):.{digits - 1}e}".partition("e")[2])
    return f"{round(value, places):,.{max(places, 0)}f}"
