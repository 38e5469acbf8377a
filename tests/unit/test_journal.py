"""The journal: written before the operation, read back whole, with the reader's own line."""

import inspect
import mmap
import threading

import pytest
import torch

from labkit import RankError, run
from labkit.collectives import ring_all_reduce
from labkit.comm.journal import RECORD, Journal, read_journal
from labkit.comm.operation import Site


def test_an_entry_is_on_disk_before_the_operation_is_performed(tmp_path):
    journal = Journal(tmp_path / "rank-0")
    world = journal.group("world", (0, 1))
    record = journal.post(
        "send", world, 1, torch.ones(2, 3), sent_bytes=24, received_bytes=0, blocking=True, peer=1
    )
    (posted,) = read_journal(tmp_path / "rank-0").operations
    assert posted.name == "send #1 to rank 1"
    assert (posted.shape, posted.dtype, posted.payload_bytes) == ((2, 3), "float32", 24)
    assert posted.done_s is None
    journal.done(record)
    (done,) = read_journal(tmp_path / "rank-0").operations
    assert done.done_s >= done.waited_s == done.posted_s


def test_a_journal_grows_past_its_first_size(tmp_path):
    journal = Journal(tmp_path / "rank-0", num_records=4)
    world = journal.group("world", (0,))
    records = [
        journal.post(
            "barrier", world, n, torch.ones(n), sent_bytes=0, received_bytes=0, blocking=True
        )
        for n in range(1, 40)
    ]
    journal.done(records[0])
    operations = read_journal(tmp_path / "rank-0").operations
    assert [operation.shape for operation in operations] == [(n,) for n in range(1, 40)]
    assert operations[0].done_s is not None


def test_a_rank_that_never_began_has_an_empty_journal(tmp_path):
    assert read_journal(tmp_path / "rank-3").operations == []


def talk(world):
    with world.region("prepare"):
        x = torch.ones(5) * world.rank
    total = ring_all_reduce(x, world)
    pending = world.all_reduce(x, "max", wait=False)
    half = world.split(color=world.rank % 2)
    half.barrier()
    return total, pending.wait()


@pytest.fixture(scope="module")
def talked():
    return run(talk, 3)


def test_operations_are_in_order_with_their_sequence_numbers(talked):
    names = [operation.name for operation in talked.timeline[0].operations]
    assert names == [
        "send #1 to rank 1",
        "recv #1 from rank 2",
        "recv #2 from rank 2",
        "send #2 to rank 1",
        "recv #3 from rank 2",
        "send #3 to rank 1",
        "recv #4 from rank 2",
        "send #4 to rank 1",
        "all_reduce #1",
        "split #2",
        "barrier #1",
    ]


def test_the_site_is_where_the_group_was_called_and_the_origin_is_the_readers_line(talked):
    send = talked.timeline[0].operations[0]
    assert send.site.file.endswith("collectives/stream.py")
    lines, first = inspect.getsourcelines(talk)
    line = first + next(i for i, text in enumerate(lines) if "ring_all_reduce" in text)
    assert send.origin == Site(__file__, line, "talk", "ring_all_reduce(x, world)")


def test_groups_are_distinguished(talked):
    barriers = [timeline.operations[-1] for timeline in talked.timeline]
    assert [barrier.group for barrier in barriers] == [(0, 2), (1,), (0, 2)]
    assert [barrier.group_name for barrier in barriers] == ["world.1.0", "world.1.1", "world.1.0"]


def test_regions_and_operations_share_one_clock(talked):
    for timeline in talked.timeline:
        (region,) = timeline.regions
        first = timeline.operations[0]
        assert timeline.start_s <= region.start_s <= region.end_s <= first.posted_s
        assert all(op.posted_s <= op.waited_s <= op.done_s for op in timeline.operations)
        assert timeline.operations[-1].done_s <= timeline.end_s


def test_a_collective_that_is_not_waited_for_at_once_says_when_it_was_complete(talked):
    for timeline in talked.timeline:
        (found,) = (op for op in timeline.operations if op.completed_s is not None)
        assert (found.name, found.blocking) == ("all_reduce #1", False)
        assert found.posted_s <= found.completed_s <= found.done_s


