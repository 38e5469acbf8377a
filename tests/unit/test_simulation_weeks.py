"""Weeks with failures: against the exact expectation, the first order where it holds, and by hand.

With exponential failures a turn of work T and write W takes, restarts R that can fail included,
M e^(R/M) (e^((T + W)/M) - 1) on average (Daly 2006, equation 13): goodput is T over that.
"""

import math
import statistics

import pytest

from labkit import calc
from labkit.calc import simulate
from labkit.calc.simulate import Spares

HOUR = 3600.0


def exact_goodput(interval_s, write_s, restart_s, mtbf_s):
    return 1 - calc.lost_share(interval_s, write_s, mtbf_s, restart_s, "daly").value


def weeks(interval_s, write_s, restart_s, mtbf_s, num_weeks=2000, **other):
    """1,000 GPUs that fail so often, with steps short enough to round nothing."""
    hours = 1000 * mtbf_s / HOUR
    return simulate.weeks(1, 1000, hours, write_s, interval_s, restart_s, weeks=num_weeks, **other)


@pytest.mark.parametrize(
    ("interval_s", "write_s", "restart_s"),
    [
        (0.1 * HOUR, 0, 0),
        (0.1 * HOUR, 36, HOUR),
        (HOUR, 36, 0.1 * HOUR),
        (HOUR, 0.5 * HOUR, HOUR),
        (3 * HOUR, 0, 0.1 * HOUR),
        (3 * HOUR, 0.5 * HOUR, 0),
    ],
)
def test_goodput_is_the_exact_expectation(interval_s, write_s, restart_s):
    mtbf_s = 2 * HOUR
    found = weeks(interval_s, write_s, restart_s, mtbf_s, num_weeks=1500)
    # Over a hundred thousand failures: their mean is within half a percent or so.
    expected = exact_goodput(interval_s, write_s, restart_s, mtbf_s)
    assert found.goodput == pytest.approx(expected, rel=0.015)


def test_the_parts_are_all_of_the_time():
    for given in ({}, {"blocked_share": 0.1}, {"spares": Spares(num_nodes=1, repair_s=9 * HOUR)}):
        found = weeks(HOUR, 100, 600, 3 * HOUR, num_weeks=10, **given)
        assert sum(found.shares.values()) == pytest.approx(1)
        assert found.num_steps == pytest.approx(found.useful_s)
        assert found.waiting_s <= found.down_s


def test_failures_come_as_often_as_the_gpus_fail():
    found = simulate.weeks(5, 16384, 50_000, 10, 600, 0, weeks=500)
    expected = 500 * 7 * 24 * 16384 / 50_000
    assert found.num_failures == pytest.approx(expected, abs=4 * math.sqrt(expected))


def test_the_first_order_is_right_in_the_limit_of_rare_failures():
    mtbf_s = 1e7
    for share, error in ((1e-6, 0.01), (1e-4, 0.03)):
        write_s = share * mtbf_s
        interval_s = calc.checkpoint_interval(write_s, mtbf_s).value
        lost = calc.lost_share(interval_s, write_s, mtbf_s, restart_s=write_s).value
        exact = 1 - exact_goodput(interval_s, write_s, write_s, mtbf_s)
        assert exact == pytest.approx(lost, rel=error)
        found = 1 - weeks(interval_s, write_s, write_s, mtbf_s, num_weeks=3e5).goodput
        assert found == pytest.approx(lost, rel=0.03)


@pytest.mark.parametrize(
    ("share", "by_formula", "here"), [(0.01, 0.141, 0.135), (0.1, 0.447, 0.386)]
)
def test_where_the_first_order_stops_holding(share, by_formula, here):
    mtbf_s = 10 * HOUR
    interval_s = calc.checkpoint_interval(share * mtbf_s, mtbf_s)
    lost = calc.lost_share(interval_s, share * mtbf_s, mtbf_s)
    found = 1 - weeks(interval_s, share * mtbf_s, 0, mtbf_s, num_weeks=3000).goodput
    assert (float(lost), found) == (
        pytest.approx(by_formula, abs=6e-4),
        pytest.approx(here, abs=3e-3),
    )


def test_where_young_loses_all_daly_does_a_little_better_than_young():
    mtbf_s, write_s = 10 * HOUR, 5 * HOUR

    def lost(method):
        interval_s = calc.checkpoint_interval(write_s, mtbf_s, method)
        return 1 - weeks(interval_s, write_s, 0, mtbf_s, num_weeks=5000).goodput

    assert lost("young") == pytest.approx(0.713, abs=3e-3)
    assert lost("daly") == pytest.approx(0.698, abs=3e-3)


def test_no_other_interval_beats_youngs_by_much_where_it_holds():
    mtbf_s, write_s = 10 * HOUR, 60
    best = calc.checkpoint_interval(write_s, mtbf_s).value

    def goodput(factor):
        return weeks(factor * best, write_s, 0, mtbf_s, num_weeks=1000).goodput

    assert goodput(1) > max(goodput(0.5), goodput(2))
    assert goodput(1) > max(goodput(0.8), goodput(1.25)) - 1e-3


