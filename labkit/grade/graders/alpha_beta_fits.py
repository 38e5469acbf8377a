"""Fitted links that are wrong, and what was fitted instead."""

from collections.abc import Sequence

from labkit.grade.graders.alpha_beta_costs import THEORIES, cost
from labkit.grade.graders.alpha_beta_points import (
    NOISE,
    WORST,
    Point,
    Truth,
    absolute_fit,
    table,
    worst_error,
    worst_factor,
)
from labkit.grade.graders.alpha_beta_times import BANDWIDTH
from labkit.grade.outcome import Finding, Outcome

Fitted = tuple[float, float]
_RTOL = 1e-3  # least squares over times from microseconds to seconds, in double precision
_Recognised = tuple[str, str, int]  # diagnosis, explanation, hint


def wrong_fit(truth: Truth, label: str, answer: Fitted) -> Finding | None:
    """Whether a link of the answer would give other times than those that were shown."""
    recognise = _exact if truth.is_exact else _noisy
    found = recognise(truth, answer)
    if found is None:
        return None
    name, explanation, hint = found
    alpha, beta = answer
    seen = (
        f"fit, {label}: got alpha = {alpha:.4g}, beta = {beta:.4g}; the link has alpha = "
        f"{truth.alpha:.4g} s, beta = {truth.beta:.4g} s per byte"
    )
    details = table(alpha, beta, truth.points)
    return Finding(Outcome.WRONG, name, explanation, seen, hint, details=details)


def does_not_predict(
    answer: Fitted, shown: Sequence[Point], held_back: Sequence[Point], noise: float
) -> Finding | None:
    """A link that was fitted to measured times, and does not predict those that were held back.

    noise: the factor by which a good fit to the same times is off at worst. Another good fit may be
    off as much on the other side; the rest is for fits that weigh points otherwise.
    """
    most = 1.1 * noise**2
    off = worst_factor(*answer, held_back)
    if off <= most:
        return None
    found = _dominated(shown, answer) or (
        "does not predict what was held back",
        "the fit was right where points were exact, and off by a few percent where they were not; "
        "on these, which were measured, it is off by more. Times and sizes are of another order "
        "of magnitude here: what does your fit take for granted about them?",
        2,
    )
    name, explanation, hint = found
    seen = (
        f"fit to measured times: got alpha = {answer[0]:.4g}, beta = {answer[1]:.4g}; off by "
        f"a factor of {off:.3g} at worst, where {most:.3g} is allowed for noise"
    )
    details = table(*answer, [*shown, *held_back])
    return Finding(Outcome.WRONG, name, explanation, seen, hint, details=details)


def _exact(truth: Truth, answer: Fitted) -> _Recognised | None:
    if _is(answer, (truth.alpha, truth.beta)):
        return None
    if 0 < abs(answer[0]) < 0.01 * truth.alpha:
        return (
            "loses alpha in rounding",
            "one column of the equations has steps in it, and the other bytes, up to ten powers of "
            "ten more: in float32, or with a cut-off for small singular values (rcond), least "
            "squares drops the smaller one. Use float64, and divide each column by its largest",
            3,
        )
    kinds = {(algorithm, n) for algorithm, n, *_ in truth.points}
    if len(kinds) > 1:
        return (
            "takes points of several kinds for one",
            "rings and trees, 4 ranks and 16, all on one link: the number of latencies and of "
            "bytes is another one for each point. Make an equation of each point, with the counts "
            "of its own algorithm and n, and solve them together",
            2,
        )
    ((algorithm, n),) = kinds
    right = cost(algorithm, n)
    return (
        _by_theory(truth, answer, algorithm, n)
        or _in_other_terms(truth, answer)
        or (
            "misses points without noise",
            f"every time is {right.latencies:g} alpha + {right.share:.4g} D beta, to the last "
            "digit, and this is another link",
            2,
        )
    )


def _by_theory(truth: Truth, answer: Fitted, algorithm: str, n: int) -> _Recognised | None:
    """The link that comes out where points are explained by a wrong formula."""
    right = cost(algorithm, n)
    for theory in THEORIES[algorithm]:
        wrong = theory.cost(n)
        if not wrong.latencies:
            if answer[0] == 0:
                return (theory.name, theory.explanation, 2)
            continue
        if not wrong.share:
            continue
        alpha = truth.alpha * right.latencies / wrong.latencies
        beta = truth.beta * right.share / wrong.share
        if _is(answer, (alpha, beta)):
            return (theory.name, f"{algorithm}: {theory.explanation}", 2)
        if _is(answer, (alpha, 1 / beta)):
            return (theory.name, f"{algorithm}: {theory.explanation}. {BANDWIDTH[1]}", 2)
    return None


def _in_other_terms(truth: Truth, answer: Fitted) -> _Recognised | None:
    alpha, beta = truth.alpha, truth.beta
    if _is(answer, (alpha, 1 / beta)):
        return BANDWIDTH
    if _is(answer, (beta, alpha)):
        return ("alpha and beta change places", "the order is (alpha, beta)", 3)
    for factor in (1e3, 1e6, 1e9):
        if _is(answer, (factor * alpha, beta)) or _is(answer, (factor * alpha, factor * beta)):
            return ("another unit than seconds", "alpha is in seconds, like the times", 3)
    return None


def _noisy(truth: Truth, answer: Fitted) -> _Recognised | None:
    exact = [
        (algorithm, n, nbytes, cost(algorithm, n).seconds(truth.alpha, truth.beta, nbytes))
        for algorithm, n, nbytes, _ in truth.points
    ]
    off = worst_error(*answer, exact)
    if off <= WORST:
        return None
    return _dominated(truth.points, answer) or (
        "lost in the noise",
        f"each time is off by up to {NOISE:.0%}, and the fit by {off:.0%} at worst; the smallest "
        "and the largest point alone would do better. Let every point count by how far it is off "
        "in percent",
        2,
    )


def _dominated(points: Sequence[Point], answer: Fitted) -> _Recognised | None:
    """Least squares of seconds, with what became of a negative latency; or any such latency."""
    alpha, beta = absolute_fit(points)
    if answer[0] >= 0 and not any(_is(answer, (each, beta)) for each in (alpha, -alpha, 0.0)):
        return None
    return (
        "lets the largest size decide",
        "the times span several powers of ten. Least squares of seconds looks at the largest ones "
        "only: a few percent of those are more than all of alpha, which may come out below 0. "
        "Errors in percent count alike at every size: divide each equation by its time",
        2,
    )


def _is(answer: Fitted, link: Fitted) -> bool:
    return all(
        abs(one - other) <= _RTOL * abs(other) for one, other in zip(answer, link, strict=True)
    )
