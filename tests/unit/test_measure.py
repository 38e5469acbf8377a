"""Measuring: fits recover what the points were made from, crossings lie where curves cross."""

import random
from functools import partial

import pytest

import labkit
from labkit import Link, Topology, calc, measure, replay, run, viz
from labkit.calc.choice import predicted_crossing
from labkit.measure.algorithms import NAMES, Algorithm, chosen
from labkit.measure.alpha_beta_fit import all_reduce_seconds
from labkit.measure.measured import Measured, crossover, measured_crossing
from labkit.measure.sweep import checked_sizes, times_on_ranks

SIZES = [2**exponent for exponent in range(10, 27, 2)]
ALPHA, BETA = 37e-6, 1 / 1.25e9


def broadcast_seconds(nbytes, n, alpha, beta):
    return calc.collective("broadcast", "binomial", n, nbytes).seconds(alpha, beta)


FORMULAS = {
    "ring": all_reduce_seconds,
    "halving_doubling": partial(all_reduce_seconds, algorithm="halving_doubling"),
    "broadcast": broadcast_seconds,
}


def times(formula, n, alpha=ALPHA, beta=BETA):
    return [formula(nbytes, n, alpha, beta) for nbytes in SIZES]


# --- fit ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [2, 3, 4, 8, 512])
@pytest.mark.parametrize("name", FORMULAS)
def test_a_fit_recovers_the_link_that_the_points_were_made_with(name, n):
    fit = measure.fit_alpha_beta(SIZES, times(FORMULAS[name], n), n, FORMULAS[name])
    assert fit.alpha == pytest.approx(ALPHA, rel=1e-9)
    assert fit.beta == pytest.approx(BETA, rel=1e-9)
    assert fit.bytes_per_s == pytest.approx(1.25e9)
    assert fit.r2 == pytest.approx(1)
    assert max(map(abs, fit.residuals)) < 1e-9


def test_noise_of_a_few_percent_moves_both_by_a_few_percent():
    noise = random.Random(0)
    for _ in range(20):
        seconds = [time * noise.uniform(0.95, 1.05) for time in times(all_reduce_seconds, 4)]
        fit = measure.fit_alpha_beta(SIZES, seconds, 4)
        assert fit.alpha == pytest.approx(ALPHA, rel=0.05)
        assert fit.beta == pytest.approx(BETA, rel=0.05)
        assert fit.r2 > 0.98
        assert max(map(abs, fit.residuals)) < 0.11


def test_small_times_count_as_much_as_large_ones():
    # 5% more at the largest size alone: by absolute errors that is 30 times all of alpha's part.
    seconds = times(all_reduce_seconds, 4)
    seconds[-1] *= 1.05
    assert measure.fit_alpha_beta(SIZES, seconds, 4).alpha == pytest.approx(ALPHA, rel=0.02)


def test_one_time_that_is_ten_times_too_long_does_not_decide():
    seconds = times(all_reduce_seconds, 4)
    seconds[4] *= 10
    fit = measure.fit_alpha_beta(SIZES, seconds, 4)
    assert fit.alpha == pytest.approx(ALPHA, rel=0.15)
    assert fit.beta == pytest.approx(BETA, rel=0.15)
    assert fit.worst_residual == fit.residuals[4] == pytest.approx(0.9, abs=0.02)


def test_a_fit_is_the_least_sum_of_squared_relative_errors():
    noise = random.Random(1)
    seconds = [time * noise.uniform(0.5, 2) for time in times(all_reduce_seconds, 4)]
    fit = measure.fit_alpha_beta(SIZES, seconds, 4)

    def loss(alpha, beta):
        model = times(all_reduce_seconds, 4, alpha, beta)
        return sum((1 - predicted / time) ** 2 for predicted, time in zip(model, seconds))

    least = loss(fit.alpha, fit.beta)
    assert least == pytest.approx(sum(residual**2 for residual in fit.residuals))
    for share in (0.99, 1.01):
        assert loss(fit.alpha * share, fit.beta) > least
        assert loss(fit.alpha, fit.beta * share) > least