def test_one_failure_by_hand(monkeypatch):
    """Fails after 250 s, while it restarts, and no more."""
    times = iter([250.0, 7.0, 1e9, 1e9])
    monkeypatch.setattr("random.Random.expovariate", lambda self, rate: next(times))
    found = simulate.weeks(1, 8, 1000, 10, 100, 20, detect_s=5, weeks=1)
    assert (found.num_interruptions, found.num_failed_restarts) == (1, 1)
    assert found.redone_s == 30  # 100 + 10 + 100 + 10, and 30 of the third turn
    assert found.down_s == 7 + 25
    worked = 7 * 86400 - 250 - 32
    turns, rest = divmod(worked, 110)
    assert found.writing_s == 20 + 10 * turns + max(0, rest - 100)
    assert found.num_checkpoints == 2 + turns
    assert found.useful_s == 7 * 86400 - 30 - 32 - found.writing_s


def test_an_asynchronous_checkpoint_counts_when_it_is_complete(monkeypatch):
    times = iter([250.0, 1e9, 1e9])
    monkeypatch.setattr("random.Random.expovariate", lambda self, rate: next(times))
    # Blocked for 10 of 60 s: turns of 110 s, and the second one's 50 s more end at 270.
    found = simulate.weeks(1, 8, 1000, 60, 100, 20, weeks=1, blocked_share=1 / 6)
    assert found.redone_s == pytest.approx(130)
    times = iter([275.0, 1e9, 1e9])
    found = simulate.weeks(1, 8, 1000, 60, 100, 20, weeks=1, blocked_share=1 / 6)
    assert found.redone_s == pytest.approx(55)


def test_writing_beside_the_work_costs_less_than_waiting_for_it():
    blocking = weeks(HOUR, 300, 600, 10 * HOUR)
    beside = weeks(HOUR, 300, 600, 10 * HOUR, blocked_share=0.1)
    assert blocking.shares["writing"] == pytest.approx(0.07, abs=0.01)
    assert beside.shares["writing"] < 0.2 * blocking.shares["writing"]
    assert beside.shares["redone"] > blocking.shares["redone"]  # complete only later
    assert beside.goodput > blocking.goodput + 0.04


def test_spare_nodes_shorten_what_a_job_waits():
    def waiting(num_nodes):
        spares = Spares(num_nodes=num_nodes, repair_s=24 * HOUR)
        found = weeks(HOUR, 60, 600, 12 * HOUR, spares=spares)
        return found.waiting_s / found.total_s

    shares = [waiting(num) for num in (0, 1, 2, 8)]
    # Without one: it works 12 h, then waits 24 h, restarts of failures meanwhile apart.
    assert shares[0] > 0.6
    assert shares == sorted(shares, reverse=True)
    assert shares[-1] < 1e-3
    always = weeks(HOUR, 60, 600, 12 * HOUR).goodput
    many = weeks(HOUR, 60, 600, 12 * HOUR, spares=Spares(num_nodes=99, repair_s=HOUR)).goodput
    assert many == always


def test_a_job_waits_for_a_node_as_often_as_erlang_says():
    """Nodes fail only while the job runs, so it waits when all s + 1 are broken: Erlang's B formula
    with s + 1 lines, a load of (running time per failure) : (repair), and calls that are lost."""
    mtbf_s, repair_s = 3 * HOUR, 24 * HOUR
    for num_nodes in (4, 8):
        blocked = 1.0
        for lines in range(1, num_nodes + 2):
            blocked = blocked * repair_s / (lines * mtbf_s + blocked * repair_s)
        spares = Spares(num_nodes=num_nodes, repair_s=repair_s)
        found = weeks(HOUR, 60, 300, mtbf_s, spares=spares)
        assert found.waiting_s / found.total_s == pytest.approx(blocked, rel=0.02)


def test_a_seed_gives_the_same_weeks_and_others_scatter_around_their_mean():
    def goodput(seed):
        return weeks(HOUR, 60, 600, 5 * HOUR, num_weeks=8, seed=seed).goodput

    assert goodput(1) == goodput(1) != goodput(2)
    mean = statistics.fmean(goodput(seed) for seed in range(100))
    assert mean == pytest.approx(exact_goodput(HOUR, 60, 600, 5 * HOUR), rel=0.01)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"step_s": 0}, "a step takes time"),
        ({"interval_s": 0}, "interval_s=0"),
        ({"num_gpus": 0}, "num_gpus=0"),
        ({"restart_s": -1}, "restart_s=-1"),
        ({"blocked_share": 2}, "0 to 1"),
        ({"blocked_share": 0, "checkpoint_write_s": 9000}, "give a longer interval"),
        ({"weeks": 0}, "weeks=0"),
        ({"gpu_hours_between_interruptions": 0}, "give GPU-hours"),
    ],
)
def test_what_no_run_has_is_refused(wrong, said):
    right = {
        "step_s": 5,
        "num_gpus": 8,
        "gpu_hours_between_interruptions": 1e5,
        "checkpoint_write_s": 60,
        "interval_s": 3600,
        "restart_s": 600,
    }
    with pytest.raises(ValueError, match=said):
        simulate.weeks(**{**right, **wrong})
    with pytest.raises(ValueError, match="0 or more"):
        Spares(num_nodes=-1, repair_s=0)


def test_the_interval_that_counts_is_that_of_whole_steps():
    with pytest.raises(ValueError, match="after 60 s"):
        calc.simulate.weeks(60, 1000, 50_000, 80, 89, 0, blocked_share=0)
    assert calc.simulate.weeks(60, 1000, 50_000, 80, 91, 0, blocked_share=0).num_checkpoints
