"""Predicted times and choices that are wrong, and the formula behind them."""

import math
from collections.abc import Sequence

from labkit.grade.graders.alpha_beta_costs import ALGORITHMS, RING, THEORIES, TREE, Theory, cost
from labkit.grade.graders.alpha_beta_questions import Asked, faster, seconds
from labkit.grade.outcome import Finding, Outcome

_RTOL = 1e-6  # a formula in floating point, whatever its order
_TELLING = 4  # ranks: with 2, a ring is a tree and n/2 is 1
_Recognised = tuple[str, str, int]  # diagnosis, explanation, hint


def wrong_times(asked: Sequence[Asked], answers: Sequence[float]) -> Finding | None:
    """The first algorithm whose predictions are not the model's."""
    for algorithm in ALGORITHMS:
        pairs = [
            (each, answer)
            for each, answer in zip(asked, answers, strict=True)
            if each.algorithm == algorithm
        ]
        wrong = [pair for pair in pairs if not _is_close(pair[1], seconds(pair[0], algorithm))]
        if not wrong:
            continue
        name, explanation, hint = (
            _by_theory(pairs, algorithm)
            or _divides_by_beta(pairs, algorithm)
            or _right_for_powers_of_two(pairs, wrong)
            or (
                "another time than the model's",
                "count the messages that come one after the other, and the bytes of each",
                2,
            )
        )
        each, answer = min(wrong, key=lambda pair: abs(pair[0].n - _TELLING))
        seen = (
            f"predict for {_of(each)}, {algorithm}: got {answer:.4g} s, expected "
            f"{seconds(each, algorithm):.4g} s"
        )
        explanation = f"{algorithm}: {explanation}"
        return Finding(Outcome.WRONG, name, explanation, seen, hint, details=_table(pairs))
    return None


def wrong_choices(asked: Sequence[Asked], answers: Sequence[str]) -> Finding | None:
    """An algorithm that takes longer than the other one."""
    pairs = list(zip(asked, answers, strict=True))
    wrong = [(each, answer) for each, answer in pairs if answer != faster(each)]
    if not wrong:
        return None
    each, answer = wrong[0]
    name, explanation = _about_choices(pairs, len(wrong))
    times = ", ".join(f"{name} {seconds(each, name):.4g} s" for name in ALGORITHMS)
    seen = f"choose for {_of(each)}: got {answer!r}; {times}"
    return Finding(Outcome.WRONG, name, explanation, seen, hint=2)


def _about_choices(pairs: Sequence[tuple[Asked, str]], num_wrong: int) -> tuple[str, str]:
    answers = {answer for _, answer in pairs}
    if num_wrong == len(pairs):
        return ("chooses the slower one", "every choice is the other way round")
    if len(answers) == 1:
        return (
            f"always chooses the {answers.pop()}",
            "a tree has fewer steps and wins where latency decides; a ring sends fewer bytes per "
            "rank and wins where bandwidth decides",
        )
    for algorithm in ALGORITHMS:
        for theory in THEORIES[algorithm]:
            if all(answer == _faster_by(each, algorithm, theory) for each, answer in pairs):
                return (theory.name, f"{algorithm}: {theory.explanation}")
    rings = [each.nbytes for each, answer in pairs if answer == RING]
    trees = [each.nbytes for each, answer in pairs if answer == TREE]
    if max(trees) < min(rings):
        return (
            "one limit for every link",
            "the size from which a ring is faster depends on alpha, beta and n: compare the two "
            "predictions",
        )
    if all(_has_one_limit(pairs, n) for n in {each.n for each, _ in pairs}):
        return (
            "changes to the ring at another size",
            "for every n there is one size, in units of alpha / beta, from which on you choose the "
            "ring, and it is not where the two are equally fast. A ring has more latencies, and a "
            "tree more bytes: what decides is the difference in each. Compare the two predictions, "
            "or set them equal and solve for D",
        )
    return ("takes the slower algorithm", "compare what predict says for the two")


def _has_one_limit(pairs: Sequence[tuple[Asked, str]], n: int) -> bool:
    """Whether the choices for n ranks follow from D beta / alpha: trees below some value of it."""
    chosen: dict[str, list[float]] = {RING: [], TREE: []}
    for each, answer in pairs:
        if each.n == n:
            chosen[answer].append(each.nbytes * each.beta / each.alpha)
    return max(chosen[TREE], default=0.0) < min(chosen[RING], default=math.inf)


def _faster_by(asked: Asked, algorithm: str, theory: Theory) -> str:
    times = {each: seconds(asked, each) for each in ALGORITHMS}
    times[algorithm] = theory.cost(asked.n).seconds(asked.alpha, asked.beta, asked.nbytes)
    return min(ALGORITHMS, key=times.__getitem__)


def _by_theory(pairs: Sequence[tuple[Asked, float]], algorithm: str) -> _Recognised | None:
    for theory in THEORIES[algorithm]:
        if all(
            _is_close(answer, theory.cost(each.n).seconds(each.alpha, each.beta, each.nbytes))
            for each, answer in pairs
        ):
            return (theory.name, theory.explanation, 2)
    return None


def _divides_by_beta(pairs: Sequence[tuple[Asked, float]], algorithm: str) -> _Recognised | None:
    for each, answer in pairs:
        divided = cost(algorithm, each.n).seconds(each.alpha, 1 / each.beta, each.nbytes)
        if not _is_close(answer, divided):
            return None
    return BANDWIDTH


BANDWIDTH: _Recognised = (
    "takes beta for a bandwidth",
    "here beta is seconds per byte, one over the bandwidth, so that bytes are multiplied by it. "
    "(Books use the letter for either: say which)",
    3,
)


def _right_for_powers_of_two(
    pairs: Sequence[tuple[Asked, float]], wrong: Sequence[tuple[Asked, float]]
) -> _Recognised | None:
    powers = [pair for pair in pairs if pair[0].n & (pair[0].n - 1) == 0]
    if any(pair in wrong for pair in powers):
        return None
    return (
        "right for powers of two only",
        "where n is no power of two, it is another time: a tree has ceil(log2 n) steps each way, "
        "and a ring cuts D into n segments, whatever n is",
        2,
    )


def _is_close(one: float, other: float) -> bool:
    return abs(one - other) <= _RTOL * abs(other)


def _of(each: Asked) -> str:
    return (
        f"{each.n} ranks, {each.nbytes:,} bytes, alpha = {each.alpha * 1e6:.4g} us, "
        f"beta = {each.beta:.4g} s per byte"
    )


def _table(pairs: Sequence[tuple[Asked, float]]) -> str:
    lines = ["  n       bytes  alpha in us  beta in s/byte         got s    expected s"]
    for each, answer in pairs:
        lines.append(
            f"{each.n:>3} {each.nbytes:>11,} {each.alpha * 1e6:>12.4g} {each.beta:>15.4g} "
            f"{answer:>13.5g} {seconds(each, each.algorithm):>13.5g}"
        )
    return "\n".join(lines)