def test_r2_compares_with_the_best_constant_under_the_same_weights():
    seconds = [1e-3, 3e-3, 2e-3, 9e-3]
    fit = measure.fit_alpha_beta([2**10, 2**18, 2**20, 2**22], seconds, 4)
    constants = [number * 1e-6 for number in range(1, 9000)]
    best = min(sum((1 - constant / time) ** 2 for time in seconds) for constant in constants)
    assert fit.r2 == pytest.approx(1 - sum(each**2 for each in fit.residuals) / best, rel=1e-4)
    assert 0.3 < fit.r2 < 0.9


@pytest.mark.parametrize("n", [2, 5, 8])
@pytest.mark.parametrize("name", NAMES)
def test_every_named_algorithm_can_be_fitted_at_every_size(name, n):
    (one,) = chosen(name)
    seconds = [one.seconds(nbytes, n, ALPHA, BETA) for nbytes in SIZES]
    fit = measure.fit_alpha_beta(SIZES, seconds, n, one.seconds)
    assert (fit.alpha, fit.beta) == pytest.approx((ALPHA, BETA))


@pytest.mark.parametrize(
    ("seconds", "alpha", "beta"),
    [
        ([1e-3, 1e-3, 0.9e-3], True, False),  # more bytes in less time
        ([1e-6, 3e-3, 13e-3], False, True),  # less than in proportion at the smallest
    ],
)
def test_neither_is_ever_below_zero(seconds, alpha, beta):
    fit = measure.fit_alpha_beta([2**10, 2**20, 2**22], seconds, 4)
    assert (fit.alpha > 0, fit.beta > 0) == (alpha, beta)
    assert fit.bytes_per_s > 0 and repr(fit)


def test_a_constant_time_is_all_latency():
    fit = measure.fit_alpha_beta([2**10, 2**20], [6e-3, 6e-3], 4)
    assert fit.alpha == pytest.approx(1e-3)
    assert fit.beta == pytest.approx(0, abs=1e-15)
    assert fit.r2 == 1.0


@pytest.mark.parametrize(
    ("nbytes", "seconds", "n", "formula", "says"),
    [
        ([1024], [1e-3], 4, all_reduce_seconds, "1 points of one size"),
        ([1024, 1024], [1e-3, 2e-3], 4, all_reduce_seconds, "16 MiB"),
        ([], [], 4, all_reduce_seconds, "0 points"),
        ([1024, 2048], [1e-3], 4, all_reduce_seconds, "2 sizes .*1 "),
        ([1024, 2048], [1e-3, 0], 4, all_reduce_seconds, "seconds=0: .* 2048"),
        ([1024, 2048], [1e-3, 2e-3], 1, all_reduce_seconds, "n=1"),
        (
            [2**20, 2**24],
            [1e-3, 2e-3],
            8,
            partial(all_reduce_seconds, algorithm="tree"),
            "not linear",
        ),
    ],
)
def test_points_that_say_nothing_are_refused(nbytes, seconds, n, formula, says):
    with pytest.raises(ValueError, match=says):
        measure.fit_alpha_beta(nbytes, seconds, n, formula)


# --- crossings ---------------------------------------------------------------------------------


def line(alpha, beta):
    return lambda nbytes: alpha + nbytes * beta


def test_models_cross_where_algebra_says():
    few_latencies, few_bytes = line(1e-3, 4e-8), line(3e-3, 1e-8)
    meet = 2e-3 / 3e-8
    assert predicted_crossing(few_latencies, few_bytes) == (pytest.approx(meet), True)
    assert predicted_crossing(few_bytes, few_latencies) == (pytest.approx(meet), False)
    assert predicted_crossing(few_bytes, few_bytes) is None
    assert predicted_crossing(few_bytes, line(4e-3, 1e-8)) is None


def test_models_that_meet_exactly_where_they_are_asked_cross_there():
    at = 2.0**20
    assert predicted_crossing(line(at, 0), lambda nbytes: nbytes).nbytes == pytest.approx(at)


