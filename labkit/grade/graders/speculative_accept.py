"""Grade speculative_accept: how often each result comes out, over all drafts and random numbers.

The probabilities are such that all thresholds lie on multiples of 1/4, for the numbers that accept,
and of 1/24, for the one that draws. So one number in each interval stands for all that are in it.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import product
from math import prod
from typing import Any

from labkit.grade.grader import Case, Draw, Mistake, Observed, Questions, close, patch, unexplained

Distribution = Sequence[float]
# (draft, target) of a place, in eighths.
PLACES = {
    "likely and unlikely tokens": ((4, 2, 2), (2, 4, 2)),
    "two tokens are missing": ((4, 2, 2), (1, 4, 3)),
    "a token that the target never has": ((2, 2, 4), (4, 0, 4)),
    "a token that the draft never has": ((4, 4, 0), (2, 2, 4)),
    "the same distribution": ((4, 2, 2), (4, 2, 2)),
    "nothing in common": ((8, 0, 0), (0, 2, 6)),
}
LAST = (1, 2, 5)


def cases(draw: Draw) -> list[Case]:
    """Each kind of place alone, then two of them; tokens numbered at random."""
    drawn = [("no draft", [])] + [(label, [place]) for label, place in PLACES.items()]
    drawn += [("two places", draw.rng.sample(list(PLACES.values()), 2)) for _ in range(2)]
    found = []
    for label, places in drawn:
        order = draw.rng.sample(range(3), 3)
        rows = [
            [[row[token] / 8 for token in order] for row in rows]
            for rows in ([q for q, _ in places], [*(p for _, p in places), LAST])
        ]
        found.append(Case(f"{label}, draft {rows[0]}, target {rows[1]}", *rows))
    return found


def right(draft: Sequence[Distribution], target: Sequence[Distribution]) -> dict[Any, float]:
    """Accepted tokens have min(p, q), and what is not drafted has the rest of p."""
    found, both = {}, [list(map(min, p, q)) for p, q in zip(target, draft)] + [[0.0] * 3]
    for k in range(len(target)):
        for *kept, token in product(range(3), repeat=k + 1):
            chance = prod(row[each] for row, each in zip(both, kept))
            found[*kept, token] = chance * (target[k][token] - both[k][token])
    return {tokens: chance for tokens, chance in found.items() if chance}


def outcomes(function: Callable[..., Any], draft: Any, target: Any) -> Any:
    """How often each result comes out of a function."""
    found: Counter[tuple[int, ...]] = Counter()
    sizes = [8 if len(draft) == 1 else 4] * len(draft) + [24]
    numbers = [[(i + 0.4) / size for i in range(size)] for size in sizes]
    for drafted in product(range(3), repeat=len(draft)):
        if chance := prod(row[token] for row, token in zip(draft, drafted)):
            for uniforms in product(*numbers):
                tokens = function(list(drafted), draft, target, list(uniforms))
                if not isinstance(tokens, list | tuple):
                    return tokens
                found[tuple(tokens)] += chance / prod(sizes)
    return dict(found)


def call(watch: Any, args: tuple[Any, ...]) -> Any:
    """All results, each with its probability."""
    return outcomes(watch.function, *args)


def pick(weights: Distribution, uniform: float) -> int:
    """The token at this number, weights laid end to end."""
    sums = [sum(weights[: token + 1]) for token in range(len(weights))]
    return next((t for t, end in enumerate(sums) if uniform * sums[-1] < end), len(sums) - 1)


def follows(*rules: Callable[..., Any]) -> Callable[[Observed], bool]:
    """A predicate: the outcomes are those of a wrong rule."""
    return lambda s: any(close(s.y, outcomes(one_pass, *s.args)) for one_pass in rules)


def rule(
    keeps: Callable[..., bool] = lambda u, p, q, token: u * q[token] < p[token],
    rest: Callable[..., float] = lambda p, q: max(0.0, p - q),
    bonus: Callable[..., Distribution] = lambda draft, target: target[-1],
    number: Callable[..., float] = lambda uniforms, k: uniforms[-1],
    draw: Callable[[Distribution, float], int] = pick,
    keeps_rejected: bool = False,
    goes_on: bool = False,
    without: Sequence[str] = (),
) -> Callable[..., Any]:
    """The rule, with a part of it replaced."""

    def one_pass(drafted: Any, draft: Any, target: Any, uniforms: Any) -> list[int]:
        tokens = []
        for k, token in enumerate(drafted):
            if keeps(uniforms[k], target[k], draft[k], token):
                tokens.append(token)
                continue
            if keeps_rejected:
                tokens.append(token)
            if "replacement" not in without:
                tokens.append(draw(list(map(rest, target[k], draft[k])), number(uniforms, k)))
            if not goes_on:
                return tokens
        if "bonus" in without:
            return tokens
        return [*tokens, pick(bonus(draft, target), uniforms[-1])]

    return one_pass


def describe(s: Observed) -> str:
    """The result whose probability is the most wrong."""
    got, expected = s.y, s.right[0]
    worst = max({*got, *expected}, key=lambda each: abs(got.get(each, 0) - expected.get(each, 0)))
    return (
        f"{list(worst)} comes out with probability {got.get(worst, 0):.4g}, "
        f"expected {expected.get(worst, 0):.4g}"
    )


def largest(row: Distribution) -> int:
    """The most likely token, the first of several."""
    return max(range(len(row)), key=row.__getitem__)


def last_one(row: Distribution) -> int:
    """The last token."""
    return len(row) - 1


def last_missing(row: Distribution) -> int:
    """The last token with a weight."""
    return max(token for token, weight in enumerate(row) if weight)


def undivided(last: Callable[[Distribution], int]) -> Callable[[Distribution, float], int]:
    """Weights that do not add up to 1, laid end to end; what is beyond them is this token."""
    return lambda weights, uniform: next(
        (t for t in range(len(weights)) if uniform < sum(weights[: t + 1])), last(weights)
    )


DROPS, MISSING = "uniforms[k] * q[token] >= p[token]", "max(0.0, of_p - of_q)"
REPLACED, BONUS = "return [*drafted[:k], _draw(missing, uniforms[-1])]", "_draw(target[-1]"
MISTAKES = [
    Mistake(
        "decides without the random number",
        "A rule such as `keep what the target finds most likely` makes likely tokens too likely. "
        "Keep with probability min(1, p / q): if uniforms[k] is below p / q.",
        seen=follows(
            rule(keeps=lambda u, p, q, token: token == largest(p)),
            rule(keeps=lambda u, p, q, token: p[token] >= q[token]),
        ),
        made_by=patch(DROPS, "token != p.index(max(p))"),
    ),
    Mistake(
        "keeps with the target's probability",
        "The draft has drawn the token with q already. Kept with p it comes out with q p. Divide "
        "by q: q min(1, p / q) = min(p, q).",
        hint=2,
        seen=follows(rule(keeps=lambda u, p, q, token: u < p[token])),
        made_by=patch(DROPS, "uniforms[k] >= p[token]"),
    ),
    Mistake(
        "divides the draft by the target",
        "The ratio is p / q, the target over the draft: tokens that the draft likes too much are "
        "dropped sometimes.",
        hint=3,
        seen=follows(rule(keeps=lambda u, p, q, token: u * p[token] < q[token])),
        made_by=patch(DROPS, "uniforms[k] * p[token] >= q[token]"),
    ),
    Mistake(
        "replaces from the whole target",
        "Kept tokens make up min(p, q) already. A replacement from p adds to tokens that have "
        "enough. Draw it from what is missing: max(0, p - q), divided by its sum.",
        seen=follows(rule(rest=lambda p, q: p)),
        made_by=patch(MISSING, "of_p"),
    ),
    Mistake(
        "does not divide the residual by its sum",
        "The weights max(0, p - q) add up to less than 1, so a number in [0, 1) often lies beyond "
        "all of them. Divide by their sum, or multiply the number with it.",
        hint=3,
        seen=follows(*(rule(draw=undivided(last)) for last in (largest, last_one, last_missing))),
        made_by=patch("left = uniform * sum(weights)", "left = uniform"),
    ),
    Mistake(
        "does not cut the residual off at 0",
        "Where q is above p nothing is missing, so the weight is 0: not p - q, which is negative, "
        "nor its absolute value.",
        hint=3,
        seen=follows(rule(rest=lambda p, q: abs(p - q)), rule(rest=lambda p, q: p - q)),
        made_by=patch(MISSING, "abs(of_p - of_q)"),
    ),
    Mistake(
        "draws the replacement with the number that rejected",
        "A number that rejects is above p / q, so it is not uniform any more. The replacement has "
        "uniforms[K].",
        hint=2,
        seen=follows(rule(number=lambda uniforms, k: uniforms[k])),
        made_by=patch("_draw(missing, uniforms[-1])", "_draw(missing, uniforms[k])"),
    ),
    Mistake(
        "returns the rejected token, too",
        "The replacement stands in its place: the result is drafted[:k] and one more token.",
        hint=3,
        seen=follows(rule(keeps_rejected=True)),
        made_by=patch("[*drafted[:k], _draw", "[*drafted[: k + 1], _draw"),
    ),
    Mistake(
        "goes on after a rejected token",
        "Later tokens were drafted after the one that is rejected, and target[k + 1] was computed "
        "with it. They mean nothing after another token: return.",
        hint=2,
        seen=follows(rule(goes_on=True), rule(goes_on=True, without=["replacement"])),
        made_by=patch(
            *("    for k, token in", "    tokens = []\n    for k, token in"),
            *(REPLACED, "token = _draw(missing, uniforms[-1])\n        tokens.append(token)"),
            *("return [*drafted, _draw", "return [*tokens, _draw"),
        ),
    ),
    Mistake(
        "returns drafted tokens only",
        "A pass of the large model always gives one token of its own: a replacement, or behind K "
        "kept ones a bonus from target[K]. Without it a pass can end with no token at all.",
        seen=follows(
            *(rule(without=its) for its in (["bonus"], ["replacement"], ["bonus", "replacement"]))
        ),
        made_by=patch("return [*drafted, _draw(target[-1], uniforms[-1])]", "return [*drafted]"),
    ),
    Mistake(
        "takes the bonus from another place",
        "target[K - 1] is for the place of the last drafted token. The place behind it has "
        "target[K]; the draft has no distribution there.",
        hint=3,
        seen=follows(
            rule(bonus=lambda draft, target: target[len(draft) - 1]),
            rule(bonus=lambda draft, target: draft[-1] if draft else target[-1]),
        ),
        made_by=patch(BONUS, "_draw(target[len(drafted) - 1]"),
    ),
]

GRADER = Questions(
    name="speculative_accept",
    cases=cases,
    right=right,
    call=call,
    num_arguments=4,
    mistakes=MISTAKES,
    closed=("labkit.serving",),
    describe=describe,
    fault=unexplained(
        "the output has another distribution",
        "Add up by hand how often a result comes out: the drafted token with min(p, q), every "
        "other token with its share of max(0, p - q).",
        describe,
    ),
    shown="over all drafts and random numbers the output is distributed as the large model's own, "
    "and no rule that is exact keeps more of the draft",
)
