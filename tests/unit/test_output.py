"""Ranks' output, taken from the pipe in pieces."""

import io
import os
import sys
from multiprocessing import Pipe

import pytest

from labkit.launch.rank_process import RankOutput


@pytest.fixture
def output():
    reader, writer = Pipe(duplex=False)
    yield RankOutput(3, reader, echo=True), writer.fileno()
    reader.close()
    writer.close()


@pytest.mark.parametrize(
    ("pieces", "shown"),
    [
        ([b"one\ntwo\n"], ["one", "two"]),
        ([b"on", b"e\nt", b"wo\n"], ["one", "two"]),
        ([b"10%\r", b"20%\r", b"done\n"], ["done"]),
        ([b"10%", b"\r20%", b"\r100%\n"], ["100%"]),
        ([b"windows\r", b"\n", b"lines\r\n"], ["windows", "lines"]),
        ([b"no end"], ["no end"]),
        ([b"\n\n"], ["", ""]),
        (["gr\u00fc\u00df".encode()[:3], "gr\u00fc\u00df\n".encode()[3:]], ["gr\u00fc\u00df"]),
        ([b"\xff\xfe\n"], ["\ufffd\ufffd"]),
    ],
)
def test_lines_are_shown_whole_whatever_the_pieces(output, capsys, pieces, shown):
    rank_output, descriptor = output
    for piece in pieces:
        os.write(descriptor, piece)
        rank_output.read()
    rank_output.finish()
    assert capsys.readouterr().out.splitlines() == [f"[rank 3] {line}" for line in shown]
    assert rank_output.log.encode("utf-8", "replace") == b"".join(pieces).decode(
        errors="replace"
    ).encode("utf-8", "replace")


def test_a_progress_bar_without_an_end_costs_no_more_than_its_bytes(output):
    rank_output, descriptor = output
    for _ in range(300):
        os.write(descriptor, b"." * 60_000)
        rank_output.read()
        # The next write copies this line. Without the bound reading is quadratic.
        assert len(rank_output._line) <= 2**16


class Writes(io.RawIOBase):
    """A terminal that keeps each write as an item."""

    def __init__(self):
        self.all = []

    def writable(self):
        return True

    def write(self, data):
        if data:
            self.all.append(bytes(data))
        return len(data)


def test_a_line_is_written_at_once_where_several_processes_share_a_terminal(output, monkeypatch):
    rank_output, descriptor = output
    writes = Writes()
    # As under `python -u`, which is how torchrun starts ranks.
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(writes, write_through=True))
    os.write(descriptor, b"one\ntwo\n")
    rank_output.read()
    assert writes.all == [b"[rank 3] one\n", b"[rank 3] two\n"]
