"""Attendants under torchrun exchange the state of their ranks, and draw conclusions from it."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from labkit.comm import Site
from labkit.comm.recorder import Recorded
from labkit.doctor.halt import Halt
from labkit.doctor.stacks import Stack
from labkit.doctor.verdict import Fault, Stage
from labkit.doctor.waiting import View, waits_of
from labkit.hosts import blocked_job
from labkit.hosts.blocked_job import BlockedJobCheck, RankStatus, relevant_operations
from labkit.hosts.board import NoAnswer
from tests.an_operation import an_operation

HERE = Site("train.py", 3, "main", "work()")


def operation(kind, sequence, *, peer=None, group="world", done=True, waited=True):
    return an_operation(
        kind,
        sequence,
        group=(0, 1, 2),
        group_name=group,
        peer=peer,
        waited_s=float(sequence) if waited else None,
        done_s=sequence + 0.5 if done else None,
        callers=(HERE,),
    )


def test_a_note_comes_back_as_it_was():
    of_torch = [operation("all_reduce", 2, done=False), operation("barrier", 3, done=False)]
    recorded = Recorded(of_torch, {"torch.distributed": 3}, True, True, 1)
    stack = Stack(True, "in main", HERE, 1, is_held=True)
    halt = Halt("is stopped", continued_by=71)
    journal = [operation("barrier", 1), operation("send", 1, peer=2, done=False)]
    view = View(Stage.RUNNING, journal, recorded, stack, halt)
    assert RankStatus.from_bytes(RankStatus.of(4, view).as_bytes()) == RankStatus.of(4, view)
    assert RankStatus.of(4, view).view == view


@pytest.mark.parametrize("note", [b"", b"text", b"\x80\x04K\x01.", None])
def test_what_is_no_note_is_refused(note):
    whole = RankStatus.of(1, View(Stage.RUNNING)).as_bytes()
    with pytest.raises(ValueError, match="no note|damaged|is missing"):
        RankStatus.from_bytes(whole[:-9] if note is None else note)


@st.composite
def journals(draw):
    """Operations of several kinds, each kind counted from 1, some of which are not over.

    Mostly of two of them: then much of a kind is left out of the note.
    """
    kinds = st.sampled_from(
        [("barrier", None, "world"), ("send", 1, "world")] * 3
        + [("all_reduce", None, "pair"), ("send", 2, "world"), ("recv", 1, "world")]
    )
    counts, journal = {}, []
    for kind, peer, group in draw(st.lists(kinds, max_size=25)):
        number = counts[kind, peer, group] = counts.get((kind, peer, group), 0) + 1
        done, waited = draw(st.booleans()), draw(st.booleans())
        journal.append(
            operation(kind, number, peer=peer, group=group, done=done, waited=waited or done)
        )
    return journal


@given(journals(), st.integers(1, 9))
@example([operation("barrier", number) for number in range(1, 10)], 2)
def test_what_is_left_out_of_a_note_changes_no_answer(journal, sequence):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocked_job, "_RECENT", 3)
        reported = relevant_operations(journal)
    whole, cut = View(Stage.RUNNING, journal), View(Stage.RUNNING, reported)
    for kind, peer, group in [
        *(("barrier", None, "world"), ("all_reduce", None, "pair")),
        *(("send", 0, "world"), ("recv", 0, "world")),
    ]:
        for rank in (1, 2):
            wanted = operation(kind, sequence, peer=peer, group=group)
            assert cut.has_posted(wanted, rank) == whole.has_posted(wanted, rank)
    assert cut.waits_in == whole.waits_in
    views = [cut, View(Stage.RUNNING), View(Stage.RUNNING)]
    assert waits_of(0, views) == waits_of(0, [whole, *views[1:]])
    assert len(reported) <= 3 + 5 + sum(each.done_s is None for each in journal)


class Notes:
    """The board of a job, in this process."""

    def __init__(self):
        self.pinned = {}

    def post(self, key, note):
        self.pinned[key] = note
        return True

    def read(self, key, parse):
        try:
            return parse(self.pinned[key]) if key in self.pinned else None
        except ValueError:
            return None


class Watched:
    """The supervisor of one rank, which stands where a test says; and its evidence."""

    def __init__(self):
        self.ranks = [SimpleNamespace(stage=Stage.RUNNING)]
        self.evidence = self
        self.now = View(Stage.RUNNING)
        self.has_moved = False
        self.num_asked = 0

    def stands(self, *operations, stage=Stage.RUNNING, **known):
        self.now = View(stage, list(operations), **known)
        self.ranks[0].stage = stage
        self.has_moved = True

    @property
    def views(self):
        return [self.now]

    def read_journals(self):
        moved, self.has_moved = self.has_moved, False
        return moved

    def examine(self, patience_s):
        self.num_asked += 1
        return False


class Job:
    """Attendants of three ranks, and a clock that stands until a test lets it go on."""

    def __init__(self, monkeypatch, stall_s=5.0):
        self.now_s = 0.0
        monkeypatch.setattr(blocked_job, "time", SimpleNamespace(monotonic=lambda: self.now_s))
        self.ranks, self.board = [Watched() for _ in range(3)], Notes()
        self.attendants = [
            BlockedJobCheck(SimpleNamespace(rank=rank, world_size=3), self.board, watched, stall_s)
            for rank, watched in enumerate(self.ranks)
        ]

    def goes_on(self, seconds):
        """Return the time and the content of rank 0's findings in the next seconds."""
        end_s, found = self.now_s + seconds, []
        while self.now_s < end_s:
            self.now_s += 0.1
            for attendant in reversed(self.attendants):
                if verdict := attendant.verdict():
                    found.append((round(self.now_s, 1), verdict))
        return found


