"""The doctor's rules on journals made by hand, where a real run can hardly be made to stand so."""

import re
from dataclasses import replace
from types import SimpleNamespace

import pytest

from labkit.comm import Site, mismatch
from labkit.comm.recorder import Recorded
from labkit.doctor.diagnose import diagnose, diagnose_now
from labkit.doctor.position import position_of, table
from labkit.doctor.stacks import Stack
from labkit.doctor.verdict import CALL_ALIKE, CALL_ON_ALL, Fault, Stage
from labkit.doctor.waiting import View, needed_by
from labkit.launch import failure, listen
from tests.an_operation import an_operation

GROUP = (0, 1, 2, 3)


def operation(kind="all_reduce", sequence=1, *, line=1, peer=None, group="world", done=False):
    return an_operation(
        kind,
        sequence,
        at=Site("train.py", line, "step", f"call at line {line}"),
        group=GROUP,
        group_name=group,
        peer=peer,
        done_s=sequence + 0.5 if done else None,
    )


def running(*operations, **known):
    return View(Stage.RUNNING, list(operations), **known)


WAITS, DONE = operation(), operation(done=True)


def test_a_wait_for_one_that_computes_is_no_deadlock():
    late = running(stack=Stack(True, "", Site("train.py", 9, "load")))
    verdict = diagnose([running(WAITS), late, running(WAITS), running(WAITS)])
    assert verdict.fault is Fault.SLOW and not verdict.is_proof
    assert "rank 1, which computes" in verdict.text and "train.py, line 9" in verdict.text


def test_what_all_have_posted_is_under_way():
    views = [running(WAITS) for _ in GROUP]
    assert diagnose(views).fault is Fault.UNDER_WAY


def test_ranks_that_only_compute_wait_for_nobody():
    verdict = diagnose([running(DONE) for _ in GROUP])
    assert verdict.fault is Fault.BUSY
    assert verdict.text.endswith("ranks 0, 1, 2 and 3 compute")
    views = [running(DONE, recorded=Recorded(is_idle=rank != 2)) for rank in GROUP]
    assert diagnose(views).text.endswith("ranks 0, 1 and 3 sleep or block and rank 2 computes")


def test_a_rank_that_is_idle_in_this_cell_will_not_come():
    views = [running(WAITS), View(Stage.IDLE), running(WAITS), View(Stage.IDLE)]
    verdict = diagnose(views)
    assert verdict.fault is Fault.LEFT and verdict.ranks == (1, 3)
    assert "(not in this cell)" in verdict.text and "(--on)" in verdict.advice


def test_a_cycle_through_a_message_and_a_collective_is_found_behind_a_slow_rank():
    views = [
        running(operation("all_reduce", line=4)),  # waits for 1, 2 and 3
        running(operation("recv", peer=2, line=5)),
        running(operation("all_reduce", line=4)),
        running(),
    ]
    verdict = diagnose(views)
    assert verdict.fault is Fault.CYCLE and verdict.ranks == (1, 2)
    assert "rank 1 in recv #1 from rank 2 (train.py, line 5)" in verdict.text
    assert "rank 2 in all_reduce #1 (train.py, line 4)" in verdict.text


def part_of_a_call(kind, peer, label="weights of 0"):
    """A message that labkit sends for a line of the reader's."""
    at = Site("labkit/collectives/stream.py", 87, "stream", "group.irecv(buffer, source)")
    origin = Site("train.py", 12, "step", "model(x)")
    posted = operation(kind, peer=peer, group="world.1.0")
    return replace(posted, site=at, origin=origin, label=label)


def test_messages_of_a_strategy_are_reported_by_the_call_and_what_it_is_for():
    ring = [part_of_a_call("recv", peer) for peer in (3, 0, 1)]
    verdict = diagnose([*map(running, ring), View(Stage.RETURNED)])
    assert verdict.fault is Fault.LEFT and verdict.ranks == (3,)
    assert "ranks 0, 1 and 2 wait in model(x) (weights of 0; train.py, " in verdict.text
    assert verdict.advice == CALL_ON_ALL


def test_a_cycle_of_a_strategys_messages_is_one_of_calls():
    views = [running(part_of_a_call("recv", 1)), running(part_of_a_call("recv", 0, "gradients"))]
    verdict = diagnose(views)
    assert verdict.fault is Fault.CYCLE and verdict.advice == CALL_ALIKE
    assert "rank 1 in model(x) (gradients; train.py, line 12)" in verdict.text


@pytest.mark.parametrize("num_threads", [0, 1])
def test_a_cycle_is_a_proof_unless_another_thread_may_open_it(num_threads):
    stack = Stack(True, num_other_threads=num_threads)
    views = [
        running(operation("recv", peer=1), stack=stack),
        running(operation("recv", peer=0)),
    ]
    verdict = diagnose(views)
    assert verdict.fault is Fault.CYCLE
    assert verdict.is_proof == (num_threads == 0)
    assert ("another thread of rank 0" in verdict.text) == (num_threads == 1)


def test_a_rank_that_has_returned_brings_nothing_though_others_have_threads():
    with_thread = Stack(True, num_other_threads=1)
    views = [running(WAITS, stack=with_thread), *[View(Stage.RETURNED)] * 3]
    assert diagnose(views).is_proof


def test_a_thread_that_a_returned_rank_has_left_may_still_bring_it():
    def of_the_other(is_held):
        left = View(Stage.RETURNED, stack=Stack(True, num_other_threads=1, is_held=is_held))
        return diagnose([running(WAITS, stack=Stack(True, is_held=True)), *[left] * 3])

    assert not of_the_other(is_held=False).is_proof
    assert of_the_other(is_held=True).is_proof


