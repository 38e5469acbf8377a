"""Logits, biases and capacities for top_k_capacity, drawn so that mistakes differ."""

import math
import random
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from labkit.grade.evidence import Case
from labkit.grade.graders.capacity_rules import Given
from labkit.grade.graders.capacity_theories import CAPACITIES, EXPERTS, SLOTS
from labkit.grade.graders.logit_range import moved_apart, moved_together

_MOST_DRAWS = 2000
_LEAST_GAP = 2e-4  # between two scores of a token: float32 rounds a sum of 1 by 1e-7
_NONE = torch.empty(0)


def given_in(case: Case) -> Given:
    """What the grader has drawn."""
    return Given(*case.arguments[0])


def random_cases(rng: random.Random) -> list[Case]:
    """The first two tell all mistakes apart; then what else comes: k of 1 and of E, no drops."""
    draw = Draw(rng)
    far = draw.telling(True)
    signs = torch.tensor([rng.choice((-1, 1)) for _ in range(far.num_tokens)])
    many = rng.choice((9, 10, 13))
    return [
        draw.case("some are dropped", draw.telling(False)),
        draw.case("some are dropped, renormalised", draw.telling(True)),
        draw.case("one choice each", draw.given(rng.choice((9, 11)), 4, 1, 1.25, True)),
        draw.case("one expert that all want", draw.popular()),
        draw.case("no more tokens than slots", draw.given(many, 4, 2, 4.0, True)),
        draw.case("a capacity that needs no rounding", draw.given(rng.choice((8, 12)), 4, 2, 1.0)),
        draw.case("fewer tokens than experts", draw.given(3, 7, 2, 1.0)),
        draw.case("all experts are chosen", draw.given(rng.choice((5, 7)), 4, 4, 0.75)),
        draw.case("a single expert", draw.given(rng.choice((4, 6)), 1, 1, 0.5)),
        draw.case(
            "logits around 1,000 and -1,000",
            far._replace(logits=moved_together(far.logits, signs)),
        ),
        draw.case("tokens with logits of 1,000 and of -1,000", draw.apart()),
        draw.case("float32", draw.in_float32()),
    ]


class Draw:
    """Random inputs, one after the other."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._generator = torch.Generator().manual_seed(rng.getrandbits(63))

    def case(self, label: str, given: Given) -> Case:
        """The case of these inputs, with their sizes in words."""
        about = (
            f"{label}: {given.num_tokens} tokens, {given.num_experts} experts, k = {given.k}, "
            f"factor {given.factor:g}, renormalise={given.renormalise}, C = {given.capacity}"
        )
        return Case(about, (tuple(given),), (0.0,))

    def given(
        self, num_tokens: int, num_experts: int, k: int, factor: float, renormalise: bool = False
    ) -> Given:
        """Logits and biases at random; no two scores of a token are nearly equal."""
        return self._until(
            lambda: Given(
                1.5 * self._normal(num_tokens, num_experts),
                0.1 * self._normal(num_experts),
                k,
                factor,
                renormalise,
                self._normal(num_tokens, k),
            ),
            _has_gaps,
        )

    def telling(self, renormalise: bool) -> Given:
        """Of which each mistake makes something else than any other."""
        sizes = [
            (num_tokens, num_experts, factor)
            for num_tokens in range(11, 17)
            for num_experts in (5, 6, 7)
            for factor in (0.75, 1.25)
            if _tells_capacities(num_tokens, num_experts, factor)
        ]
        num_tokens, num_experts, factor = self._rng.choice(sizes)
        return self._until(
            lambda: self.given(num_tokens, num_experts, 2, factor, renormalise), is_telling
        )

    def popular(self) -> Given:
        """A bias that makes one expert the first choice of every token."""
        given = self.given(self._rng.choice((7, 9)), 5, 3, 1.0, True)
        favourite, bias = self._rng.randrange(5), given.bias.clone()
        bias[favourite] += 2
        return given._replace(bias=bias)

    def apart(self) -> Given:
        """Tokens with logits that are far apart, and slots for all."""

        def drawn() -> Given:
            given = self.given(self._rng.choice((8, 11)), 5, 2, 5.0, True)
            return given._replace(logits=moved_apart(given.logits))

        return self._until(drawn, _has_gaps)

    def in_float32(self) -> Given:
        """The same in fewer digits."""
        given = self.telling(False)
        tensors = (given.logits, given.bias, given.output_gradient)
        logits, bias, output_gradient = (each.float() for each in tensors)
        return given._replace(logits=logits, bias=bias, output_gradient=output_gradient)

    def _until(self, draw: Callable[[], Given], is_enough: Callable[[Given], bool]) -> Given:
        for _ in range(_MOST_DRAWS):
            given = draw()
            if is_enough(given):
                return given
        raise AssertionError(f"{_MOST_DRAWS} draws, and none of them will do")

    def _normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self._generator, dtype=torch.float64)


def _has_gaps(given: Given) -> bool:
    scores = (given.p + given.bias).sort(1).values
    return scores.shape[1] == 1 or float(scores.diff(dim=1).min()) > _LEAST_GAP


def _tells_capacities(num_tokens: int, num_experts: int, factor: float) -> bool:
    """Whether the commonest wrong capacities differ from what is right, and from each other."""
    given = Given(torch.zeros(num_tokens, num_experts), _NONE, 2, factor, False, _NONE)
    capacities = {given.capacity, *(each.values(given) for each in CAPACITIES[:4])}
    # 0.5: to the nearest is no other number than up; down is.
    is_between = 0.5 < given.share - math.floor(given.share) < 1
    return is_between and len(capacities) == 5 and given.capacity >= 3


def is_telling(given: Given) -> bool:
    """Whether mistakes differ from what is right, and those of one part from each other."""
    return (
        _all_differ([given.experts, *(each.values(given) for each in EXPERTS)])
        and bool(((given.slots >= 0).sum(1) == 1).any())
        and _all_differ([given.slots, *(each.values(given) for each in SLOTS)])
    )


def _all_differ(values: Sequence[Tensor]) -> bool:
    return len({tuple(each.flatten().tolist()) for each in values}) == len(values)
