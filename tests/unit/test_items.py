"""Whether two ranks' items can be the same tensor."""

import pytest

from labkit.comm.agreement import items


@pytest.mark.parametrize(
    ("ours", "theirs", "differ"),
    [
        ("weight", "weight", False),
        ("weight", "bias", True),
        ("weight", None, False),
        (None, None, False),
        ("mine = weight", "other = weight", False),
        ("mine = weight", "bias = mine", False),
        ("mine = weight", "bias = other", True),
        ("mine = weight", "weight", False),
        ("mine = weight", "bias", True),
    ],
)
def test_items_differ_where_they_have_no_name_in_common(ours, theirs, differ):
    assert items.texts_differ(ours, theirs) == differ
    assert items.texts_differ(theirs, ours) == differ


def test_an_item_takes_eight_bytes_and_unknown_ones_none():
    assert len(items.hashed_item("tensors['a']")) == len(items.NO_ITEM) == 8
    assert items.hashed_item(None) == items.NO_ITEM != items.hashed_item("")
