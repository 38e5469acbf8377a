"""Where hashes differ, the journals decide: at once where both entries are there."""

import pytest
import torch

from labkit.comm import OperationMismatch, mismatch_detector
from labkit.comm.journal import Journal
from labkit.comm.mismatch_detector import JournalEvidence


class Clock:
    """Time that passes only where somebody sleeps; `meanwhile` happens at the first sleep."""

    def __init__(self):
        self.now = 0.0
        self.num_sleeps = 0
        self.meanwhile = lambda: None

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds
        self.num_sleeps += 1
        if self.num_sleeps == 1:
            self.meanwhile()


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(mismatch_detector, "time", clock)
    return clock


class Pair:
    """Two ranks of a world, and what they write into their journals."""

    def __init__(self, folder):
        self._journals = [Journal(folder / f"rank-{rank}") for rank in (0, 1)]
        self.evidence = JournalEvidence(folder, "world", (0, 1), 0)

    def post(self, rank, kind, numel=3, sequence=1, **more):
        journal = self._journals[rank]
        world = journal.group("world", (0, 1))
        wire = {"sent_bytes": 0, "received_bytes": 0, "blocking": True}
        journal.post(kind, world, sequence, torch.empty(numel), **wire, **more)


@pytest.fixture
def pair(tmp_path):
    return Pair(tmp_path)


def on_collective(pair):
    pair.evidence.raise_if_collective_differs(1, 1)


def on_message(pair):
    pair.evidence.raise_if_message_differs(1, 1, sends=True)


COLLECTIVE = (("all_reduce", {}), ("all_reduce", {}))
MESSAGE = (("send", {"peer": 1}), ("recv", {"peer": 0}))
ALL = pytest.mark.parametrize(
    ("compare", "calls"),
    [
        (on_collective, COLLECTIVE),
        (on_message, MESSAGE),
    ],
)


def post_both(pair, calls, numel_of_1=3):
    for rank, numel in ((0, 3), (1, numel_of_1)):
        kind, more = calls[rank]
        pair.post(rank, kind, numel, **more)


@ALL
def test_entries_that_are_both_there_and_match_are_looked_at_once(pair, clock, compare, calls):
    post_both(pair, calls)
    compare(pair)
    assert clock.num_sleeps == 0


@ALL
def test_entries_that_are_both_there_and_differ_are_an_error_at_once(pair, clock, compare, calls):
    post_both(pair, calls, numel_of_1=5)
    with pytest.raises(OperationMismatch, match="shape"):
        compare(pair)
    assert clock.num_sleeps == 0


@ALL
@pytest.mark.parametrize("late", [0, 1])
def test_an_entry_that_is_not_there_yet_is_waited_for(pair, clock, compare, calls, late):
    kind, more = calls[1 - late]
    pair.post(1 - late, kind, **more)
    kind, more = calls[late]
    clock.meanwhile = lambda: pair.post(late, kind, 5, **more)
    with pytest.raises(OperationMismatch, match="shape"):
        compare(pair)
    assert clock.num_sleeps == 1


@ALL
def test_an_entry_that_never_comes_is_not_waited_for_longer_than_patience_lasts(
    pair, clock, compare, calls
):
    kind, more = calls[0]
    pair.post(0, kind, **more)
    compare(pair)
    assert clock.now == pytest.approx(mismatch_detector._PATIENCE_S, abs=0.1)


def test_an_order_is_looked_at_when_all_of_its_calls_are_there(pair, clock):
    for rank in (0, 1):
        pair.post(rank, "all_reduce")
    pair.post(0, "all_reduce", sequence=2)
    clock.meanwhile = lambda: pair.post(1, "all_reduce", sequence=2)
    pair.evidence.raise_if_order_differs(2, 1)
    assert clock.num_sleeps == 1
