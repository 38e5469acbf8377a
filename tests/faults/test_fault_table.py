"""Every fault of examples/faults.py gets the verdict that names its rank, operation and line."""

import inspect
import os
import re
import select
import types
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace
from unittest import mock

import pytest
import torch

from labkit import Deadlock, Mismatch, RankError, RunTimeout, run
from labkit.comm import recorder
from labkit.doctor.verdict import Fault
from labkit.launch import notes
from tests.an_example import load_example

faults = load_example("faults")

SIZES = [2, 3, 4]
# World size -> the rank that is wrong, where any may be; in all other programs it is rank 1.
CULPRITS = {2: 1, 3: 0, 4: 3}
# (world size, the rank that is wrong) -> how a verdict calls the rest
OTHERS = {
    (2, 1): "rank 0",
    (4, 1): "ranks 0, 2 and 3",
    (3, 0): "ranks 1 and 2",
    (4, 3): "ranks 0, 1 and 2",
}
# name -> (error, fault, what the verdict says; {culprit} is the rank that is wrong)
VERDICTS = {
    "never_calls": (
        RunTimeout,
        Fault.SLOW,
        "{others} wait.? in all_reduce #1 .* for rank {culprit}, which "
        "sleeps or blocks before any operation",
    ),
    "returns_early": (
        Deadlock,
        Fault.LEFT,
        "{others} wait.? in all_reduce #4 .*; rank {culprit} returned after all_reduce #3 .*"
        "without calling it",
    ),
    "another_collective": (
        Mismatch,
        Fault.MISMATCH,
        "(?=.*rank {culprit} calls barrier #1)(?=.*{others} calls? all_reduce #1)",
    ),
    "another_shape": (
        Mismatch,
        Fault.MISMATCH,
        r"in all_reduce #1, .*rank {culprit} passes shape \(3,\)",
    ),
    "another_dtype": (
        Mismatch,
        Fault.MISMATCH,
        "in all_reduce #1, .*rank {culprit} passes float64",
    ),
    "swapped_calls": (
        Mismatch,
        Fault.MISMATCH,
        r"as all_reduce #1 rank 0 calls world.all_reduce\(weight\) .*rank 1 "
        r"world.all_reduce\(bias\).*as all_reduce #2 rank 0 calls world.all_reduce\(bias\)",
    ),
    "loop_in_another_order": (
        Mismatch,
        Fault.MISMATCH,
        "in all_reduce #1, (?=.*rank {culprit} gives label .weight.)"
        "(?=.*{others} gives? label .bias.)",
    ),
    "messages_in_another_order": (
        Mismatch,
        Fault.MISMATCH,
        "send #1 to rank 1 from rank 0 .* has label bias, but the buffer that rank 1 receives it in"
        " .* has label weight",
    ),
    "another_reduce_op": (
        Mismatch,
        Fault.MISMATCH,
        "in all_reduce #1, .*rank {culprit} reduces by max",
    ),
    "send_against_send": (
        Deadlock,
        Fault.CYCLE,
        "ranks 0 and 1 wait for each other: rank 0 in send #1 to rank 1 .*"
        "rank 1 in send #1 to rank 0",
    ),
    "another_root": (
        Mismatch,
        Fault.MISMATCH,
        "in broadcast #1, .*rank 1 names rank 1 as the root",
    ),
    "receives_what_nobody_sends": (
        Deadlock,
        Fault.LEFT,
        "rank 0 waits in recv #1 from rank 1 .*; rank 1 returned after barrier #1 .*"
        "without sending it",
    ),
    "everybody_receives_first": (
        Deadlock,
        Fault.CYCLE,
        "wait (for each other|in a cycle).*rank 1 in recv #1 from rank 0",
    ),
    "message_too_long": (
        Mismatch,
        Fault.MISMATCH,
        r"send #1 to rank 0 from rank 1 .*shape \(5,\).*rank 0 receives it in .*shape \(3,\)",
    ),
    "message_too_short": (
        Mismatch,
        Fault.MISMATCH,
        r"send #1 to rank 0 from rank 1 .*shape \(2,\).*rank 0 receives it in .*shape \(3,\)",
    ),
    "uneven_rows": (
        Mismatch,
        Fault.MISMATCH,
        "in all_to_all #1, rank 1 sends rank 0 3 rows .*rank 0 expects 2",
    ),
    "groups_in_another_order": (
        Deadlock,
        Fault.CYCLE,
        "ranks 0 and 1 wait for each other: rank 0 in all_reduce #1 of group world.1.0 .*"
        "rank 1 in all_reduce #1 of group world.2.0",
    ),
    "not_a_member": (
        RankError,
        None,
        "rank {culprit} uses all_reduce of a group .*does not belong to",
    ),
    "is_killed": (RankError, None, "rank {culprit} died: .*SIGKILL"),
    "raises": (RankError, None, "rank {culprit} raised KeyError"),
    "torchs_own_ddp": (
        Deadlock,
        Fault.LEFT,
        # Three came before: DDP's constructor compares shapes in two, and broadcasts the weights.
        "{others} waits? in all_reduce #4 of torch.distributed .*; rank {culprit} returned after 3 "
        "collectives of torch.distributed, without calling it",
    ),
    "torchs_own_all_reduce": (
        Mismatch,
        Fault.MISMATCH,
        r"in all_reduce #1 of torch.distributed, .*rank {culprit} passes shape \(3,\)",
    ),
}
# For a rank that raised or died: the verdict's words for the positions of the others.
WHERE_OTHERS_WERE = {
    # It may be performing, over, or on its way back from it.
    "not_a_member": "(waits in|[a-z ]+ after) all_reduce #1 of group world.1.0 .faults.py, line ",
    # The connections of one that died break, which not all of them have noticed yet.
    "is_killed": "(waits|raised RuntimeError) in all_reduce #1 .faults.py, line ",
    "raises": "waits in all_reduce #1 .faults.py, line ",
}
# Faults that any rank may have, where the verdict names the faulty rank alone.
OF_ONE_RANK = [
    "never_calls",
    "returns_early",
    "another_collective",
    "another_shape",
    "another_dtype",
    "loop_in_another_order",
    "another_reduce_op",
    "not_a_member",
    "is_killed",
    "raises",
    "torchs_own_ddp",
    "torchs_own_all_reduce",
]
# Two orders: which is the wrong one nobody knows, and the verdict names one rank of each.
OF_TWO_ORDERS = ["swapped_calls"]


