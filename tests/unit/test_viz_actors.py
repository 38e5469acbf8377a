"""Pictures of returns and of idle ranks."""

from dataclasses import replace

import pytest

from labkit import viz
from labkit.rl.history import Episode, History


def history(totals, seconds_per_episode=1.0):
    episodes = [
        Episode(10 * n, n * seconds_per_episode, total, 1) for n, total in enumerate(totals, 1)
    ]
    seconds = len(totals) * seconds_per_episode
    return History(episodes, seconds, 5, [0, 40], [seconds / 4, 0.0], [], {})


def test_returns_are_drawn_against_samples_and_seconds():
    histories = {"fast": history([1.0, 3.0, 5.0], 0.5), "slow": history([2.0, 2.0, 8.0])}
    picture = viz.returns(histories, title="two runs", threshold=4.0, window=2)
    left, right = picture.axes
    assert left.get_ylim() == right.get_ylim()
    fast, slow, threshold = left.lines
    assert (list(fast.get_xdata()), list(fast.get_ydata())) == ([20, 30], [2.0, 4.0])
    assert list(slow.get_ydata()) == [2.0, 5.0] and threshold.get_ydata()[0] == 4.0
    assert list(right.lines[0].get_xdata()) == [1.0, 1.5]
    assert right.lines[0].get_color() == fast.get_color() != slow.get_color()
    assert "slow up to 5" in picture.caption


def test_idle_time_has_a_bar_for_each_rank():
    picture = viz.idle_by_rank({"a": history([1.0]), "b": history([1.0] * 8)}, title="waiting")
    for axes in picture.axes:
        assert [bars[0].get_height() for bars in axes.containers] == [25, 0]
    assert "a: 25%, 0%" in picture.caption


def test_ages_are_shares_of_all_uses_with_their_mean():
    old = replace(history([1.0]), staleness=[0, 0, 1, 3])
    picture = viz.policy_lag({"a": old, "b": replace(old, staleness=[2])}, title="ages")
    left, right = picture.axes
    assert [bar.get_height() for bar in left.containers[0]] == [50, 25, 0, 25]
    assert [bar.get_height() for bar in right.containers[0]] == [0, 0, 100]
    assert left.lines[0].get_xdata()[0] == 1
    assert "a 1.0, b 2.0" in picture.caption


@pytest.mark.parametrize(
    ("draw", "words"),
    [
        (lambda: viz.returns({}, title="t"), "0 lines: .* 1 to 6"),
        (lambda: viz.returns({"a": history([1.0])}, title="t"), "a has 1 episodes, .* of 100"),
        (lambda: viz.idle_by_rank({}, title="t"), "0 panels: .* 1 to 4"),
        (lambda: viz.policy_lag({}, title="t"), "0 panels: .* 1 to 4"),
        (lambda: viz.policy_lag({"a": history([1.0])}, title="t"), "a has no staleness"),
    ],
)
def test_nothing_to_draw_is_refused(draw, words):
    with pytest.raises(ValueError, match=words):
        draw()
