"""Wrong loss scalers, each as the rules that it follows."""

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from labkit.grade.graders import scaler_variations as vary
from labkit.grade.graders.scaler_rules import Rules


class Mistake(NamedTuple):
    """A name, why it is one, and the rules by it."""

    name: str
    explanation: str
    rules: Rules
    hint: int = 2


def _by_itself(own: list[bool]) -> list[bool]:
    return own


def _never(gradients: Sequence[Tensor]) -> bool:
    return False


def _where_all(own: list[bool]) -> list[bool]:
    return [all(own)] * len(own)


_TOGETHER = (
    "ranks do not skip together",
    "one rank overflows and skips, and the others step: from then on the ranks have parameters of "
    "other steps, and scales that differ, and nothing crashes. Whether to skip must be the same on "
    "all ranks: reduce a flag, and decide by the result",
)
_REPLACES = (
    "replaces inf and nan, and makes the step",
    "what overflowed is unknown, and neither 0 nor the largest number is near it: the step goes "
    "another way, on one rank perhaps, and a scale that is too high stays. Skip the step, and "
    "halve the scale",
)
_HALF = (
    "divides in float16",
    "the scale has lifted small gradients over 6e-8, and a quotient in float16 pushes them back "
    "under it: they are rounded, or 0. To float32 first, then divide",
)
_ANEW = (
    "an overflow does not begin the count anew",
    "the scale is to grow after growth_interval good steps in a row. If the count goes on, it "
    "grows soon after it has fallen, and overflows again",
)
_SKIPPED = (
    "counts skipped steps as good ones",
    "a step with an overflow is no sign that the scale is too small: the count begins at 0 with it",
)
_GROWN = (
    "the count goes on after the scale has grown",
    "num_good_steps counts since the last change of the scale: it is 0 after growing, too",
)

MISTAKES: tuple[Mistake, ...] = (
    Mistake(
        "never looks for an overflow",
        "inf and nan are handed to the optimizer, and from one such step on all its moments and "
        "parameters are nan",
        Rules(overflows=_never),
        1,
    ),
    Mistake(
        "makes the step before it looks",
        "update has been called with inf or nan when the overflow is found, and the parameters are "
        "lost: look first, on all ranks, and call update only then",
        Rules(steps_anyway=True),
    ),
    Mistake(*_TOGETHER, Rules(agree=_by_itself), 1),
    Mistake(*_TOGETHER, Rules(agree=_by_itself, agree_on_scale=Rules().agree), 1),
    Mistake(
        "ranks skip together and halve apart",
        "all ranks skip, and only the one that overflowed halves its scale: from then on gradients "
        "of different ranks are scaled differently. After the all-reduce its result counts, and "
        "nothing else",
        Rules(agree_on_scale=_by_itself),
    ),
    Mistake(
        "skips only where all ranks overflow",
        "one rank with an inf is enough: take the largest of flags that say overflow, or the "
        "smallest of flags that say fine",
        Rules(agree=_where_all),
    ),
    Mistake(
        "lets a nan pass",
        "an overflow may come as inf - inf or 0 * inf, which is nan, and nan is no inf; nor do "
        "comparisons find it, since nan is unequal to all numbers. isfinite() finds both",
        Rules(overflows=vary.has_inf),
    ),
    Mistake(
        "lets an inf pass",
        "what is too large for float16 is inf, and not nan: isfinite() finds both",
        Rules(overflows=vary.has_nan),
    ),
    Mistake(
        "lets minus infinity pass",
        "gradients have both signs: -inf is an overflow, too",
        Rules(overflows=vary.has_plus_inf),
    ),
    Mistake(
        "takes a large sum for an overflow",
        "every gradient is finite, and their sum or norm in float16 is not: steps are skipped for "
        "nothing, and the scale stays too low. Ask each number, or add up in float32",
        Rules(overflows=vary.sum_overflows),
    ),
    Mistake(
        "takes the largest number for an overflow",
        "65504 is a number of float16, the largest; what is beyond it is inf, and isfinite() tells "
        "the two apart",
        Rules(overflows=vary.largest_overflows),
        3,
    ),
    Mistake(*_REPLACES, Rules(overflows=_never, divided=vary.zero_for_inf)),
    Mistake(*_REPLACES, Rules(overflows=_never, divided=vary.largest_for_inf)),
    Mistake(*_REPLACES, Rules(overflows=_never, divided=vary.largest_float_for_inf)),
    Mistake(
        "looks at one gradient only",
        "any of the tensors may have the inf",
        Rules(overflows=vary.first_overflows),
    ),
    Mistake(
        "looks at one gradient only",
        "any of the tensors may have the inf",
        Rules(overflows=vary.last_overflows),
    ),
    Mistake(*_HALF, Rules(divided=lambda gradient, scale: (gradient / scale).float()), 1),
    Mistake(*_HALF, Rules(divided=lambda gradient, scale: gradient / scale), 1),
    Mistake(
        "hands over scaled gradients",
        "the optimizer's step is scale times too long (with Adam it is not, but epsilon, clipping "
        "and weight decay are off): divide by the scale first",
        Rules(divided=lambda gradient, scale: gradient.float()),
    ),
    Mistake(
        "hands over scaled gradients",
        "the optimizer's step is scale times too long, and they are still float16",
        Rules(divided=lambda gradient, scale: gradient),
    ),
    Mistake(
        "multiplies by the scale",
        "the loss was multiplied, so gradients are divided",
        Rules(divided=lambda gradient, scale: gradient.float() * scale),
    ),
    Mistake(
        "divides by the next scale",
        "the scale has grown before the gradients were divided: it must be the one that backward "
        "was made with",
        Rules(by_next_scale=True),
        3,
    ),
    Mistake(*_ANEW, Rules(after=vary.keeps_count)),
    Mistake(*_SKIPPED, Rules(after=vary.counts_skipped)),
    Mistake(*_SKIPPED, Rules(after=vary.counts_and_waits)),
    Mistake(*_GROWN, Rules(after=vary.grows_on_and_on)),
    Mistake(*_GROWN, Rules(after=vary.grows_by_remainder)),
    Mistake(
        "grows one step late",
        "growth_interval good steps are enough: after the last of them the scale doubles",
        Rules(after=vary.one_late),
        3,
    ),
    Mistake(
        "grows one step early",
        "it takes growth_interval good steps until the scale doubles, this one included",
        Rules(after=vary.one_early),
        3,
    ),
    Mistake(
        "the scale never grows",
        "gradients become smaller as training goes on, so a scale that once was right is too low "
        "later: it has to be tried from time to time whether a higher one fits",
        Rules(after=vary.never_grows),
    ),
    Mistake(
        "does not let the scale fall below 1",
        "nothing says that 1 is low enough: gradients above 65504 overflow without any scale, and "
        "half of them may not. Halve it after every overflow",
        Rules(after=vary.never_below_one),
        3,
    ),
    Mistake(
        "the scale does not fall after an overflow",
        "the next step would overflow as well, and the one after it",
        Rules(after=vary.never_falls),
    ),
)
