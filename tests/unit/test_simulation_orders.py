"""The orders of calc are those that labkit.pipeline performs, though neither imports the other."""

from functools import partial

import pytest

from labkit.calc.simulate.graph import graph, order
from labkit.pipeline import gpipe, interleaved, one_f_one_b, plan

ROWS = {"gpipe": gpipe, "1f1b": one_f_one_b}


def plain(schedule):
    return [[(str(kind), stage, i) for kind, stage, i in row] for row in schedule.rows]


@pytest.mark.parametrize("num_ranks", range(1, 9))
@pytest.mark.parametrize("name", ROWS)
def test_gpipe_and_1f1b_are_those_that_are_performed(name, num_ranks):
    for m in range(1, 18):
        found = [list(order(name, rank, num_ranks, m)) for rank in range(num_ranks)]
        assert found == plain(plan(ROWS[name], num_ranks, m))


@pytest.mark.parametrize("virtual", [1, 2, 3])
@pytest.mark.parametrize("num_ranks", range(2, 7))
def test_interleaved_is_the_one_that_is_performed(num_ranks, virtual):
    for m in range(num_ranks, 4 * num_ranks + 1, num_ranks):
        found = [list(order("interleaved", r, num_ranks, m, virtual)) for r in range(num_ranks)]
        assert found == plain(plan(partial(interleaved, virtual=virtual), num_ranks, m))


@pytest.mark.parametrize("case", [("gpipe", 4, 6, 1), ("1f1b", 5, 3, 1), ("interleaved", 4, 8, 3)])
def test_a_graph_has_all_work_after_what_it_needs(case):
    found = graph(*case)
    assert len(set(found.work)) == len(found.work) == 2 * case[1] * case[2] * case[3]
    for n, (before, need) in enumerate(zip(found.before, found.need, strict=True)):
        assert max(before, need) < n
        assert before < 0 or found.cell[before] == found.cell[n]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (("zigzag", 0, 4, 4), "give one of gpipe, 1f1b, interleaved"),
        (("gpipe", 0, 4, 4, 2), "schedule='interleaved', not 'gpipe'"),
        (("interleaved", 0, 4, 6, 2), "rounds of 4; try 4"),
        (("1f1b", 4, 4, 4), "rank=4"),
        (("1f1b", 0, 4, 0), "num_microbatches"),
    ],
)
def test_what_is_no_schedule_is_refused(wrong, said):
    with pytest.raises(ValueError, match=said):
        order(*wrong)
