"""The grader of alpha_beta: noise does not fail a good fit, and nothing passes but a good fit."""

import math
import random
from pathlib import Path

import pytest

from labkit import calc
from labkit.grade import check
from labkit.grade.graders.alpha_beta import GRADER
from labkit.grade.graders.alpha_beta_costs import ALGORITHMS, RING, THEORIES, TREE, cost
from labkit.grade.graders.alpha_beta_fits import does_not_predict, wrong_fit
from labkit.grade.graders.alpha_beta_points import (
    NOISE,
    WORST,
    absolute_fit,
    exact_points,
    noisy_points,
    relative_fit,
    worst_error,
    worst_factor,
)
from labkit.grade.graders.alpha_beta_questions import Asked, draw, faster, seconds
from labkit.grade.graders.alpha_beta_times import wrong_choices, wrong_times
from labkit.grade.workspace import Workspace

WORKSPACE = Workspace(Path(__file__).parents[2])
NAME = "alpha_beta"


def fit(points):
    """The smallest and the largest: a line through two points, in plain Python."""
    rows = [
        (predict(1, 0, n, nbytes, algorithm), predict(0, 1, n, nbytes, algorithm), seconds)
        for algorithm, n, nbytes, seconds in points
    ]
    (a, b, s), (c, d, t) = (choose_by(rows, key=lambda row: row[1]) for choose_by in (min, max))
    determinant = a * d - b * c
    return (s * d - b * t) / determinant, (a * t - s * c) / determinant


def predict(alpha, beta, n, nbytes, algorithm):
    if algorithm == "ring":
        return sum(alpha + nbytes / n * beta for _ in range(2 * (n - 1)))
    reached, steps = 1, 0
    while reached < n:
        reached, steps = 2 * reached, steps + 1
    return 2 * steps * alpha + 2 * steps * nbytes * beta


def choose(alpha, beta, n, nbytes):
    return min(("tree", "ring"), key=lambda each: predict(alpha, beta, n, nbytes, each))


def test_another_good_fit_than_the_solutions_passes():
    verdict = check(NAME, [fit, predict, choose], workspace=WORKSPACE)
    assert verdict, verdict


@pytest.mark.parametrize("n", range(1, 18))
def test_the_costs_are_those_of_calc_and_of_a_binomial_tree(n):
    alpha, beta, nbytes = 3e-6, 2e-10, 1_000_000
    ring, tree = (cost(each, n).seconds(alpha, beta, nbytes) for each in (RING, TREE))
    assert ring == pytest.approx(calc.all_reduce_seconds(nbytes, n, alpha, beta))
    assert tree == pytest.approx(2 * calc.broadcast_seconds(nbytes, n, alpha, beta))


def asked_of(seed, function):
    known = [q.known for q in draw(random.Random(seed)) if q.function == function]
    assert known
    return known


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_each_wrong_formula_is_known_by_its_predictions(algorithm):
    asked = asked_of(1, "predict")
    right = [seconds(each, each.algorithm) for each in asked]
    assert wrong_times(asked, right) is None
    names = set()
    for theory in THEORIES[algorithm]:
        answers = [
            theory.cost(each.n).seconds(each.alpha, each.beta, each.nbytes)
            if each.algorithm == algorithm
            else answer
            for each, answer in zip(asked, right)
        ]
        assert wrong_times(asked, answers).diagnosis == theory.name
        names.add(theory.name)
    assert len(names) >= 8
    divided = [cost(each.algorithm, each.n).latencies * each.alpha for each in asked]
    divided = [
        time + cost(each.algorithm, each.n).share * each.nbytes / each.beta
        for time, each in zip(divided, asked)
    ]
    assert wrong_times(asked, divided).diagnosis == "takes beta for a bandwidth"


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_each_wrong_formula_is_known_by_the_link_that_is_fitted_with_it(algorithm):
    n = 5
    truth = exact_points([(algorithm, n)], random.Random(2))
    right = cost(algorithm, n)
    assert wrong_fit(truth, "", (truth.alpha, truth.beta)) is None
    for theory in THEORIES[algorithm]:
        wrong = theory.cost(n)
        if wrong.latencies and wrong.share:
            alpha = truth.alpha * right.latencies / wrong.latencies
            beta = truth.beta * right.share / wrong.share
            same = [each.name for each in THEORIES[algorithm] if each.cost(n) == wrong]
            assert theory.name in same
            assert wrong_fit(truth, "", (alpha, beta)).diagnosis == same[0]


