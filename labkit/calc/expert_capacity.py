"""What fits into an expert's buffer, and what is dropped.

    capacity = ceil(factor k N / E)       dropped = sum over experts of max(load - capacity, 0)

N tokens of a group, k choices of each, E experts. A choice that does not fit is dropped: places
that are free at other experts do not help it.
Papers: GShard, arXiv:2006.16668, section 2.2; Switch, arXiv:2101.03961, section 2.2.
"""

import math
from collections.abc import Sequence
from fractions import Fraction

from labkit.calc.checked_numbers import check_above_zero, check_not_negative, check_ranks
from labkit.calc.result import Result

_SOURCE = "GShard, arXiv:2006.16668, section 2.2"


def expert_capacity(num_tokens: float, num_experts: int, top_k: int, factor: float) -> Result:
    """Choices that an expert takes from a group of `num_tokens`, a whole number.

    expert_capacity(1000, 16, 2, 1.25) == 157. ValueError for counts that are none, and for a factor
    that is not above 0.
    """
    check_not_negative(num_tokens, "num_tokens")
    experts, k = check_ranks(num_experts, "num_experts"), check_ranks(top_k, "top_k")
    check_above_zero(factor, "factor", "a buffer of no rows takes no token; give one such as 1.25")
    # As the decimal that was typed: 1.1 * 10 is 11 rows, and in floats a little more.
    exact = Fraction(str(factor)) * k * Fraction(num_tokens) / experts
    return Result(
        math.ceil(exact),
        "",
        "capacity of an expert",
        "ceil(factor k N / E)",
        f"ceil({factor:g} * {k} * {num_tokens:,} / {experts})",
        source=_SOURCE,
    )


def dropped_choices(loads: Sequence[int], capacity: float | Result) -> Result:
    """Choices that do not fit. loads: how many fell on each expert."""
    room = float(capacity)
    check_not_negative(room, "capacity")
    for load in loads:
        check_not_negative(load, "loads")
    over = [load - room for load in loads if load > room]
    return Result(
        sum(over),
        "",
        "dropped choices",
        "sum of max(load - capacity, 0)",
        " + ".join(f"{each:g}" for each in over) or "0",
        source=_SOURCE,
    )