@pytest.fixture(scope="module", autouse=True)
def ready():
    """Import torch in the fork server first: one of the faults has 5 s in all."""
    run(lambda world: None, 1, timeout=600)


def marked_lines(program):
    """The lines that a verdict on the program must name."""
    lines, first = inspect.getsourcelines(program)
    return [first + n for n, line in enumerate(lines) if line.rstrip().endswith("# <-")]


def test_no_fault_of_the_table_goes_untested():
    assert set(faults.FAULTS) == set(VERDICTS) | {"straggles"}


@pytest.mark.parametrize("name", VERDICTS)
def test_the_verdict_names_rank_operation_and_line(name):
    with ThreadPoolExecutor() as pool:  # side by side: most of the time they wait
        list(pool.map(partial(require_verdict, name), SIZES))


@pytest.mark.parametrize("world_size", [3, 4])
@pytest.mark.parametrize("name", OF_TWO_ORDERS)
def test_the_rank_that_is_wrong_is_one_of_two_in_another_order(name, world_size):
    culprit = CULPRITS[world_size]
    with pytest.raises(Mismatch) as caught:
        run(wrong_on(faults.FAULTS[name], culprit), world_size)
    ranks = caught.value.verdict.ranks
    assert len(ranks) == 2 and culprit in ranks
    assert "in another order" in str(caught.value)


def wrong_on(program, culprit):
    """The same program with a CULPRIT of its own: others run side by side with it."""
    its_globals = {**vars(faults), "CULPRIT": culprit}
    return types.FunctionType(program.__code__, its_globals, program.__name__)