def test_the_first_rank_to_begin_begins_at_zero(talked):
    assert min(timeline.start_s for timeline in talked.timeline) == 0
    assert talked.seconds > talked.ready_seconds > 0


def test_a_failed_runs_journal_is_evidence():
    def breaks(world):
        world.all_reduce(torch.ones(7))
        if world.rank == 0:
            raise ValueError("enough")
        world.broadcast(torch.ones(3))

    with pytest.raises(RankError) as caught:
        run(breaks, 2)
    kinds = [[op.kind for op in timeline.operations] for timeline in caught.value.timeline]
    assert kinds == [["all_reduce"], ["all_reduce", "broadcast"]]
    assert caught.value.timeline[1].operations[1].done_s is None


def test_two_groups_of_the_same_color_are_distinguished():
    def splits_twice(world):
        first, second = world.split(0), world.split(0)
        first.barrier()
        second.barrier()

    (operations, _) = (timeline.operations for timeline in run(splits_twice, 2).timeline)
    assert [op.group_name for op in operations[-2:]] == ["world.1.0", "world.2.0"]


class Watched(mmap.mmap):
    """A journal's memory that asks what a reader sees, before each single byte is stored."""

    def __setitem__(self, place, value):
        self.seen.append(self.look())
        super().__setitem__(place, value)


def test_a_record_is_there_for_readers_when_its_last_byte_is(tmp_path):
    journal = Journal(tmp_path / "rank-0")
    world = journal.group("world", (0,))

    def posted():
        return [each.shape for each in read_journal(tmp_path / "rank-0").operations]

    def look():
        (*_, unread) = RECORD.iter_unpack(memoryview(journal._map)[: journal._length * RECORD.size])
        return posted(), unread

    journal._map = Watched(journal._file.fileno(), 0)
    journal._map.seen, journal._map.look = [], look
    for number in (1, 2):
        journal.post(
            "barrier",
            world,
            number,
            torch.empty(number),
            sent_bytes=0,
            received_bytes=0,
            blocking=True,
        )
    assert posted() == [(1,), (2,)]
    before, records = zip(*journal._map.seen, strict=True)
    assert before == ([], [(1,)]), "the kind, which readers go by, is stored by itself"
    sequences = [fields[5] for fields in records]
    assert sequences == [1, 2], "and last: all else is there by then"


def test_reading_is_safe_while_a_rank_writes(tmp_path):
    journal = Journal(tmp_path / "rank-0", num_records=8)
    world = journal.group("world", (0,))

    def write():
        for number in range(1000):
            x = torch.empty(number % 50)
            journal.post("barrier", world, 1, x, sent_bytes=0, received_bytes=0, blocking=True)

    writer = threading.Thread(target=write)
    writer.start()
    is_over = False
    while not is_over:
        is_over = not writer.is_alive()
        operations = read_journal(tmp_path / "rank-0").operations
        shapes = [(n % 50,) for n in range(len(operations))]
        assert [operation.shape for operation in operations] == shapes
    assert len(operations) == 1000


def test_names_are_right_when_threads_write(tmp_path):
    journal = Journal(tmp_path / "rank-0", num_records=8)
    world = journal.group("world", (0,))

    def write(numel):
        for extra in range(200):
            x = torch.empty(numel + extra)
            record = journal.post(
                "send", world, numel + extra, x, sent_bytes=0, received_bytes=0, blocking=True
            )
            journal.done(record)

    writers = [threading.Thread(target=write, args=(1000 * number,)) for number in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    operations = read_journal(tmp_path / "rank-0").operations
    assert len(operations) == 800
    assert all(operation.shape == (operation.sequence,) for operation in operations)
    assert all(operation.done_s is not None for operation in operations)


def test_equal_functions_of_two_files_are_distinguished(tmp_path):
    journal = Journal(tmp_path / "rank-0")
    world = journal.group("world", (0,))
    for file in ("first.py", "second.py"):
        namespace = {"journal": journal, "world": world, "x": torch.ones(1)}
        source = "journal.post('send', world, 1, x, sent_bytes=0, received_bytes=0, blocking=True)"
        exec(compile(source, file, "exec"), namespace)
    operations = read_journal(tmp_path / "rank-0").operations
    assert [operation.origin.file for operation in operations] == ["first.py", "second.py"]
