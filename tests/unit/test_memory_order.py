"""Which memory of a group the ranks mean: compared by entries that may be seen in parts."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from labkit.comm import OperationMismatch
from labkit.comm.mismatch_detector import SameHostRanks
from labkit.comm.shared_memory.memory_order import MemoryOrder


def orders(folder: Path, *numbers: int):
    """Return, for each of two ranks, its group's and its memory's number."""
    same_host = SameHostRanks(frozenset({0, 1}), folder)
    for rank, number in enumerate(numbers):
        group = SimpleNamespace(
            _same_host=same_host,
            ranks=(0, 1),
            rank=rank,
            size=2,
            name="world",
            _num_collectives=1,
            _refuse=lambda record, why: None,
        )
        order = MemoryOrder(group, number)
        yield group, order


@pytest.fixture
def not_whole_at_first(monkeypatch):
    """As ARM may show an entry: its row's number is there, and the rest not yet."""

    def show(order):
        read, seen = order._rows.read, []

        def in_parts(row, column):
            seen.append(row)
            return bytes(40) if len(seen) == 1 else read(row, column)

        monkeypatch.setattr(order._rows, "read", in_parts)

    return show


def test_an_entry_that_is_not_whole_yet_is_no_other_memory(tmp_path, not_whole_at_first):
    (group, ours), (other_group, theirs) = orders(tmp_path, 2, 2)
    theirs.require_same(other_group, 0, "all_reduce", 64)
    not_whole_at_first(ours)
    ours.require_same(group, 0, "all_reduce", 64)


def test_another_place_is_reported_once_the_entry_is_whole(tmp_path, not_whole_at_first):
    (group, ours), (other_group, theirs) = orders(tmp_path, 2, 2)
    theirs.require_same(other_group, 0, "all_reduce", 64)
    not_whole_at_first(ours)
    with pytest.raises(OperationMismatch, match="byte 128 .*byte 64"):
        ours.require_same(group, 0, "all_reduce", 128)