def test_measured_curves_cross_between_the_sizes_where_the_order_changes():
    first = [1.0, 1.0, 2.0, 8.0]
    second = [2.0, 2.0, 2.0, 2.0]
    assert measured_crossing([1, 10, 100, 1000], first, second) == (pytest.approx(100), True)
    first[2] = 4.0  # log2 of the ratio goes from -1 to 1
    found = measured_crossing([1, 10, 100, 1000], first, second)
    assert found == (pytest.approx(10**1.5), True)
    assert measured_crossing([1, 10, 100, 1000], second, first) == (found.nbytes, False)


def test_a_crossing_never_lies_outside_the_sizes_beside_it():
    noise = random.Random(2)
    sizes = [1000, 3000, 7000, 11_000]
    for _ in range(300):
        first, second = ([noise.choice([1.0, 1.1, 1.3]) for _ in sizes] for _ in range(2))
        found = measured_crossing(sizes, first, second)
        if found is not None:
            assert sizes[0] <= found.nbytes <= sizes[-1]


def test_one_point_out_of_line_is_no_crossing():
    sizes = [1, 10, 100, 1000, 10_000]
    assert measured_crossing(sizes, [1, 1, 1.1, 1, 1], [2, 2, 1, 2, 2]) is None
    found = measured_crossing(sizes, [1, 1.2, 1, 2, 2], [2, 1, 2, 1, 1])
    assert 100 < found.nbytes < 1000 and found.first_is_below
    assert measured_crossing(sizes, [1] * 5, [1] * 5) is None
    assert measured_crossing([1], [1], [2]) is None


def test_where_measurement_and_model_contradict_each_other_the_model_names_the_faster():
    assert crossover("a", "b", None, None) is None
    measured = measured_crossing([1, 100], [2, 1], [1, 2])
    found = crossover("a", "b", measured, predicted_crossing(line(10, 2), line(20, 1)))
    assert (found.small, found.large, found.measured_bytes) == ("a", "b", None)
    found = crossover("a", "b", measured, None)
    assert (found.small, found.large, found.predicted_bytes) == ("b", "a", None)
    assert "b below, a above: measured at 10 B" in repr(found)


# --- a sweep, made up --------------------------------------------------------------------------


def made_up(sizes=SIZES, n=4, names=("tree", "ring")):
    """Three calls of each, of which the middle one is what the formula says."""
    samples = {
        one.name: {
            nbytes: [one.seconds(nbytes, n, ALPHA, BETA) * share for share in (3, 0.5, 1)]
            for nbytes in sizes
        }
        for one in chosen(names)
    }
    return Measured(n, tuple(sizes), tuple(chosen(names)), samples)


def test_a_sweep_has_medians_bandwidths_and_one_link():
    measured = made_up()
    nbytes = 2**20
    seconds = calc.collective("all_reduce", "ring", 4, nbytes).seconds(ALPHA, BETA)
    assert measured.seconds["ring"][nbytes] == pytest.approx(seconds)
    assert measured.algbw["ring"][nbytes] == pytest.approx(nbytes / seconds)
    assert measured.busbw["ring"][nbytes] == pytest.approx(1.5 * nbytes / seconds)
    assert measured.predicted["ring"][nbytes] == pytest.approx(seconds)
    for fit in (*measured.fits.values(), measured.fit_together(), measured.fit_together("tree")):
        assert (fit.alpha, fit.beta) == pytest.approx((ALPHA, BETA))
    assert len(measured.fit_together().residuals) == 2 * len(SIZES)
    with pytest.raises(ValueError, match="'mesh' was not measured"):
        measured.fit_together("mesh")


def test_a_sweep_finds_where_tree_and_ring_change_places():
    (found,) = made_up().crossovers
    assert (found.small, found.large) == ("tree", "ring")
    # 6 steps of a quarter each against fewer of all bytes.
    tree, ring = (one.seconds for one in chosen(["tree", "ring"]))
    at = found.predicted_bytes
    assert tree(at, 4, ALPHA, BETA) == pytest.approx(ring(at, 4, ALPHA, BETA))
    assert found.measured_bytes == pytest.approx(at, rel=0.15)
    assert made_up(sizes=[2**20, 2**24]).crossovers == []  # far beyond what was measured


