"""Logits and choices for load_balancing_loss, drawn so that mistakes differ."""

import random
from collections.abc import Sequence

import torch

from labkit.grade.evidence import Case
from labkit.grade.graders.capacity_inputs import Draw
from labkit.grade.graders.load_theories import BALANCE, Given, Mistake, balance
from labkit.grade.graders.load_z_theories import Z, z_loss
from labkit.grade.graders.logit_range import moved_apart, moved_together

_MOST_DRAWS = 500
_LEAST_DIFFERENCE = 1e-4  # relative; far above what float64 rounds


def given_in(case: Case) -> Given:
    """What the grader has drawn."""
    return Given(*case.arguments[0])


def random_cases(rng: random.Random) -> list[Case]:
    """The first tells all mistakes apart; then k of 1 and of E, balance, collapse, range."""
    draw = Draw(rng)
    first = _telling(draw, rng)
    num_experts = rng.choice((3, 5))
    return [
        _case("some are dropped", first),
        _case("one choice each", _routed(draw, rng.choice((9, 11)), 4, 1)),
        _case("three choices each", _routed(draw, rng.choice((7, 13)), 6, 3)),
        _case("all to one expert", _collapsed(_routed(draw, 10, num_experts, 1))),
        _case("perfect balance", _balanced(num_experts, rng.choice((2, 3)))),
        _case("all experts are chosen", _routed(draw, 7, 3, 3)),
        _case("a single token", _routed(draw, 1, 4, 2)),
        _case("logits around 1,000 and -1,000", _far(_routed(draw, 12, 5, 2))),
        _case("tokens with logits of 1,000 and of -1,000", _apart(_routed(draw, 11, 5, 2))),
        _case("float32", first._replace(logits=first.logits.float())),
    ]


def is_telling(given: Given) -> bool:
    """Whether no two mistakes of other names give the same, and none gives what is right."""
    return _differ(given, [("", float(balance(given, given.logits))), *_made(BALANCE, given)]) and (
        _differ(given, [("", float(z_loss(given, given.logits))), *_made(Z, given)])
    )


def _made(mistakes: Sequence[Mistake], given: Given) -> list[tuple[str, float]]:
    return [(each.name, float(each.loss(given, given.logits))) for each in mistakes]


def _differ(given: Given, made: Sequence[tuple[str, float]]) -> bool:
    return not any(
        name != other and abs(one - another) <= _LEAST_DIFFERENCE * max(abs(one), 1)
        for i, (name, one) in enumerate(made)
        for other, another in made[:i]
    )


def _telling(draw: Draw, rng: random.Random) -> Given:
    for _ in range(_MOST_DRAWS):
        given = _routed(draw, rng.randrange(11, 17), rng.choice((5, 6, 7)), 2)
        if is_telling(given) and not bool(given.kept.all()):
            return given
    raise AssertionError(f"{_MOST_DRAWS} draws, and none tells all mistakes apart")


def _routed(draw: Draw, num_tokens: int, num_experts: int, k: int) -> Given:
    """Choices with a bias and too few slots, as top_k_capacity makes them."""
    routed = draw.given(num_tokens, num_experts, k, 0.75)
    return Given(routed.logits, routed.experts, routed.slots >= 0)


def _collapsed(given: Given) -> Given:
    """Everybody's logits, and choices, are for one expert."""
    logits, experts = given.logits.clone(), torch.zeros_like(given.experts)
    logits[:, 0] += 5
    kept = torch.arange(len(logits))[:, None] < len(logits) // 2
    return Given(logits, experts, kept)


def _balanced(num_experts: int, times: int) -> Given:
    """Each expert is chosen equally often, and each is equally likely."""
    num_tokens = num_experts * times
    experts = torch.arange(num_tokens)[:, None].add(torch.arange(2)) % num_experts
    logits = torch.full((num_tokens, num_experts), 0.5, dtype=torch.float64)
    return Given(logits, experts, torch.ones_like(experts, dtype=torch.bool))


def _far(given: Given) -> Given:
    """The same with a token's logits far from 0 together."""
    signs = torch.arange(len(given.logits)) % 2 * 2 - 1
    return given._replace(logits=moved_together(given.logits, signs))


def _apart(given: Given) -> Given:
    """The same with a token's logits far from each other."""
    return given._replace(logits=moved_apart(given.logits))


def _case(label: str, given: Given) -> Case:
    (num_tokens, k), num_dropped = given.experts.shape, int((~given.kept).sum())
    about = (
        f"{label}: {num_tokens} tokens, {given.num_experts} experts, k = {k}, "
        f"{num_dropped} choices dropped"
    )
    return Case(about, (tuple(given),), (0.0,))
