"""A step's terms as bars; and the four traces of an H200 that come with the package."""

import pytest

from labkit import profile, viz
from labkit.profile.h200_traces import H200_NAMES


@pytest.mark.parametrize(
    ("name", "cause", "step_ms", "compute_ms"),
    [
        ("large_model", "compute", 57.6, 56.2),
        ("small_model", "launch", 22.3, 4.6),
        ("item_per_layer", "launch", 29.9, 4.7),
        ("slow_loader", "input", 48.5, 13.5),
    ],
)
def test_what_bounds_a_run_on_an_h200(name, cause, step_ms, compute_ms):
    trace = profile.h200_trace(name)
    steps = profile.breakdown(trace)[0]
    assert len(steps) == 4
    assert profile.diagnose(trace)[0].cause == cause
    assert sum(step.total for step in steps) / 4 == pytest.approx(step_ms / 1e3, abs=5e-5)
    mean_s = sum(step.seconds["compute"] for step in steps) / 4
    assert mean_s == pytest.approx(compute_ms / 1e3, abs=5e-5)


def test_only_the_loader_is_a_fault():
    faults = {name: profile.diagnose(profile.h200_trace(name))[0].is_fault for name in H200_NAMES}
    assert [name for name, is_fault in faults.items() if is_fault] == ["slow_loader"]


def test_another_name_is_refused_with_those_there_are():
    with pytest.raises(ValueError, match="'h100'.* large_model"):
        profile.h200_trace("h100")


def bars_of(axes):
    """(row, left, seconds) of each part of each bar."""
    return [(box.get_y(), box.get_x(), box.get_width()) for box in axes.patches]


def test_bars_are_as_long_as_steps_and_their_parts_follow_each_other():
    traces = {name: profile.h200_trace(name) for name in ("small_model", "slow_loader")}
    picture = viz.step_terms(traces)
    (axes,) = picture.axes
    parts = bars_of(axes)
    present = len(parts) // 2
    for number, trace in enumerate(traces.values()):
        own = parts[present * number : present * (number + 1)]
        steps = profile.breakdown(trace)[0]
        total_s = sum(step.total for step in steps) / len(steps)
        assert sum(seconds for _, _, seconds in own) == pytest.approx(total_s, rel=0.01)
        assert len({row for row, _, _ in own}) == 1
        for (_, left, seconds), (_, after, _) in zip(own, own[1:]):
            assert after == pytest.approx(left + seconds)
    texts = [text.get_text() for text in axes.texts]
    assert "22.3 ms" in texts and "21.9" in texts
    entries = [text.get_text() for text in picture.legends[0].get_texts()]
    assert entries == ["compute", "data", "host"]
    assert "small_model, slow_loader" in picture.caption


def test_a_picture_has_bars_but_not_too_many():
    with pytest.raises(ValueError, match="0 bars"):
        viz.step_terms({})
    trace = profile.h200_trace("small_model")
    with pytest.raises(ValueError, match="33 bars"):
        viz.step_terms({str(number): trace for number in range(33)})