RULES_OF_THUMB = (  # the ring, where the seconds of its bytes are more than this
    lambda each: each.alpha,
    lambda each: each.alpha * (each.n - 1),
    lambda each: each.alpha * each.n,
    lambda each: each.alpha * (each.n - 1).bit_length(),
)


@pytest.mark.parametrize("seed", range(30))
def test_choices_are_asked_where_one_is_clearly_faster_and_no_rule_of_thumb_is_right(seed):
    asked = asked_of(seed, "choose")
    right = [faster(each) for each in asked]
    assert wrong_choices(asked, right) is None
    for each in asked:
        ring, tree = seconds(each, RING), seconds(each, TREE)
        assert max(ring, tree) > 1.3 * min(ring, tree)
    limits = sorted(each.nbytes for each in asked)
    for limit in (0, *limits):
        answers = [RING if each.nbytes > limit else TREE for each in asked]
        assert wrong_choices(asked, answers) is not None, "one limit fits all links"
    for rule in RULES_OF_THUMB:
        answers = [RING if each.nbytes * each.beta > rule(each) else TREE for each in asked]
        assert wrong_choices(asked, answers).diagnosis == "changes to the ring at another size"
    reversed_answers = [TREE if answer == RING else RING for answer in right]
    assert wrong_choices(asked, reversed_answers).diagnosis == "chooses the slower one"


@pytest.mark.parametrize("seed", range(40))
def test_noise_fails_no_fit_that_looks_at_all_sizes_and_every_one_that_looks_at_the_largest(seed):
    truth = noisy_points(random.Random(seed).choice((4, 6, 8, 12)), random.Random(seed))
    exact = exact_points([truth.points[0][:2]], random.Random(seed)).points
    assert {point[2] for point in exact} == {point[2] for point in truth.points}
    for good in (relative_fit, fit):
        assert wrong_fit(truth, "", good(truth.points)) is None
    alpha, beta = absolute_fit(truth.points)
    assert alpha < 0 and abs(beta / truth.beta - 1) < WORST, "it is right where points are large"
    for shown in (alpha, 0.0, -alpha):
        assert wrong_fit(truth, "", (shown, beta)).diagnosis == "lets the largest size decide"
    lost = wrong_fit(truth, "", (truth.alpha, truth.beta * (1 + 4 * NOISE)))
    assert lost.diagnosis == "lost in the noise"


LINK = (3e-3, 25e-9)


def measured(noise):
    """Points of LINK, one of which takes longer than it would have it by `noise`."""
    sizes = [(RING, 2**10), (RING, 2**18), (RING, 2**20), (TREE, 2**12), (TREE, 2**18)]
    points = [(each, 4, size, cost(each, 4).seconds(*LINK, size)) for each, size in sizes]
    return [*points[:-1], (*points[-1][:3], points[-1][3] * (1 + noise))]


@pytest.mark.parametrize("noise", [0.0, 0.05, 0.5, 2.0])
def test_what_is_allowed_on_measured_points_follows_from_how_noisy_they_are(noise):
    points = measured(noise)
    shown, held_back = points[:3], points[3:]
    own = worst_factor(*relative_fit(shown), points)
    assert own == pytest.approx(1 + noise)
    for good in (relative_fit(shown), fit(shown), LINK):
        assert does_not_predict(good, shown, held_back, own) is None
    for bad in ((1e-4, LINK[1]), (-LINK[0], LINK[1]), (LINK[0], LINK[1] * 30 * (1 + noise))):
        assert does_not_predict(bad, shown, held_back, own) is not None


