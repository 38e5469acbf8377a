"""Grade speculative_accept: how often each result comes out, over all drafts and random numbers.

The probabilities are such that all thresholds lie on multiples of 1/4, for the numbers that accept,
and of 1/24, for the one that draws. So one number in each interval stands for all that are in it.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import product
from math import prod
from typing import Any

from labkit.grade import grader as g

Rows = Sequence[Sequence[float]]
# (draft, target) of a place, in eighths.
PLACES = {
    "likely and unlikely tokens": ((4, 2, 2), (2, 4, 2)),
    "two tokens are missing": ((4, 2, 2), (1, 4, 3)),
    "a token that the target never has": ((2, 2, 4), (4, 0, 4)),
    "a token that the draft never has": ((4, 4, 0), (2, 2, 4)),
    "the same distribution": ((4, 2, 2), (4, 2, 2)),
    "nothing in common": ((8, 0, 0), (0, 2, 6)),
}


def cases(draw: g.Draw) -> list[g.Case]:
    """Each kind of place alone, then two of them; tokens numbered at random."""
    drawn = [("no draft", [])] + [(label, [place]) for label, place in PLACES.items()]
    drawn += [("two places", draw.rng.sample(list(PLACES.values()), 2)) for _ in range(2)]
    listed = []
    for label, places in drawn:
        order = draw.rng.sample(range(3), 3)
        draft, target = (
            [[row[token] / 8 for token in order] for row in rows]
            for rows in ([q for q, _ in places], [p for _, p in places] + [(1, 2, 5)])
        )
        listed.append(g.Case(f"{label}, draft {draft}, target {target}", draft, target))
    return listed


def right(draft: Rows, target: Rows) -> dict[Any, float]:
    """Accepted tokens have min(p, q), and what is not drafted has the rest of p."""
    found, both = {}, [list(map(min, p, q)) for p, q in zip(target, draft)] + [[0.0] * 3]
    for k in range(len(target)):
        for *kept, token in product(range(3), repeat=k + 1):
            chance = prod(row[each] for row, each in zip(both, kept))
            found[*kept, token] = chance * (target[k][token] - both[k][token])
    return {tokens: chance for tokens, chance in found.items() if chance}


def call(watch: Any, args: tuple[Rows, Rows]) -> Any:
    """All results, each with its probability."""
    draft, target = args
    found: Counter[tuple[int, ...]] = Counter()
    sizes = [8 if len(draft) == 1 else 4] * len(draft) + [24]
    numbers = [[(i + 0.4) / size for i in range(size)] for size in sizes]
    for drafted in product(range(3), repeat=len(draft)):
        if chance := prod(row[token] for row, token in zip(draft, drafted)):
            for uniforms in product(*numbers):
                tokens = watch.function(list(drafted), draft, target, list(uniforms))
                if not isinstance(tokens, list | tuple):
                    return tokens
                found[tuple(tokens)] += chance / prod(sizes)
    return dict(found)


def describe(s: g.Observed) -> str:
    """The result whose probability is the most wrong."""
    got, expected = s.y, s.right[0]
    worst = max({*got, *expected}, key=lambda each: abs(got.get(each, 0) - expected.get(each, 0)))
    return (
        f"{list(worst)} comes out with probability {got.get(worst, 0):.4g}, "
        f"expected {expected.get(worst, 0):.4g}"
    )


OTHER_DISTRIBUTION = g.unexplained(
    "the output has another distribution",
    "Add up by hand how often a result comes out: the drafted token with min(p, q), every "
    "other token with its share of max(0, p - q).",
    describe,
)
DROPS, MISSING = "uniforms[k] * q[token] >= p[token]", "max(0.0, of_p - of_q)"
REPLACED = "return [*drafted[:k], _draw(missing, uniforms[-1])]"
BONUS = "return [*drafted, _draw(target[-1], uniforms[-1])]"
LARGEST, FOR = "max(range(len(weights)), key=lambda token: weights[token])", "    for k, token in"
MISTAKES = [
    g.Mistake(
        "decides without the random number",
        "A rule such as `keep what the target finds most likely` makes likely tokens too likely. "
        "Keep with probability min(1, p / q): if uniforms[k] is below p / q.",
        [g.patch(DROPS, "token != p.index(max(p))"), g.patch(DROPS, "p[token] < q[token]")],
    ),
    g.Mistake(
        "keeps with another probability than p / q",
        "The draft has drawn the token with q already, so it comes out with q times your "
        "probability. p makes that q p, and q / p turns the ratio around: q min(1, p / q) is "
        "min(p, q).",
        [
            g.patch(DROPS, f"uniforms[k] {wrong}")
            for wrong in (">= p[token]", "* p[token] >= q[token]")
        ],
        hint=2,
    ),
    g.Mistake(
        "replaces from the whole target",
        "Kept tokens make up min(p, q) already. A replacement from p adds to tokens that have "
        "enough. Draw it from what is missing: max(0, p - q), divided by its sum.",
        g.patch(MISSING, "of_p"),
    ),
    g.Mistake(
        "does not divide the residual by its sum",
        "The weights max(0, p - q) add up to less than 1, so a number in [0, 1) often lies beyond "
        "all of them. Divide by their sum, or multiply the number with it.",
        [
            g.patch("left = uniform * sum(weights)", "left = uniform", LARGEST, beyond)
            for beyond in (LARGEST, "token", "max(t for t, w in enumerate(weights) if w)")
        ],
        hint=3,
    ),
    g.Mistake(
        "does not cut the residual off at 0",
        "Where q is above p nothing is missing, so the weight is 0: not p - q, which is negative, "
        "nor its absolute value.",
        [g.patch(MISSING, "abs(of_p - of_q)"), g.patch(MISSING, "of_p - of_q")],
        hint=3,
    ),
    g.Mistake(
        "draws the replacement with the number that rejected",
        "A number that rejects is above p / q, so it is not uniform any more. The replacement has "
        "uniforms[K].",
        g.patch("_draw(missing, uniforms[-1])", "_draw(missing, uniforms[k])"),
        hint=2,
    ),
    g.Mistake(
        "returns the rejected token, too",
        "The replacement stands in its place: the result is drafted[:k] and one more token.",
        g.patch("[*drafted[:k], _draw", "[*drafted[: k + 1], _draw"),
        hint=3,
    ),
    g.Mistake(
        "goes on after a rejected token",
        "Later tokens were drafted after the one that is rejected, and target[k + 1] was computed "
        "with it. They mean nothing after another token: return.",
        [
            g.patch(
                *(FOR, f"    tokens, weights = [], []\n{FOR}"),
                *(REPLACED, f"{then}\n        tokens.append(token)"),
                *(BONUS, "return [*tokens, _draw(weights or target[-1], uniforms[-1])]"),
            )
            for then in (
                "token = _draw(missing, uniforms[-1])",
                "continue",
                "weights = weights or missing\n            continue",
            )
        ],
        hint=2,
    ),
    g.Mistake(
        "returns drafted tokens only",
        "A pass of the large model always gives one token of its own: a replacement, or behind K "
        "kept ones a bonus from target[K]. Without it a pass can end with no token at all.",
        [
            g.patch(BONUS, "return [*drafted]"),
            g.patch(REPLACED, "return [*drafted[:k]]"),
            g.patch(BONUS, "return [*drafted]", REPLACED, "return [*drafted[:k]]"),
        ],
    ),
    g.Mistake(
        "takes the bonus from another place",
        "target[K - 1] is for the place of the last drafted token. The place behind it has "
        "target[K]; the draft has no distribution there.",
        [
            g.patch(BONUS, BONUS.replace("target[-1]", other))
            for other in ("target[len(drafted) - 1]", "(draft or target)[-1]")
        ],
        hint=3,
    ),
]

GRADER = g.Questions(
    cases=cases,
    right=right,
    call=call,
    mistakes=MISTAKES,
    closed=("labkit.serving",),
    describe=describe,
    fault=lambda s: OTHER_DISTRIBUTION(s) if isinstance(s.y, dict) else None,
    shown="over all drafts and random numbers the output is distributed as the large model's own, "
    "and no rule that is exact keeps more of the draft",
)