@pytest.fixture
def job(monkeypatch):
    return Job(monkeypatch)


WAITS = operation("all_reduce", 2, done=False)
PASSED = operation("all_reduce", 1)


def test_a_wait_for_a_rank_that_has_returned_is_a_proof(job):
    job.ranks[0].stands(PASSED, WAITS)
    job.ranks[1].stands(PASSED, WAITS)
    job.ranks[2].stands(PASSED, stage=Stage.RETURNED)
    (when_s, verdict), *_ = job.goes_on(12)
    assert verdict.is_proof and verdict.fault is Fault.LEFT and verdict.ranks == (2,)
    assert when_s < 10


def test_ranks_that_move_are_not_asked(job):
    for _ in range(20):
        for rank in job.ranks:
            rank.stands(PASSED, WAITS)
        assert job.goes_on(4) == []
    assert [rank.num_asked for rank in job.ranks] == [0, 0, 0]


def test_as_long_as_one_rank_moves_nothing_is_concluded(job):
    """Its first note said that it computes, for which others wait, and is not renewed."""
    job.ranks[0].stands(WAITS)
    job.ranks[2].stands(WAITS)
    job.ranks[1].stands()
    job.goes_on(6)  # one round of notes
    assert all(rank.num_asked == 1 for rank in job.ranks)
    found = []
    for _ in range(10):
        job.ranks[1].stands()
        found += job.goes_on(3)
    assert found == []


def test_a_rank_that_computes_is_reported_and_is_no_proof(job):
    job.ranks[0].stands(WAITS)
    job.ranks[1].stands(WAITS)
    job.ranks[2].stands()
    (_, verdict), *_ = job.goes_on(15)
    assert verdict.fault is Fault.SLOW and not verdict.is_proof and verdict.ranks == (2,)


def test_ranks_that_all_compute_are_no_news_and_are_asked_less_and_less(job):
    assert job.goes_on(125) == []
    assert all(10 <= rank.num_asked <= 18 for rank in job.ranks)


