"""Grade speculative_accept: the probability of each result, over all drafts and random numbers.

The probabilities are chosen so that all thresholds are multiples of 1/8 for the numbers that accept
a token, and of 1/24 for the number that draws one. So one number represents each interval.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
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


def cases(draw: g.Draw) -> Iterator[g.Case]:
    """Yield each kind of place alone, then two of them; tokens numbered at random."""
    all_places = list(PLACES.values())
    drawn = [("no draft", [])] + [(label, [place]) for label, place in PLACES.items()]
    drawn += [("two places", all_places[:2]), ("two places", draw.rng.sample(all_places, 2))]
    for label, places in drawn:
        order = draw.rng.sample(range(3), 3)
        draft, target = (
            [[row[token] / 8 for token in order] for row in rows]
            for rows in ([q for q, _ in places], [p for _, p in places] + [(1, 2, 5)])
        )
        yield g.Case(f"{label}, draft {draft}, target {target}", draft, target)


def right(draft: Rows, target: Rows) -> dict[Any, float]:
    """Return the probability of each result: min(p, q) if accepted, the rest of p if replaced."""
    found, both = {}, [list(map(min, p, q)) for p, q in zip(target, draft)] + [[0.0] * 3]
    for k in range(len(target)):
        for *kept, token in product(range(3), repeat=k + 1):
            chance = prod(row[each] for row, each in zip(both, kept))
            found[*kept, token] = chance * (target[k][token] - both[k][token])
    return {tokens: chance for tokens, chance in found.items() if chance}


def call(watch: Any, args: tuple[Rows, Rows]) -> Any:
    """Return all results, each with its probability."""
    draft, target = args
    found: Counter[tuple[int, ...]] = Counter()
    sizes = [8] * len(draft) + [24]
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
    """Return the result whose probability is the most wrong."""
    got, expected = s.y, s.right[0]
    worst = max({*got, *expected}, key=lambda each: abs(got.get(each, 0) - expected.get(each, 0)))
    mine, due = got.get(worst, 0), expected.get(worst, 0)
    return f"{list(worst)} comes out with probability {mine:.4g}, expected {due:.4g}"


DROPS, MISSING = "uniforms[k] * q[token] >= p[token]", "max(0.0, of_p - of_q)"
REPLACED = "return [*drafted[:k], _draw(missing, uniforms[-1])]"
BONUS = "return [*drafted, _draw(target[-1], uniforms[-1])]"
OWN = "_draw(missing, uniforms[-1])", "_draw(p, uniforms[k])"
# A token to draw if the number is beyond the sum of all weights.
LIKELIEST = "max(range(len(weights)), key=lambda token: weights[token])"
POSSIBLE = [
    f"{which}(token for token, weight in enumerate(weights) if weight)" for which in ("max", "min")
]
MISTAKES = [
    g.Mistake(
        "decides without the random number",
        "A rule such as `keep what the target finds most likely` makes likely tokens too likely. "
        "Keep with probability min(1, p / q): if uniforms[k] is below p / q.",
        g.patch(DROPS, "token != p.index(max(p))"),
    ),
    g.Mistake(
        "keeps with another probability than p / q",
        "The draft draws a token with q, so it comes out with q times your probability. p makes "
        "that q p: less than an exact rule can keep. q / p turns the ratio around. q min(1, p / q) "
        "is min(p, q), the most that is exact.",
        [
            *g.patches(DROPS, "uniforms[k] >= p[token]", "uniforms[k] * p[token] >= q[token]"),
            g.patch(DROPS, "token != _draw(p, uniforms[k])", *OWN),
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
            g.patch("uniform * sum(weights)", "uniform", LIKELIEST, other)
            for other in (LIKELIEST, *POSSIBLE, "len(weights) - 1", "0", "len(weights)")
        ],
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
        "goes on after a rejected token",
        "Later tokens were drafted after the one that is rejected, and target[k + 1] was computed "
        "with it. They mean nothing after another token: return.",
        g.patch(
            *("    for k, token in", "    kept, w = [], []\n    for k, token in"),
            *(REPLACED, "w = w or missing\n        else:\n            kept.append(token)"),
            *(BONUS, "return [*kept, _draw(w or target[-1], uniforms[-1])]"),
        ),
        hint=2,
    ),
    g.Mistake(
        "does not end with the target's own token",
        "A pass of the large model always gives one token of its own: a replacement, or behind K "
        "kept ones a bonus. target[K - 1] is the distribution of the last drafted token.",
        [
            *g.patches(BONUS, "return [*drafted]", BONUS.replace("[-1]", "[len(drafted) - 1]", 1)),
            g.patch(REPLACED, "return [*drafted[:k]]", BONUS, "return [*drafted]"),
        ],
    ),
]

GRADER = g.Questions(
    cases=cases,
    right=right,
    call=call,
    mistakes=MISTAKES,
    closed=("labkit.serving",),
    describe=describe,
    unexplained=(
        "results have other probabilities",
        "Add up by hand how often a result comes out: the drafted token with min(p, q), every "
        "other token with its share of max(0, p - q).",
    ),
    shown="over all drafts and random numbers the output is distributed as the large model's own, "
    "and no exact rule that decides token by token keeps more of the draft",
)
