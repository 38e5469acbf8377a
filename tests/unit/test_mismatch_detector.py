"""How ranks notice that they do not mean the same: rows in shared memory, calls by their text."""

import mmap
import struct
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from labkit import Mismatch, run
from labkit.comm import Group, OperationMismatch, Pending, shared_rows
from labkit.comm.callers import call_text
from labkit.comm.group import NoJournal
from labkit.comm.member import is_marked
from labkit.comm.mismatch_detector import SENDER, MismatchDetector, SameHostRanks, hashed
from labkit.comm.operation import shortened
from labkit.comm.shared_rows import ROWS_PER_FILE, SharedRows


def here():
    """The text of the call of this function."""
    frame = sys._getframe(1)
    return call_text(frame.f_code, frame.f_lasti)


def identity(x, *rest):
    return x


def test_a_call_is_reported_by_its_source_text():
    assert here() == "here()"
    assert identity(here(), 1) == "here()"
    assert [identity("é, more bytes than letters"), here()][1] == "here()"


def test_a_call_over_several_lines_is_reported_on_one():
    text = text_of_caller(
        1,
        2,
    )  # fmt: skip
    assert text == "text_of_caller( 1, 2, )"


def text_of_caller(*args):
    frame = sys._getframe(1)
    return call_text(frame.f_code, frame.f_lasti)


def test_code_without_source_has_no_text():
    code = compile("here()", "nowhere.py", "eval")
    assert eval(code, {"here": here}) == ""


def test_long_texts_are_cut_for_reports_only():
    assert shortened("f(x)") == "f(x)"
    assert shortened("f(" + "x" * 100 + ")") == "f(" + "x" * 54 + " ..."


def test_what_one_process_writes_another_reads(tmp_path):
    ours = SharedRows(tmp_path / "world.calls", width=2, column=0)
    theirs = SharedRows(tmp_path / "world.calls", width=2, column=1)
    for row in (0, 1, ROWS_PER_FILE - 1, ROWS_PER_FILE, 3 * ROWS_PER_FILE + 5):
        assert theirs.read(row, 0) is None, "there is nothing yet"
        ours.write(row, b"12345678", row.to_bytes(8, "little"))
        assert theirs.read(row, 0) == b"12345678" + row.to_bytes(8, "little") + bytes(8)
        assert theirs.read(row, 1) is None, "the other column"
    assert ours.read(2, 0) is None, "a row in between"


def test_an_entry_is_read_whole_or_not_at_all_while_it_is_written(tmp_path):
    theirs = SharedRows(tmp_path / "rows", width=2, column=1)
    ours = SharedRows(tmp_path / "rows", width=2, column=0)

    class WrittenMeanwhile(mmap.mmap):
        """A table whose entry is written while its bytes are being copied."""

        def __getitem__(self, part):
            begin = super().__getitem__(slice(part.start, part.start + 16))
            theirs.write(7, b"text", b"lines")
            return begin + super().__getitem__(slice(part.start + 16, part.stop))

    ours.read(7, 1)
    with open(tmp_path / "rows.0", "r+b") as file:
        ours._maps[0] = WrittenMeanwhile(file.fileno(), 0)
    whole = b"text\0\0\0\0lines\0\0\0" + bytes(8)
    assert ours.read(7, 1) in (None, whole)


def test_the_number_of_an_entry_is_written_last(tmp_path, monkeypatch):
    ours = SharedRows(tmp_path / "rows", width=2, column=0)
    theirs = SharedRows(tmp_path / "rows", width=2, column=1)
    seen = []

    class Watched(struct.Struct):
        """Asks what the other one reads after each store."""

        def pack_into(self, *args):
            super().pack_into(*args)
            seen.append(theirs.read(7, 0))

    for name in ("_CONTENT", "_NUMBER"):
        monkeypatch.setattr(shared_rows, name, Watched(getattr(shared_rows, name).format))
    ours.write(7, b"12345678")
    assert seen == [None, b"12345678" + bytes(16)]


def test_files_of_rows_that_all_have_compared_are_closed(tmp_path):
    rows = SharedRows(tmp_path / "rows", width=1, column=0)
    for row in range(0, 5 * ROWS_PER_FILE, ROWS_PER_FILE):
        rows.write(row, bytes(8), bytes(8))
    rows.forget_before(4 * ROWS_PER_FILE)
    assert list(rows._maps) == [4]
    assert rows.read(0, 0) is not None, "and opened again where one is asked for"


