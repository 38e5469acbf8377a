"""Extents: which elements of a whole tensor, and what two of them share."""

import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from labkit.shards import Extent


@st.composite
def two_extents(draw):
    """Draw two extents of one tensor: empty, whole or partial boxes, and ranges of elements."""
    shape = tuple(draw(st.lists(st.integers(0, 5), max_size=4)))
    return draw(extents(shape)), draw(extents(shape))


@st.composite
def extents(draw, shape):
    ends = [sorted((draw(st.integers(0, n)), draw(st.integers(0, n)))) for n in shape]
    box = tuple((0, n) if draw(st.booleans()) else tuple(e) for n, e in zip(shape, ends))
    numel = math.prod(last - first for first, last in box)
    start, stop = sorted((draw(st.integers(0, numel)), draw(st.integers(0, numel))))
    return Extent(shape, box, start, stop)


def elements(extent):
    """Their numbers in the whole tensor, by torch's own indexing."""
    numbers = torch.arange(math.prod(extent.shape)).view(extent.shape)
    part = numbers[tuple(slice(*ends) for ends in extent.box)]
    return part.reshape(-1)[extent.start : extent.stop].tolist()


@given(two_extents())
def test_runs_are_the_elements_in_order(pair):
    for extent in pair:
        begins, _, lengths = extent.runs()
        runs = zip(begins.tolist(), lengths.tolist(), strict=True)
        assert [i for begin, n in runs for i in range(begin, begin + n)] == elements(extent)


@given(two_extents())
def test_overlaps_are_the_elements_that_both_have(pair):
    mine, theirs = map(elements, pair)
    overlaps = pair[0].overlaps(pair[1])
    found = [(here + i, there + i) for here, there, n in overlaps for i in range(n)]
    assert found == [(mine.index(x), theirs.index(x)) for x in mine if x in set(theirs)]


def test_columns_of_a_matrix_are_a_run_in_each_row_and_rows_are_one_run():
    assert len(Extent.of_dim((4, 6), 1, range(2, 5)).runs()[0]) == 4
    assert len(Extent.of_dim((4, 6), 0, range(1, 3)).runs()[0]) == 1
