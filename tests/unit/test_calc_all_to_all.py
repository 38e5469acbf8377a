"""calc of the pairwise all-to-all against sums done by hand."""

import pytest

from labkit import calc

ROWS = [[9, 2, 0], [1, 9, 4], [3, 3, 9]]


def test_a_rank_sends_its_row_but_what_stays():
    assert [calc.pairwise_all_to_all_sent_bytes(ROWS[r], 10, r) for r in range(3)] == [20, 50, 60]
    assert [calc.pairwise_all_to_all_messages(ROWS[r], 10, r) for r in range(3)] == [1, 2, 2]
    assert calc.pairwise_all_to_all_messages(ROWS[1], 0, 1) == 0
    assert calc.pairwise_all_to_all_steps(3) == 2


def test_equal_blocks_are_the_closed_form():
    for n in (1, 2, 8):
        assert calc.pairwise_all_to_all_sent_bytes([5] * n, 4, 0) == calc.all_to_all_sent_bytes(
            5 * n * 4, n
        )
        seconds = calc.pairwise_all_to_all_seconds([[5] * n] * n, 4, 2.0, 0.25)
        assert seconds == pytest.approx(calc.all_to_all_seconds(5 * n * 4, n, 2.0, 0.25))


def test_bytes_by_tier():
    rows = [1, 2, 3, 4, 5, 6]
    # Rank 2 of hosts {0, 1}, {2, 3}, {4, 5}: 4 rows to rank 3, and 1 + 2 + 5 + 6 to other hosts.
    assert calc.pairwise_all_to_all_tier_bytes(rows, 10, 2, 2) == (40, 140)
    assert calc.pairwise_all_to_all_tier_bytes(rows, 10, 2, 6) == (180, 0)
    assert calc.pairwise_all_to_all_tier_bytes(rows, 10, 2, 1) == (0, 180)


def test_uneven_blocks_hold_up_step_by_step():
    # Step 1: 0->1 2 rows, 1->2 4, 2->0 3, at 1 s a row, without latency. Rank 0 has sent after 2
    # and received after 3; rank 1 is done at 4 and rank 2 at 4. Step 2: 0->2 nothing; 1->0 1 row
    # from 4 to 5; 2->1 3 rows from 4 to 7.
    assert calc.pairwise_all_to_all_seconds(ROWS, 1, 0, 1) == 7
    # With 10 s a message: 14 at ranks 1 and 2 after the first step, then 1 row, and 3: 27.
    assert calc.pairwise_all_to_all_seconds(ROWS, 1, 10, 1) == 27


def test_a_slow_tier_decides():
    rows = [[1] * 4 for _ in range(4)]
    # Hosts {0, 1}, {2, 3}; fast messages take 0.1 s, slow ones 1 s. Step 1: 0->1 and 2->3 are fast,
    # 1->2 and 3->0 slow: every rank has one of those. Step 2: all slow. Step 3: as step 1.
    links = {"alpha": (0, 0), "beta": (0.1, 1)}
    assert calc.two_tier_all_to_all_seconds(rows, 1, 2, **links) == 3
    # One adapter per host: in step 2 both ranks send over it, each at half its speed.
    assert calc.two_tier_all_to_all_seconds(rows, 1, 2, **links, shared=True) == 4
    one_host = calc.two_tier_all_to_all_seconds(rows, 1, 4, **links, shared=True)
    assert one_host == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: calc.pairwise_all_to_all_sent_bytes([1, 2], 4, 2), "rank 2"),
        (lambda: calc.pairwise_all_to_all_sent_bytes([1, -2], 4, 0), "rows=-2"),
        (lambda: calc.pairwise_all_to_all_sent_bytes([1, 2.5], 4, 0), "rows=2.5"),
        (lambda: calc.pairwise_all_to_all_messages([1, 2], -4, 0), "row_bytes=-4"),
        (lambda: calc.pairwise_all_to_all_tier_bytes([1, 2], 4, 0, 3), "ranks_per_host=3"),
        (lambda: calc.pairwise_all_to_all_seconds([], 4, 0, 0), "world_size=0: a group of ranks"),
        (lambda: calc.pairwise_all_to_all_seconds(ROWS, 4, -1, 0), "alpha"),
        (lambda: calc.pairwise_all_to_all_seconds(ROWS, 4, 0, -1), "beta"),
        (lambda: calc.pairwise_all_to_all_seconds(ROWS, 4, 0, 25e9), "1 / 360e9"),
        (lambda: calc.pairwise_all_to_all_seconds([[1, 2], [3]], 4, 0, 0), r"rows\[1\]=\[3\]"),
    ],
)
def test_a_bad_input_is_named(call, says):
    with pytest.raises(ValueError, match=says):
        call()