def test_after_a_refusal_a_group_takes_part_in_nothing_more(tmp_path):
    def goes_on(world, sent):
        if world.rank == 0:
            world.isend(torch.ones(5), 1)
            sent.touch()
            return "sent"
        while not sent.exists():
            time.sleep(0.01)
        said = []
        for size in (3, 5):
            try:
                world.recv(torch.empty(size), 0)
            except OperationMismatch as error:
                said.append(str(error)[:40])
        return said

    first, second = run(goes_on, 2, (tmp_path / "sent",)).values[1]
    assert first.startswith("send #1")
    assert second.startswith("this group has been out of step since: s")


def test_operations_of_several_files_are_compared():
    def long(world, late):
        shared_rows.ROWS_PER_FILE = 64
        group, pendings = world.split(0), []
        for step in range(300):
            # The root runs ahead: its broadcast is over before the leaves have started theirs.
            pendings.append(group.broadcast(torch.ones(1), root=0, wait=False))
            if step % 50 == 0:
                while pendings:
                    pendings.pop().wait()
        group.all_reduce(torch.ones(1), "max" if world.rank == late else "sum")

    with pytest.raises(Mismatch, match="in all_reduce #301 .*max"):
        run(long, 2, (1,))


def test_a_rank_that_catches_the_disagreement_does_not_hide_it():
    def careless(world):
        try:
            world.all_reduce(torch.ones(2 + world.rank))
        except OperationMismatch:
            if world.rank == 0:
                raise

    with pytest.raises(Mismatch, match="rank 0 passes shape") as caught:
        run(careless, 2)
    last = [timeline.operations[-1] for timeline in caught.value.timeline]
    assert any(operation.failed for operation in last)
    assert all(operation.failed or operation.done_s is None for operation in last)


def test_a_group_alone_compares_nothing():
    def alone(world):
        world.all_reduce(torch.ones(3))
        folder = Path(world._same_host.folder)
        return [path.name for path in folder.iterdir() if ".calls" in path.name]

    assert run(alone, 1).values == [[]]


@pytest.mark.parametrize("here", [{0}, {0, 7}, set()], ids=["alone", "others", "torchrun"])
def test_a_group_without_neighbours_compares_nothing(tmp_path, here):
    same_host = SameHostRanks(frozenset(here), tmp_path)
    detector = MismatchDetector(same_host, "world", (0, 1), 0)
    detector.declare(1, hashed("all_to_all"))
    detector.pairs.declare_rows(1, (1, 2), (1, 2))
    detector.compare(1)
    detector.pairs.compare_rows(1)
    detector.pairs.declare_message(1, SENDER, 1, hashed("float32"))
    detector.pairs.compare_messages(1, SENDER)
    assert list(tmp_path.iterdir()) == [], "no table is made"
    assert same_host.detectors == [], "and nothing is compared at the end"
    detector.leave()


def test_at_the_end_of_a_run_what_was_not_there_before_is_compared(tmp_path):
    same_host = SameHostRanks(frozenset({0, 1}), tmp_path)
    ours, theirs = (MismatchDetector(same_host, "world", (0, 1), member) for member in (0, 1))
    asked = []
    for each in (ours, theirs):  # without journals to look into
        each._evidence = SimpleNamespace(
            raise_if_collective_differs=lambda *what: asked.append(what)
        )
    ours.declare(1, hashed("all_reduce"))
    ours.compare(1)
    theirs.declare(1, hashed("barrier"))
    assert asked == [], "the other one had not come"
    Group.compare_remaining(SimpleNamespace(_same_host=same_host))
    assert asked == [(1, 1), (1, 0)]


def test_an_error_of_a_communication_is_marked_and_so_is_what_is_raised_from_it():
    gone = SimpleNamespace(wait=lambda: (_ for _ in ()).throw(RuntimeError("gone")))
    with pytest.raises(RuntimeError) as caught:
        Pending(gone, lambda: None, NoJournal(), 0, set()).wait()
    assert is_marked(caught.value)
    later = KeyError("loss")
    assert not is_marked(later)
    later.__cause__ = caught.value
    assert is_marked(later)
