"""Notes between hosts: what the board does when its store is slow, cut off or gone."""

import contextlib
import socket
import threading
import time
from datetime import timedelta

import pytest
import torch.distributed as dist

from labkit.hosts import board as board_module
from labkit.hosts.board import Board, NoAnswer


@pytest.fixture(scope="module")
def store():
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


PATIENCE_S = 60  # with a board that answers


class Cable:
    """Between a board and its store: it can be cut, or hold back what is sent."""

    def __init__(self, port):
        self.target, self.ends = port, []
        self.is_open = threading.Event()
        self.is_open.set()
        self.inlet = socket.create_server(("127.0.0.1", 0))
        self.port = self.inlet.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                near = self.inlet.accept()[0]
                far = socket.create_connection(("127.0.0.1", self.target))
                self.ends += [near, far]
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=self.carry, args=pair, daemon=True).start()

    def carry(self, source, target):
        with contextlib.suppress(OSError):
            while data := source.recv(2**16):
                self.is_open.wait()
                target.sendall(data)

    def hold(self):
        """From now on no answer comes, and nobody is patient."""
        self.is_open.clear()
        board_module._PATIENCE_S = 0.3

    def let_go(self):
        board_module._PATIENCE_S = PATIENCE_S
        self.is_open.set()

    def cut(self):
        for end in self.ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        self.ends.clear()


@pytest.fixture
def cable(store, monkeypatch):
    monkeypatch.setattr(board_module, "PAUSES_S", (0.05, 0.05))
    monkeypatch.setattr(board_module, "_PATIENCE_S", PATIENCE_S)
    monkeypatch.setattr(board_module, "LOST_AFTER_S", PATIENCE_S)
    cable = Cable(store.port)
    yield cable
    cable.is_open.set()
    cable.inlet.close()
    cable.cut()


@pytest.fixture
def board(cable, request):
    def connect():
        return dist.TCPStore(
            "127.0.0.1", cable.port, is_master=False, timeout=timedelta(seconds=PATIENCE_S)
        )

    return Board(connect, request.node.name)


def test_a_board_keeps_notes_of_any_size_and_counts(board):
    assert board.read("note", bytes) is None
    for note in (b"", b"\x00\xff", bytes(9 * 2**20)):  # the store itself takes 8 MiB
        assert board.post("note", note)
        assert board.read("note", bytes) == note
    assert (board.count("failed"), board.count("failed")) == (1, 2)


def test_of_two_outcomes_the_first_one_stays_and_reaches_who_looks_for_it(board):
    notice, both = board.watch("outcome"), board.watch_all(["outcome", "more"])
    assert notice.content is None
    assert board.set_once("outcome", "good")
    assert board.set_once("outcome", "failed")
    assert comes_true(lambda: notice.content == b"good")
    assert both.content is None
    board.post("more", b"")
    assert comes_true(lambda: both.content == b"")


def comes_true(condition):
    deadline = time.monotonic() + PATIENCE_S
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return condition()


def test_a_connection_that_breaks_is_recreated(board, cable):
    notice = board.watch("outcome")
    assert board.count("failed") == 1
    cable.cut()
    assert comes_true(lambda: (board.count("failed") or 0) > 1)
    assert comes_true(lambda: board.set_once("outcome", "good"))
    assert comes_true(lambda: notice.content == b"good")
    assert board.ping()


def test_an_answer_that_comes_late_does_not_lose_the_board(board, cable):
    assert board.count("failed") == 1
    cable.hold()
    assert board.count("failed") is None
    assert board.ping()
    cable.let_go()
    assert comes_true(lambda: board.count("failed"))
    assert board.ping()


def test_what_no_answer_confirms_is_said_not_to_be_known(board, cable):
    """Whoever believes it to be settled waits for ever; whoever takes no answer for no note too."""
    assert board.post("note", b"text")
    cable.hold()
    assert not board.set_once("outcome", "good")
    assert not board.set_once("outcome", "good"), "it was not even asked"
    with pytest.raises(NoAnswer):
        board.read("note", bytes)
    cable.let_go()
    assert comes_true(lambda: board.set_once("outcome", "good"))
    assert board.read("note", bytes) == b"text"


def test_a_damaged_note_is_read_as_none(board):
    assert board.post("note", b"text")
    assert board.read("note", int) is None


def test_a_board_that_does_not_answer_is_lost_and_stays_lost(board, cable, monkeypatch):
    monkeypatch.setattr(board_module, "LOST_AFTER_S", 1.0)
    cable.hold()
    assert comes_true(lambda: not board.ping())
    cable.let_go()
    assert board.count("failed") is None
    assert not board.ping()
