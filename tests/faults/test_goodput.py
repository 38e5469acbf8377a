"""Failures at random moments, and where the time of a job goes that meets them."""

from statistics import mean

import pytest

from labkit import viz
from labkit.elastic import Goodput, goodput, measure_goodput
from labkit.elastic.goodput import Event, Failure, account, draw_failures


def test_failures_are_a_poisson_process_and_the_same_for_the_same_seed():
    drawn = draw_failures(2.0, 4, 5000, seed=3)
    assert drawn == draw_failures(2.0, 4, 5000, seed=3) != draw_failures(2.0, 4, 5000, seed=4)
    gaps = [failure.after_s for failure in drawn]
    assert mean(gaps) == pytest.approx(2.0, rel=0.06)  # four times its deviation, 2/sqrt(5000)
    assert mean(gap > 2.0 for gap in gaps) == pytest.approx(0.368, abs=0.028)  # exp(-1)
    assert {failure.rank for failure in drawn} == {0, 1, 2, 3}


def test_each_span_of_time_is_counted_once():
    given = """
        0 0 down 0 | 1 1 step 0 | 3 1 step 1 | 4 1 write 0 | 9 1 step 2 | 12 1 step 3 | 14 1 down 0
        14.5 1 step 4 | 20 2 step 2 | 23 2 step 3 | 25 2 write 0 | 26 2 down 0
        30 3 step 2 | 32 3 step 3 | 34 3 write 0 | 37 3 end 0
    """.replace("\n", "|").split("|")
    fields = [line.split() for line in given if line.strip()]
    found = account([Event(float(t), int(a), kind, int(step)) for t, a, kind, step in fields])
    assert found.wall_s == 36  # from the first step
    assert found.useful_s == 2 + 1 + 2 + 2
    assert found.writing_s == 5 + 1 + 3  # the killed one is writing, too
    assert found.repeated_s == 3 + 2 + 3 + 2
    assert found.down_s == 6 + 4
    assert (found.num_steps, found.num_writes, found.num_failures) == (4, 3, 2)
    assert found.share == 7 / 36


def test_a_real_job_that_fails_accounts_for_all_of_its_time(monkeypatch):
    """Two jobs side by side: one saves after each step, and one never does.

    Their steps take 1.2 s at least, and a rank is killed 1, 2, 3, ... s after an attempt began, so
    that an attempt which ends has made steps before. Which interval is better depends on what this
    machine takes for a write and a restart: notebook 22 measures it.
    """
    failures = [Failure(1.0 + number, number % 2) for number in range(200)]
    monkeypatch.setattr(goodput, "draw_failures", lambda *_: failures)
    by_interval = measure_goodput([1, 100], seeds=[0], num_steps=12, step_s=0.1)
    (often,), (never,) = by_interval.values()
    for found in (often, never):
        parts = found.useful_s, found.writing_s, found.repeated_s, found.down_s
        assert sum(parts) == pytest.approx(found.wall_s, abs=1e-6)
        assert min(parts) >= 0
        assert found.num_steps == 12
        assert found.num_failures > 0 and found.down_s > 0
        assert found.useful_s >= 12 * 0.1
    assert often.num_writes >= 12 and often.writing_s >= 12 * 0.03
    assert never.num_writes == 0 == never.writing_s
    assert never.repeated_s > 0  # all steps of an attempt that was ended
    assert (often + never).num_steps == 24


def test_the_picture_has_a_point_per_interval_and_says_the_best_by_formula():
    def job(useful_s):
        return Goodput(10.0, useful_s, 1.0, 8.0 - useful_s, 1.0, 100, 5, 2)

    measured = {4: [job(2.0), job(3.0)], 40: [job(7.0), job(1.0)]}
    picture = viz.goodput(measured, {"formula": lambda interval_s: 0.5}, {"Young": 0.3})
    (axes,) = picture.axes
    (dots,) = [line for line in axes.lines if line.get_marker() == "o"]
    step_s = 13.0 / 400
    assert dots.get_xdata() == pytest.approx([4 * step_s, 40 * step_s])
    assert dots.get_ydata() == pytest.approx([0.25, 0.4])
    spreads = [list(line.get_ydata()) for line in axes.lines[:2]]
    assert spreads == [[0.2, 0.3], [0.1, 0.7]]
    assert picture.caption.endswith("best by Young 300 ms")