def test_an_operation_that_failed_on_a_rank_is_not_its_part():
    failed = replace(DONE, failed=True)
    verdict = diagnose([running(WAITS), *[View(Stage.RETURNED, [failed])] * 3])
    assert verdict.fault is Fault.LEFT and verdict.is_proof
    assert "returned after all_reduce #1 failed" in verdict.text


def test_a_rank_that_uses_no_time_does_not_compute():
    asleep = running(recorded=Recorded(is_idle=True))
    verdict = diagnose([running(WAITS), asleep, running(WAITS), running(WAITS)])
    assert "rank 1, which sleeps" in verdict.text


def test_the_longest_wait_is_reported_first():
    views = [running(operation(sequence=7)), View(Stage.RETURNED), running(WAITS), running(WAITS)]
    assert diagnose(views).text.startswith("ranks 2 and 3 wait in all_reduce #1")


@pytest.mark.parametrize(
    ("kind", "root", "rank", "needed"),
    [
        ("broadcast", 0, 0, {1, 2}),  # its children in gloo's tree
        ("broadcast", 0, 3, {1, 0}),  # its parent, and the parent's parent
        ("broadcast", 2, 2, {3, 0}),
        ("gather", 1, 3, {1}),
        ("gather", 1, 1, set(GROUP)),
        ("scatter", 0, 2, {0}),
        ("all_gather", None, 2, set(GROUP)),
    ],
)
def test_whom_a_collective_needs(kind, root, rank, needed):
    assert set(needed_by(operation(kind, peer=root), rank)) == needed


def test_torchs_own_operation_counts_as_waiting_only_while_its_rank_rests():
    foreign = replace(WAITS, group_name="torch.distributed")
    at_rest = Recorded([foreign], {"torch.distributed": 1}, is_idle=True, awaited=0)
    computing = replace(at_rest, is_idle=False)
    assert running(recorded=at_rest).waits_in is foreign
    assert running(recorded=computing).waits_in is None
    gone = [View(Stage.RETURNED, recorded=Recorded(is_known=True))] * 3
    assert diagnose([running(recorded=at_rest), *gone]).fault is Fault.LEFT


def test_a_collective_that_its_rank_has_only_started_is_no_wait():
    """It may wait for a file, or a child: then nobody says that it waits for this."""
    foreign = replace(WAITS, group_name="torch.distributed")
    started = Recorded([foreign], {"torch.distributed": 1}, is_idle=True, is_known=True)
    assert running(recorded=started).waits_in is None


def test_a_rank_that_has_not_answered_is_not_said_to_have_left():
    foreign = replace(WAITS, group_name="torch.distributed")
    waits = running(recorded=Recorded([foreign], {"torch.distributed": 1}, True, True, 0))
    mute = View(Stage.RETURNED)
    assert diagnose([waits, mute, mute, mute]).fault is Fault.SLOW


def test_a_mismatch_comes_before_every_other_cause():
    views = [running(WAITS), running(replace(WAITS, shape=(4,))), View(Stage.RETURNED)]
    verdict = diagnose(views)
    assert verdict.fault is Fault.MISMATCH
    assert "rank 0 passes shape (3,)" in verdict.text and verdict.ranks == (0, 1)


@pytest.fixture
def compared(monkeypatch):
    """A count of the operations that were compared."""
    count = SimpleNamespace(num=0)

    def collective_difference(operations, collective_difference=mismatch.collective_difference):
        count.num += len(operations)
        return collective_difference(operations)

    monkeypatch.setattr(mismatch, "collective_difference", collective_difference)
    return count


class Stopped:
    """A supervisor of ranks that run, and the evidence, which is all there already."""

    def __init__(self, views):
        self.views, self.stacks = views, [view.stack for view in views]
        self.ranks = [SimpleNamespace(report=None, is_active=True, stage=v.stage) for v in views]
        self.evidence = self

    def examine(self, patience_s):
        pass


def many(num, **last):
    done = replace(operation(done=True), group=(0, 1))
    return [replace(done, sequence=n, index=n) for n in range(1, num)] + [
        replace(WAITS, group=(0, 1), sequence=num, index=num, **last)
    ]


@pytest.mark.parametrize(
    "look",
    [
        lambda views: failure.interrupted(Stopped(views)),
        lambda views: listen.examine_and_diagnose(Stopped(views), 0),
    ],
    ids=["stop", "stall"],
)
def test_stop_and_looks_at_a_run_take_as_long_after_many_operations_as_after_few(compared, look):
    look([running(*many(20_000)) for _ in range(2)])
    assert 0 < compared.num <= 2000


def test_while_a_run_is_under_way_a_mismatch_that_its_program_caught_is_seen():
    views = [running(*many(2000)), running(*many(2000, shape=(4,)))]
    assert diagnose_now(views) == diagnose(views)
    assert diagnose_now(views).fault is Fault.MISMATCH


def test_the_table_has_a_row_for_each_place():
    views = [running(WAITS), View(Stage.DIED, [DONE]), running(WAITS), View(Stage.STARTING)]
    rows = [re.split("  +", line.strip()) for line in table(views).splitlines()]
    assert rows == [
        ["ranks 0 and 2", "wait in all_reduce #1", "train.py, line 1", "sum of float32 (3,)"],
        ["rank 1", "died after all_reduce #1", "train.py, line 1"],
        ["rank 3", "was still starting"],
    ]
    assert "all_reduce #1 (train.py, line 1)" in position_of(views[1])


def test_collectives_of_torchs_own_are_counted():
    recorded = Recorded(enqueued={"torch.distributed": 2})
    view = View(Stage.RETURNED, recorded=recorded)
    assert "2 collectives of torch.distributed" in position_of(view)