def require_verdict(name, world_size):
    """Cause the fault: the error that comes of it says all that it must."""
    program = faults.FAULTS[name]
    culprit = CULPRITS[world_size] if name in OF_ONE_RANK else faults.CULPRIT
    error_class, fault, said = VERDICTS[name]
    timeout_s = 5 if error_class is RunTimeout else 60
    with pytest.raises(error_class) as caught:
        run(wrong_on(program, culprit), world_size, timeout=timeout_s, stall=0.5)
    error, text = caught.value, str(caught.value)
    assert type(error) is error_class, world_size
    said = said.format(culprit=culprit, others=OTHERS.get((world_size, culprit)))
    assert re.search(said, text.splitlines()[0]), text
    assert (error.verdict and error.verdict.fault) == fault, text
    if name in OF_ONE_RANK and world_size > 2:  # either of two could be wrong
        assert (error.verdict.ranks if error.verdict else (error.rank,)) == (culprit,)
    for line in marked_lines(program):
        assert f"faults.py, line {line}" in text or f'faults.py", line {line} in' in text, text
    if error_class is RankError:
        require_where_the_others_were(name, error, world_size)


def require_where_the_others_were(name, error, world_size):
    assert sorted([error.rank, *error.consequences]) == list(range(world_size))
    line = marked_lines(faults.FAULTS[name])[-1]
    for where in error.consequences.values():
        assert re.match(f"{WHERE_OTHERS_WERE[name]}{line}\\)", where), error


@pytest.fixture
def when_reported(monkeypatch):
    """Calls a function of the test once the lab has printed a line."""

    def call(then):
        def tell(text, tell=notes.print_note):
            tell(text)
            then()

        monkeypatch.setattr(notes, "print_note", tell)

    return call


def asleep_until_written(world, program, path):
    """Perform a program of which each sleep ends once somebody has written to this FIFO."""
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    # Both are calls of C: to the doctor the rank is in the program's own line.
    program.__globals__["time"] = SimpleNamespace(sleep=partial(select.select, [reader], [], []))
    program(world)


@pytest.mark.parametrize("world_size", [2, 4])
def test_a_straggler_is_reported_with_its_line_and_let_go_on(
    world_size, capsys, monkeypatch, tmp_path, when_reported
):
    """The straggler sleeps until it has been reported, or the run would end by its timeout."""
    monkeypatch.setattr(faults, "STALL_S", 1000)
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    when_reported(lambda: fifo.write_bytes(b"go on"))
    # Two seconds, in which the straggler falls asleep, also where it has to wait for a core.
    result = run(asleep_until_written, world_size, (faults.straggles, fifo), stall=2)
    lines = capsys.readouterr().out.splitlines()
    slept, called = marked_lines(faults.straggles)
    wait = "wait" if world_size > 2 else "waits"
    assert " ".join(lines) == (
        f"[labkit] {OTHERS[world_size, 1]} {wait} in all_reduce #1 (faults.py, line {called}) for "
        f"rank 1, which sleeps or blocks before any operation (faults.py, line {slept}). "
        "The timeout is 120 s."
    )
    assert len(lines) > 1 and max(map(len, lines)) <= 96, "a page would break it within a word"
    done = [[each.done_s is not None for each in line.operations] for line in result.timeline]
    assert done == [[True]] * world_size, "all of them have come"


def test_a_straggler_that_computes_is_reported_as_computing(capsys, tmp_path, when_reported):
    """The straggler computes until it has been reported."""
    reported = tmp_path / "told"

    def straggles(world):
        # On a busy machine a rank that computes hardly gets a core: any time on one counts.
        with mock.patch.object(recorder, "_BUSY_S", 1e-9):
            while world.rank == 1 and not reported.exists():
                pass
        world.all_reduce(torch.ones(3))

    when_reported(reported.touch)
    run(straggles, 2, stall=2)
    line = " ".join(capsys.readouterr().out.split())
    assert line.count("[labkit]") == 1
    assert "for rank 1, which computes before any operation" in line


def test_a_mismatch_is_caught_before_any_number_is_wrong():
    def another_op(world):
        world.all_reduce(torch.ones(3), "max" if world.rank else "sum")

    with pytest.raises(Mismatch) as caught:
        run(another_op, 2)
    posted = [operation for timeline in caught.value.timeline for operation in timeline.operations]
    assert len(posted) == 2
    assert any(operation.failed for operation in posted), "one rank refused, or both"
    assert all(operation.failed or operation.done_s is None for operation in posted)