def test_a_rank_that_goes_on_while_it_is_asked_pins_nothing(job):
    job.ranks[0].stands(PASSED, WAITS)
    job.ranks[1].stands(PASSED, WAITS)
    going = job.ranks[2]
    going.stands(PASSED)
    count = iter(range(2, 100))

    def examine(patience_s):
        going.now = replace(
            going.now, operations=[*going.now.operations, operation("send", next(count), peer=0)]
        )

        return True

    going.examine = examine
    assert job.goes_on(20) == []
    assert set(job.board.pinned) == {"standing/0", "standing/1"}


def test_a_damaged_note_is_no_note(job):
    """It may have been read while a longer one took its place; the next one is whole."""
    job.ranks[0].stands(PASSED, WAITS)
    job.ranks[1].stands(PASSED, WAITS)
    job.ranks[2].stands(PASSED, stage=Stage.RETURNED)
    read, is_torn = job.board.read, True
    job.board.read = lambda key, parse: read(
        key, lambda note: parse(note[:-9] if is_torn else note)
    )
    assert job.goes_on(12) == []
    is_torn = False
    (_, verdict), *_ = job.goes_on(25)
    assert verdict.fault is Fault.LEFT


def test_a_board_that_does_not_answer_is_asked_again(job):
    job.ranks[0].stands(PASSED, WAITS)
    job.ranks[1].stands(PASSED, WAITS)
    job.ranks[2].stands(PASSED, stage=Stage.RETURNED)
    read = job.board.read

    def does_not_answer(key, parse):
        raise NoAnswer

    job.board.read = does_not_answer
    assert job.goes_on(12) == []
    job.board.read = read
    (_, verdict), *_ = job.goes_on(25)
    assert verdict.fault is Fault.LEFT


def test_what_one_round_of_notes_says_alone_is_not_reported(job):
    """Ranks talk past their Groups, which no journal shows: each round finds another cycle."""
    cycles = [job.ranks, job.ranks[:2]] * 9

    def at_each_look(number, rank):
        looks = iter(cycles)

        def examine(patience_s):
            cycle = next(looks)
            waits = operation("recv", 1, peer=(number + 1) % len(cycle), done=False)
            rank.now = View(Stage.RUNNING, [waits] if rank in cycle else [])
            return False

        return examine

    for number, rank in enumerate(job.ranks):
        rank.examine = at_each_look(number, rank)
    assert job.goes_on(60) == []


def test_a_rank_that_has_returned_is_asked_once(job):
    job.ranks[2].stands(PASSED, stage=Stage.RETURNED, stack=Stack(is_known=True))
    job.goes_on(60)
    assert job.ranks[2].num_asked == 1
    assert job.ranks[0].num_asked > 5


def test_a_rank_that_has_returned_is_asked_again_while_threads_of_it_live(job):
    job.ranks[0].stands(PASSED, WAITS)
    job.ranks[1].stands(PASSED, WAITS)
    left = Stack(is_known=True, num_other_threads=1)
    job.ranks[2].stands(PASSED, stage=Stage.RETURNED, stack=left)
    (_, verdict), *_ = job.goes_on(15)
    assert not verdict.is_proof
    assert verdict.text.endswith("unless another thread of rank 2 still brings it")
    job.ranks[2].now = replace(job.ranks[2].now, stack=Stack(is_known=True))
    *_, (_, verdict) = job.goes_on(25)
    assert verdict.is_proof and verdict.fault is Fault.LEFT


def test_nothing_is_asked_or_concluded_while_a_rank_is_starting(job):
    job.ranks[0].stands(PASSED, WAITS)
    job.ranks[1].stands(PASSED, WAITS)
    job.ranks[2].stands(stage=Stage.STARTING)
    assert job.goes_on(60) == []
    assert job.ranks[2].num_asked == 0


def test_never_is_never(monkeypatch):
    job = Job(monkeypatch, stall_s=None)
    job.ranks[0].stands(PASSED, WAITS)
    for rank in job.ranks[1:]:
        rank.stands(PASSED, stage=Stage.RETURNED)
    assert job.goes_on(100) == []
    assert job.ranks[0].num_asked == 0