def test_the_table_says_it_all():
    lines = made_up(sizes=[2**10, 2**20]).table().splitlines()
    assert lines[2].split() == "size algorithm time algbw busbw model residual".split()
    assert lines[3].startswith("1 KiB  tree") and lines[3].endswith("+0%")
    assert any("ring" in line and "37 us" in line and "1.25 GB/s" in line for line in lines)


def test_one_size_gives_times_and_no_model():
    measured = made_up(sizes=[2**20])
    assert "model" not in measured.table() and "ring" in measured.table()
    assert measured.draw().png().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="alpha"):
        _ = measured.fits


def test_the_picture_has_points_lines_and_the_crossover():
    picture = made_up().draw()
    time_axes, speed_axes = picture.axes
    points = {curve.get_label(): curve for curve in time_axes.lines if curve.get_label() in NAMES}
    assert list(points["ring"].get_xdata()) == SIZES
    assert points["ring"].get_ydata()[0] == pytest.approx(
        calc.collective("all_reduce", "ring", 4, SIZES[0]).seconds(ALPHA, BETA)
    )
    marks = [curve for curve in time_axes.lines if len(curve.get_xdata()) == 1]
    assert sorted(curve.get_marker() for curve in marks) == ["D", "o"]
    (found,) = made_up().crossovers
    assert {curve.get_xdata()[0] for curve in marks} == {
        found.measured_bytes,
        found.predicted_bytes,
    }
    assert [text.get_text() for text in time_axes.texts] == [calc.bytes_text(found.predicted_bytes)]
    assert speed_axes.get_ylim()[1] > 1e9
    assert len(picture.png()) < 100_000


# --- a sweep, for real -------------------------------------------------------------------------


def mine(x, group):
    return group.all_reduce(x)


def test_a_real_sweep_measures_names_and_functions():
    measured = labkit.measure.collectives(["4 KiB", 1024], 2, [*NAMES, mine], repetitions=3)
    assert measured.sizes == (1024, 4096)
    assert list(measured.seconds) == [*NAMES, "mine"]
    for by_size in measured.samples.values():
        assert [len(seconds) for seconds in by_size.values()] == [3, 3]
        assert all(second > 0 for seconds in by_size.values() for second in seconds)
    assert measured.table() and measured.draw().png()
    assert measured.fits["mine"].alpha >= 0


THROTTLED = Topology(hosts=1, ranks_per_host=2, fast=Link(2e6, 20e-3))


def test_on_throttled_links_a_sweep_finds_the_links():
    """The sweep's calls of real ranks, replayed over the links, and fitted."""
    sizes, (ring,) = [1024, 2**17], chosen("ring")
    seconds = []
    for size in sizes:
        timelines = run(times_on_ranks, 2, ([ring], [size], 1)).timeline
        replayed = replay(timelines, THROTTLED)
        barriers = [op for op in replayed[0].operations if op.kind == "barrier"]
        seconds.append(max(each.end_s for each in replayed) - barriers[-1].done_s)
    fit = measure.fit_alpha_beta(sizes, seconds, 2)
    assert fit.alpha == pytest.approx(THROTTLED.fast.alpha, rel=1e-9)
    assert fit.beta == pytest.approx(THROTTLED.fast.beta, rel=1e-9)


def test_in_real_time_no_call_of_a_sweep_is_faster_than_the_links():
    """benchmarks/links.py prints the times of this machine."""
    measured = measure.collectives(
        ["1 KiB", "16 KiB"], 2, "ring", repetitions=2, topology=THROTTLED
    )
    for nbytes, samples in measured.samples["ring"].items():
        assert min(samples) >= all_reduce_seconds(nbytes, 2, 20e-3, 1 / 2e6)
    assert "on 1 host with 2 ranks each" in measured.table()


def half_a_sum(x, group):
    return group.all_reduce(x) / 2


