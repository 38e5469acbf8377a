"""calc of the pairwise all-to-all against sums done by hand."""

import pytest

from labkit import calc

ROWS = [[9, 2, 0], [1, 9, 4], [3, 3, 9]]


def asked(rows, row_bytes, rank=None, ranks_per_host=None):
    more = {"itemsize": row_bytes, "rank": rank, "ranks_per_host": ranks_per_host}
    return calc.collective("all_to_all", "pairwise", len(rows), splits=rows, **more)


def test_a_rank_sends_its_row_but_what_stays():
    assert [asked(ROWS, 10, r).sent_bytes for r in range(3)] == [20, 50, 60]
    assert [asked(ROWS, 10, r).messages for r in range(3)] == [1, 2, 2]
    assert asked([[5, 0], [3, 5]], 10, 0).messages == 0
    assert calc.collective("all_to_all", "pairwise", 3).steps == 2


def test_equal_blocks_are_the_closed_form():
    for n in (1, 2, 8):
        even = calc.collective("all_to_all", "pairwise", n, 5 * n * 4)
        assert asked([[5] * n] * n, 4, 0).sent_bytes == even.sent_bytes
        seconds = asked([[5] * n] * n, 4).seconds(2.0, 0.25)
        assert seconds == pytest.approx(even.seconds(2.0, 0.25))


def test_bytes_by_tier():
    rows = [[1, 2, 3, 4, 5, 6]] * 6
    # Rank 2 of hosts {0, 1}, {2, 3}, {4, 5}: 4 rows to rank 3, and 1 + 2 + 5 + 6 to other hosts.
    assert asked(rows, 10, 2, 2).tier_bytes == (40, 140)
    assert asked(rows, 10, 2, 6).tier_bytes == (180, 0)
    assert asked(rows, 10, 2, 1).tier_bytes == (0, 180)


def test_uneven_blocks_hold_up_step_by_step():
    # Step 1: 0->1 2 rows, 1->2 4, 2->0 3, at 1 s a row, without latency. Rank 0 has sent after 2
    # and received after 3; rank 1 is done at 4 and rank 2 at 4. Step 2: 0->2 nothing; 1->0 1 row
    # from 4 to 5; 2->1 3 rows from 4 to 7.
    assert asked(ROWS, 1).seconds(0, 1) == 7
    # With 10 s a message: 14 at ranks 1 and 2 after the first step, then 1 row, and 3: 27.
    assert asked(ROWS, 1).seconds(10, 1) == 27


def test_a_slow_tier_decides():
    rows = [[1] * 4 for _ in range(4)]
    # Hosts {0, 1}, {2, 3}; fast messages take 0.1 s, slow ones 1 s. Step 1: 0->1 and 2->3 are fast,
    # 1->2 and 3->0 slow: every rank has one of those. Step 2: all slow. Step 3: as step 1.
    links = {"alpha": (0, 0), "beta": (0.1, 1)}
    assert asked(rows, 1, ranks_per_host=2).seconds(**links) == 3
    # One adapter per host: in step 2 both ranks send over it, each at half its speed.
    assert asked(rows, 1, ranks_per_host=2).seconds(**links, shared=True) == 4
    one_host = asked(rows, 1, ranks_per_host=4).seconds(**links, shared=True)
    assert one_host == pytest.approx(0.3)
