"""Following a journal: the same as reading it from its beginning, whenever one looks."""

import io

import pytest
import torch

from labkit.comm.journal import RECORD, Journal, JournalFollower, read_journal, records_of


class Rank:
    """A rank that writes its journal, and who follows it."""

    def __init__(self, folder, num_records=8):
        self.path = folder / "rank-0"
        self._journal = Journal(self.path, num_records)
        self._group = self._journal.group("world", (0, 1))
        self.done = self._journal.done
        self.begin_region = self._journal.begin_region
        self.failed = self._journal.failed
        self.waiting = self._journal.waiting
        self.caller = self._journal.caller

    def post(self, sequence, numel=1, **more):
        x = torch.empty(numel)
        wire = {"sent_bytes": 0, "received_bytes": 0, "blocking": False}
        return self._journal.post("all_reduce", self._group, sequence, x, **wire, **more)


@pytest.fixture
def rank(tmp_path):
    return Rank(tmp_path)


@pytest.fixture
def follower(rank):
    return JournalFollower(rank.path)


def agrees(follower):
    """Return after checking that the follower has read everything in the journal."""
    whole = read_journal(follower._path)
    assert follower.timeline.operations == whole.operations
    assert follower.timeline.regions == whole.regions
    return True


def test_there_is_nothing_before_a_rank_begins(tmp_path):
    follower = JournalFollower(tmp_path / "rank-3")
    assert not follower.refresh()
    assert follower.timeline.operations == []


def test_each_look_takes_what_is_new(rank, follower):
    for sequence in (1, 2, 3):
        rank.post(sequence)
        assert follower.refresh()
        assert [each.sequence for each in follower.timeline.operations] == [*range(1, sequence + 1)]
        assert not follower.refresh(), "nothing has happened since"
    assert agrees(follower)


def test_what_was_under_way_is_looked_at_again_until_it_has_ended(rank, follower):
    records = [rank.post(sequence) for sequence in (1, 2, 3)]
    region = rank.begin_region("forward")
    follower.refresh()
    for end, record in (
        (rank.waiting, records[1]),
        (rank.done, records[1]),
        (rank.failed, records[0]),
        (rank.done, region),
    ):
        end(record)
        assert follower.refresh()
        assert agrees(follower)
        assert not follower.refresh()
    first, second, third = follower.timeline.operations
    assert first.failed and second.done_s is not None and third.done_s is None


def test_a_journal_that_grows_past_its_first_size_is_followed(tmp_path):
    rank = Rank(tmp_path, num_records=4)
    follower = JournalFollower(rank.path)
    for sequence in range(1, 40):
        rank.done(rank.post(sequence, numel=sequence))
        if sequence % 3 == 0:
            assert follower.refresh()
    assert [each.shape for each in follower.timeline.operations] == [(n,) for n in range(1, 40)]
    assert agrees(follower)


def test_a_record_that_is_half_written_comes_when_it_is_whole(rank, follower):
    rank.post(1)
    rank.post(2, numel=7)
    rank.post(3)
    with open(rank.path.with_suffix(".journal"), "r+b") as file:
        file.seek(RECORD.size)
        kind = file.read(1)
        file.seek(RECORD.size)
        file.write(b"\0")  # the kind is written last
        file.flush()
        assert follower.refresh()
        assert [each.sequence for each in follower.timeline.operations] == [1]
        file.seek(RECORD.size)
        file.write(kind)
    assert follower.refresh()
    assert [each.sequence for each in follower.timeline.operations] == [1, 2, 3]
    assert agrees(follower)


def test_names_that_come_later_are_read_and_only_whole_lines(rank, follower):
    rank.post(1, label="weight")
    assert follower.refresh()
    names = rank.path.with_suffix(".names")
    with open(names, "ab") as file:
        file.write(b'["label", "of no')  # a line that is being written
    assert not follower.refresh()
    with open(names, "r+b") as file:
        file.truncate(names.stat().st_size - len(b'["label", "of no'))
    rank.post(2, numel=5, label="bias")
    rank.post(3, numel=6, label="weight")
    assert follower.refresh()
    assert [each.label for each in follower.timeline.operations] == ["weight", "bias", "weight"]
    assert agrees(follower)


@pytest.mark.parametrize("follows", [True, False])
def test_records_share_what_their_names_stand_for(rank, follower, follows):
    call = rank.caller()
    for sequence in (1, 2):
        rank.post(sequence, call=call)
    follower.refresh()
    one, two = (follower.timeline if follows else read_journal(rank.path)).operations
    for name in ("site", "origin", "callers", "group", "shape", "dtype"):
        assert getattr(one, name) is getattr(two, name)


def test_the_unused_part_of_a_journal_is_not_read(tmp_path):
    rank = Rank(tmp_path, num_records=100_000)
    for sequence in range(10):
        rank.post(sequence)

    class Counted(io.BytesIO):
        num_bytes = 0

        def read(self, size=-1):
            data = super().read(size)
            self.num_bytes += len(data)
            return data

    file = Counted(rank.path.with_suffix(".journal").read_bytes())
    assert len(list(records_of(file, first=3))) == 7
    assert file.num_bytes < 2000 * RECORD.size