def test_errors_and_factors_of_a_link():
    points = [(RING, 2, 1000, 2.0), (TREE, 2, 1000, 8.0)]
    link = (2.0, 0.0)  # 4 seconds each
    assert worst_error(*link, points) == 1.0 and worst_factor(*link, points) == 2.0
    assert math.isinf(worst_factor(-1.0, 0.0, points))


SETTING = """
import {module}

def fit(points):
    {attempt}
    return 1e-5, 1e-10

def predict(alpha, beta, n, nbytes, algorithm):
    if algorithm == "ring":
        return 2 * (n - 1) * (alpha + nbytes / n * beta)
    return 2 * (n - 1).bit_length() * (alpha + nbytes * beta)

def choose(alpha, beta, n, nbytes):
    ring, tree = (predict(alpha, beta, n, nbytes, each) for each in ("ring", "tree"))
    return "ring" if ring <= tree else "tree"
"""
LOOKED_UP, RAN = "calls the answer itself", "runs something instead of answering"
ATTEMPTS = {
    "labkit.measure: labkit.measure.fit_alpha_beta([1, 9], [1.0, 2.0], 4)": LOOKED_UP,
    "labkit.calc: labkit.calc.all_reduce_seconds(1, 2, 0, 0)": LOOKED_UP,
    "labkit.grade.graders.alpha_beta_points as its: its.relative_fit(points)": LOOKED_UP,
    "labkit: labkit.run(print, 1)": RAN,
    "subprocess: subprocess.run(['true'])": RAN,
    "labkit.collectives: labkit.collectives.ring_all_reduce": "misses points without noise",
}


@pytest.mark.parametrize("attempt", ATTEMPTS)
@pytest.mark.parametrize("wrapped", ["{}", "try: {}\n    except Exception: pass"])
def test_looking_the_answer_up_or_measuring_is_refused_even_where_it_is_caught(
    attempt, wrapped, tmp_path
):
    module, _, call = attempt.partition(": ")
    file = tmp_path / "mine.py"
    file.write_text(SETTING.format(module=module, attempt=wrapped.format(call)))
    verdict = check(NAME, file, workspace=WORKSPACE)
    assert verdict.diagnosis == ATTEMPTS[attempt], verdict
    if ATTEMPTS[attempt] in (LOOKED_UP, RAN):
        assert verdict.finding.where.file == str(file)


def test_a_helper_thread_does_not_look_it_up_either(tmp_path):
    file = tmp_path / "mine.py"
    call = "labkit.calc.all_reduce_seconds"
    attempt = f"t = threading.Thread(target={call}, args=(1, 2, 0, 0)); t.start(); t.join()"
    file.write_text(SETTING.format(module="labkit.calc, threading", attempt=attempt))
    assert check(NAME, file, workspace=WORKSPACE).diagnosis == LOOKED_UP


def test_nothing_is_measured_for_what_is_wrong_already(monkeypatch):
    monkeypatch.setattr("labkit.grade.graders.alpha_beta.Measured", None)

    def always_a_tree(alpha, beta, n, nbytes):
        return "tree"

    always_a_tree.__name__ = "choose"
    verdict = check(NAME, [fit, predict, always_a_tree], workspace=WORKSPACE)
    assert verdict.diagnosis == "always chooses the tree"


def test_questions_come_from_the_seed_alone():
    ours, theirs, others = (GRADER.questions(random.Random(seed)) for seed in (1, 1, 2))
    assert [each.arguments for each in ours] == [each.arguments for each in theirs]
    assert [each.arguments for each in ours] != [each.arguments for each in others]
    assert all(isinstance(each.known, Asked) for each in ours if each.function != "fit")