def nothing(x, group):
    x + 1


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (half_a_sum, "half_a_sum"),
        (nothing, "nothing"),
    ],
)
def test_a_wrong_all_reduce_is_not_timed(wrong, says):
    with pytest.raises(labkit.RankError, match=says):
        measure.collectives([1024], 2, wrong, repetitions=1)


def times_of_three(world):
    log = []
    calls = {name: (lambda name=name: log.append(name)) for name in "abc"}
    seconds = measure.alternate(world, calls, 4, before=lambda: log.append("."))
    return log, seconds


def test_candidates_take_turns_and_the_first_round_warms_up():
    (log, own), (_, other) = labkit.run(times_of_three, 2).values
    rounds = ["".join(log[start : start + 6]) for start in range(0, len(log), 6)]
    assert rounds == [".a.b.c", ".b.c.a", ".c.a.b", ".a.b.c", ".b.c.a"]
    joined = measure.slowest([own, other])
    for name in "abc":
        assert len(own[name]) == 4
        assert joined[name] == [max(pair) for pair in zip(own[name], other[name])]


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ((["1 KiB"], 2, ["rings"]), ValueError, "no algorithm 'rings'"),
        ((["1 KiB"], 2, []), ValueError, "one or more"),
        ((["1 KiB"], 2, ["ring", "ring"]), ValueError, "each once"),
        ((["1 KiB"], 1, ["ring"]), ValueError, "2 ranks or more"),
        (([], 2, ["ring"]), ValueError, "sizes is empty"),
        ((["1 km"], 2, ["ring"]), ValueError, "unit 'km'"),
        ((["3 ms"], 2, ["ring"]), ValueError, "no size"),
        (([0], 2, ["ring"]), ValueError, "0"),
        (([1023], 2, ["ring"]), ValueError, "try 1020"),
        (([1024.5], 2, ["ring"]), ValueError, "1024.5"),
        ((["1 TiB"], 2, ["ring"]), ValueError, "4 GiB"),
    ],
)
def test_what_cannot_be_measured_is_refused(arguments, error, says):
    with pytest.raises(error, match=says):
        measure.collectives(*arguments)


def test_repetitions_and_algorithms_that_are_not_throttled_are_checked_before_anything_runs():
    with pytest.raises(ValueError, match="repetitions=0"):
        measure.collectives([1024], 2, ["ring"], repetitions=0)
    topology = Topology(hosts=1, ranks_per_host=2, fast=Link(1e9))
    with pytest.raises(ValueError, match="gloo, shared_memory"):
        measure.collectives([1024], 2, ["gloo", "ring", "shared_memory"], topology=topology)


def test_sizes_are_sorted_and_counted_once():
    assert checked_sizes(["64 KiB", 1024, "1024", 2.0**20]) == [1024, 2**16, 2**20]


def test_algorithms_may_be_given_in_three_ways():
    own = Algorithm("own", mine, all_reduce_seconds)
    names = [one.name for one in chosen(["ring", mine, own])]
    assert names == ["ring", "mine", "own"]
    assert [one.name for one in chosen("tree")] == ["tree"]


def test_a_tensor_on_one_rank_costs_nothing():
    for name in NAMES:
        (one,) = chosen(name)
        assert one.seconds(1024, 1, ALPHA, BETA) == 0


def test_curves_that_cannot_be_drawn_are_refused():
    curve = viz.Curve("ring", [1024], [1e-3])
    for curves in ([], [curve, curve], [viz.Curve("ring", [], [])]):
        with pytest.raises(ValueError, match="at least one"):
            viz.latency_bandwidth(curves, 2)


def model_of(name):
    samples = {"ring": {1024: [1e-3], 2**20: [2e-3]}}
    ring = chosen("ring")
    return measure.Measured(4, (1024, 2**20), tuple(ring), samples).model(name)


def test_a_model_of_what_was_not_measured_is_refused_with_what_was():
    assert model_of("ring")(2**20) == pytest.approx(2e-3, rel=0.1)
    with pytest.raises(ValueError, match="'x' .* ring"):
        model_of("x")


def test_calls_are_repeated_once_or_more():
    with pytest.raises(ValueError, match="repetitions=0"):
        measure.alternate(None, {"nothing": print}, 0)
