"""When all ranks have returned: what makes the run good, and a board that hesitates meanwhile."""

import time
from types import SimpleNamespace

import pytest

from labkit import run
from labkit.hosts import attend, records
from labkit.hosts.attempts import UNCONFIRMED, RunVerdict
from labkit.hosts.attend import GOOD, Confirmation
from labkit.hosts.board import NoAnswer
from labkit.hosts.rank_record import Record
from labkit.hosts.rendezvous import Place, Rendezvous

CALL = Rendezvous("name", [Place(n, n, f"host-{n}", "", 1, "", 0, "", 0, "") for n in range(2)])


class HesitantBoard:
    """In this process; `silence` names the kinds of questions that get no answer."""

    def __init__(self):
        self.pinned, self.outcome, self.silence, self.is_lost = {}, None, set(), False

    def post(self, key, note):
        if "post" not in self.silence:
            self.pinned[key] = note
        return "post" not in self.silence

    def read(self, key, parse, within_s):
        if "read" in self.silence:
            raise NoAnswer
        return parse(self.pinned[key]) if key in self.pinned else None

    def set_once(self, key, word):
        if "set_once" not in self.silence:
            self.outcome = self.outcome or word
        return "set_once" not in self.silence

    def watch_all(self, keys):
        return Notices(self.pinned, keys)

    def ping(self):
        return not self.is_lost


class Notices:
    def __init__(self, pinned, keys):
        self.pinned, self.keys = pinned, keys

    @property
    def content(self):
        return b"" if all(key in self.pinned for key in self.keys) else None


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """The records of a run of two ranks."""
    folder = run(lambda world: world.barrier(), 2).save(tmp_path_factory.mktemp("run") / "saved")
    return [Record.read(folder / "attempt-0" / f"rank-{rank}.json") for rank in range(2)]


@pytest.fixture
def board():
    return HesitantBoard()


@pytest.fixture
def both(ranks, board, tmp_path, monkeypatch):
    """Both hosts, which share no folder, do what there is to do, some seconds later each time."""
    clock = SimpleNamespace(s=time.monotonic())
    monkeypatch.setattr(attend, "time", SimpleNamespace(monotonic=lambda: clock.s))
    hosts = [Confirmation(ranks[n], CALL, board, tmp_path / f"host-{n}") for n in range(2)]

    def go_on(times=3):
        answers = []
        for _ in range(times):
            clock.s += 5
            answers = [host.confirm_step() for host in hosts]
        return answers

    return go_on


def test_a_run_is_good_when_all_have_returned_and_mean_the_same(both, board, tmp_path):
    assert both() == [True, True]
    assert board.outcome == GOOD
    assert (tmp_path / "host-0" / "rank-1.json").exists(), "rank 0's host has not all records"


@pytest.mark.parametrize("kind", ["post", "read", "set_once"])
def test_a_board_that_hesitates_is_asked_until_the_outcome_is_known_to_be_there(both, board, kind):
    board.silence.add(kind)
    assert both() == [True, True]
    assert board.outcome is None
    board.silence.clear()
    both()
    assert board.outcome == GOOD, "no answer was taken for an answer"


def test_a_record_that_has_not_come_leaves_the_run_unconfirmed(both, board, monkeypatch):
    monkeypatch.setattr(records, "unpacked", lambda note: None)
    both()
    verdict = RunVerdict.from_bytes(board.outcome.encode())
    assert verdict.kind == UNCONFIRMED
    assert "the records of rank 1 have not come" in verdict.text


def test_where_the_board_is_lost_nobody_confirms_anything(both, board):
    board.is_lost = True
    assert both() == [False, False]
