"""Fits find the laws that made the times, and separate communication from computation."""

import pytest

from labkit import Link, Topology, measure, replay
from labkit.launch import launch
from labkit.measure import scaling_law
from labkit.measure.scaling_law import Point, Scaling
from labkit.viz.performance import scaling_curves

SERIAL_S, PARALLEL_S = 0.02, 0.18


def made_up(communication_s):
    """By Amdahl's law, and seconds of communication by number of ranks."""
    strong = {n: (SERIAL_S + PARALLEL_S / n, waits) for n, waits in communication_s.items()}
    weak = {n: (SERIAL_S + PARALLEL_S, waits) for n, waits in communication_s.items()}
    strong, weak = (
        {n: Point(work + waits, waits) for n, (work, waits) in each.items()}
        for each in (strong, weak)
    )
    return Scaling(16, strong, weak)


SILENT = made_up({1: 0, 2: 0, 4: 0})
TALKING = made_up({1: 0, 2: 0.02, 4: 0.03})


def test_efficiency_is_by_ranks_where_the_work_is_divided_and_not_where_it_grows():
    assert TALKING.strong_efficiency(1) == TALKING.weak_efficiency(1) == 1
    assert TALKING.strong_efficiency(4) == pytest.approx(0.2 / (4 * 0.095))
    assert TALKING.weak_efficiency(4) == pytest.approx(0.2 / 0.23)


def test_the_laws_recover_the_serial_share():
    assert SILENT.amdahl == pytest.approx((SERIAL_S, PARALLEL_S))
    assert SILENT.amdahl.serial_share == pytest.approx(0.1)
    assert SILENT.gustafson == pytest.approx(0.1)
    assert SILENT.scaled_speedup(4) == pytest.approx(4 - 0.1 * 3)


def test_communication_is_no_serial_work_and_counts_where_it_is_asked_for():
    assert TALKING.amdahl == pytest.approx((SERIAL_S, PARALLEL_S))
    assert TALKING.amdahl_of_all.serial_share > 0.2
    assert TALKING.gustafson > 0.15
    for fact in ("lost 45 ms", "communication is 30 ms", "serial share 10.0%", "10 x"):
        assert fact in TALKING.table()


def test_the_picture_has_points_a_line_and_bars():
    picture = TALKING.draw()
    curves, bars = picture.axes
    assert list(curves.lines[2].get_xdata()) == [1, 2, 4]
    assert curves.lines[2].get_ydata()[-1] == pytest.approx(0.2 / 0.095)
    widths = [bar.get_width() for bar in bars.patches]
    assert widths[4:6] == pytest.approx([0.065, 0.03])
    assert "2.11 x" in picture.caption and "53% efficient" in picture.caption


LINK = Link(2e6, 1e-3)
# A ring of two: each sends all 4 x 5 x 64 x 65 bytes once, in two messages.
BYTES_S = 4 * 5 * 64 * 65 / 2e6


def test_a_timed_step_scales_as_it_was_made_to():
    """Steps of real ranks, replayed over the links: 4 rows on each rank (strong), and 8 (weak)."""
    topology = Topology(hosts=1, ranks_per_host=2, fast=LINK)
    args = scaling_law.timed_step, (4, 8), 1
    timelines = launch(scaling_law._steps_on_rank, 2, [args], echo=False, timeout=600).timeline

    def work_s(rank, region):
        if region.name == scaling_law.LAYERS:
            layers = [r for r in timelines[rank].regions if r.name == region.name]
            return (0.04, 0.04, 0.08, 0.08)[layers.index(region)]  # each once to warm up
        return 0.02 if region.name == scaling_law.UPDATE else 0.0

    found = scaling_law._points(replay(timelines, topology, work_s), 1)
    for point, own_s in zip(found, (0.06, 0.10), strict=True):
        assert point.communication_s == pytest.approx(2 * LINK.alpha + BYTES_S, rel=1e-9)
        assert point.seconds == pytest.approx(own_s + point.communication_s, rel=1e-9)


def test_in_real_time_a_step_takes_no_less():
    """How much more it takes on this machine, benchmarks/links.py prints."""
    found = measure.scaling(ranks=(1, 2), batch=8, num_steps=1, link=LINK, timeout=600)
    assert found.strong[1].communication_s == found.weak[1].communication_s == 0
    assert found.strong[1].seconds >= 0.10 and found.weak[1].seconds >= 0.10
    assert found.strong[2].seconds >= 0.06 + BYTES_S
    assert found.weak[2].seconds >= 0.10 + BYTES_S


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"ranks": (2, 4)}, ValueError, r"ranks=\(2, 4\)"),
        ({"ranks": (1,)}, ValueError, r"ranks=\(1,\)"),
        ({"ranks": (1, 3)}, ValueError, "divide batch=16"),
    ],
)
def test_what_cannot_be_compared_is_refused(options, error, words):
    with pytest.raises(error, match=words):
        measure.scaling(**options)


def test_a_picture_without_one_rank_is_refused():
    with pytest.raises(ValueError, match=r"\[2\]"):
        scaling_curves({2: (1.0, 0.0)}, {}, lambda n: 1.0)
