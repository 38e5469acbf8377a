"""When the watch over a silent run speaks: what proves a deadlock must hold at two looks."""

from types import SimpleNamespace

import pytest

from labkit.doctor.verdict import Fault, Stage, Verdict
from labkit.launch import listen
from labkit.launch.listen import StallWatch

PROOF = Verdict(Fault.CYCLE, "ranks 0 and 1 wait for each other", is_proof=True)
ANOTHER = Verdict(Fault.LEFT, "rank 1 returned without sending", is_proof=True)
NO_PROOF = Verdict(Fault.CYCLE, "ranks 0 and 1 wait for each other", is_proof=False)
BUSY = Verdict(Fault.BUSY, "rank 1 computes", is_proof=False)


class Watched:
    """A run of which the journals show what a test says, on a clock that a test moves."""

    def __init__(self, monkeypatch):
        self.now_s = 0.0
        self.journals_show = BUSY
        self.ranks_say = PROOF
        self.num_asked = 0
        self.has_grown = False
        self.supervisor = SimpleNamespace(
            ranks=[SimpleNamespace(stage=Stage.RUNNING)],
            evidence=SimpleNamespace(read_journals=lambda: self.has_grown, views=[]),
        )
        monkeypatch.setattr(listen, "time", SimpleNamespace(monotonic=lambda: self.now_s))
        monkeypatch.setattr(listen.doctor, "diagnose_waits", lambda _: self.journals_show)
        monkeypatch.setattr(listen, "confirmed_diagnosis", self._asked)
        monkeypatch.setattr(listen, "examine_and_diagnose", self._asked)

    def _asked(self, *_):
        self.num_asked += 1
        return self.ranks_say

    def looks(self, watch, *shown):
        """Return the watch's verdicts at its next looks, each with these journals."""
        said = []
        for self.journals_show in shown:
            self.now_s += watch.seconds_until_check
            said.append(watch.check())
        return said


@pytest.fixture
def watched(monkeypatch):
    return Watched(monkeypatch)


def test_a_proof_is_reported_when_a_second_look_finds_it_again(watched):
    watch = StallWatch(watched.supervisor, None)
    assert watched.looks(watch, PROOF) == [None]
    assert watched.num_asked == 0, "no rank is disturbed for what may be over in a moment"
    assert watched.looks(watch, PROOF) == [PROOF]


def test_another_proof_or_none_in_between_begins_again(watched):
    watch = StallWatch(watched.supervisor, None)
    assert watched.looks(watch, PROOF, ANOTHER, PROOF, BUSY, PROOF) == [None] * 5
    assert watched.looks(watch, PROOF) == [PROOF]


def test_what_is_no_proof_ends_nothing_however_often_it_is_seen(watched):
    watch = StallWatch(watched.supervisor, None)
    assert watched.looks(watch, *[NO_PROOF] * 5) == [None] * 5


def test_a_proof_that_the_ranks_refute_is_asked_about_now_and_then(watched):
    watch = StallWatch(watched.supervisor, None)
    watched.ranks_say = NO_PROOF
    assert watched.looks(watch, *[PROOF] * 5) == [None] * 5
    assert watched.num_asked == 1
    assert watched.looks(watch, *[PROOF] * 40) == [None] * 40  # 10 s
    assert watched.num_asked == 3
    watched.ranks_say = ANOTHER
    assert watched.looks(watch, ANOTHER, ANOTHER) == [None, ANOTHER]


def test_nothing_is_looked_at_before_it_is_due(watched):
    watch = StallWatch(watched.supervisor, None)
    watched.journals_show = PROOF
    assert [watch.check() for _ in range(3)] == [None] * 3
    assert watched.looks(watch, PROOF, PROOF) == [None, PROOF], "as if there had been none"


def test_looks_become_rarer_while_the_journals_grow(watched):
    watch = StallWatch(watched.supervisor, None)
    watched.has_grown, waits_s = True, []
    for _ in range(6):
        waits_s.append(watch.seconds_until_check)
        watched.looks(watch, BUSY)
    assert waits_s == [0.25, 0.5, 1.0, 2.0, 2.0, 2.0]
    watched.has_grown = False
    watched.looks(watch, BUSY)
    assert watch.seconds_until_check == 0.25


def test_nobody_is_judged_while_a_rank_is_starting(watched):
    watched.supervisor.ranks[0].stage = Stage.STARTING
    watch = StallWatch(watched.supervisor, 0.5)
    assert watched.looks(watch, *[PROOF] * 8) == [None] * 8
    assert watched.num_asked == 0


def test_the_ranks_are_asked_once_nothing_has_moved_for_long_enough(watched):
    watch = StallWatch(watched.supervisor, 0.6)
    watched.ranks_say = NO_PROOF
    assert watched.looks(watch, BUSY, BUSY, BUSY) == [None, None, NO_PROOF], "at 0.75 s"
    watched.ranks_say = BUSY
    assert watched.looks(watch, BUSY) == [None], "somebody computes"
    watch.note_report()
    num_asked = watched.num_asked
    watched.looks(watch, BUSY, BUSY)
    assert watched.num_asked == num_asked, "what a rank reports is progress"
