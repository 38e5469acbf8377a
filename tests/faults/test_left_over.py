"""A run reports what it leaves unfinished, and nothing else, when all ranks have returned."""

import re

import pytest
import torch

from labkit import Session, run
from labkit.launch import launch
from tests.faults.test_no_false_verdicts import (
    STEPS,
    branches_for_a_broadcast,
    contributes_or_not,
    from_a_thread,
    program,
)

QUIET = [each for each in STEPS if each not in (branches_for_a_broadcast, contributes_or_not)]


def reported(program, capsys, world_size=2, args=()):
    """The lines that a run prints of its own; `LINE` for a line of this file."""
    run(program, world_size, args, timeout=600, device="cpu")
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("[labkit]")]
    return [re.sub(r"\(test_left_over.py, line \d+\)", "(LINE)", line) for line in lines]


def forgets_to_wait(world):
    x = torch.full((3,), float(world.rank))
    world.all_reduce(x, out=x, wait=False)


def test_an_operation_that_nobody_waits_for(capsys):
    assert reported(forgets_to_wait, capsys) == [
        "[labkit] ranks 0 and 1 never waited for all_reduce #1 (LINE): until wait() has returned, "
        "nobody knows what the tensors hold."
    ]


def one_call_more(world):
    world.all_reduce(torch.ones(3))
    if world.rank == 1:
        world.all_reduce(torch.ones(3), wait=False)


def test_a_collective_that_not_all_have_called(capsys):
    assert reported(one_call_more, capsys, 3) == [
        "[labkit] rank 1 never waited for all_reduce #2 (LINE), and ranks 0 and 2 never called it."
    ]


def one_more_of_a_split(world):
    half = world.split(world.rank // 2)
    if world.rank == 3:
        half.all_reduce(torch.ones(3), wait=False)


def test_a_groups_members_are_those_who_are_missed(capsys):
    assert reported(one_more_of_a_split, capsys, 4) == [
        "[labkit] rank 3 never waited for all_reduce #1 of group world.1.1 (LINE), and rank 2 "
        "never called it."
    ]


def sends_in_vain(world):
    for _ in range(3):
        if world.rank:
            world.isend(torch.ones(3), 0)


def receives_in_vain(world):
    if world.rank:
        world.irecv(torch.ones(3), 0)


def test_messages_with_one_end_are_reported_once_for_each_line(capsys):
    assert reported(sends_in_vain, capsys) == [
        "[labkit] rank 1 never waited for send #1 to rank 0 and 2 more of this line (LINE), and "
        "rank 0 never received them."
    ]
    assert reported(receives_in_vain, capsys) == [
        "[labkit] rank 1 never waited for recv #1 from rank 0 (LINE), and rank 0 never sent it."
    ]


def neither_end_waits(world):
    if world.rank:
        world.isend(torch.ones(3), 0)
    else:
        world.irecv(torch.ones(3), 1)


def test_a_message_that_nobody_waits_for_is_reported_at_both_ends(capsys):
    assert reported(neither_end_waits, capsys) == [
        "[labkit] rank 0 never waited for recv #1 from rank 1 (LINE): until wait() has returned, "
        "nobody knows what the tensors hold.",
        "[labkit] rank 1 never waited for send #1 to rank 0 (LINE): until wait() has returned, "
        "nobody knows whether it arrived.",
    ]


def the_last_send_is_received(world):
    if world.rank:
        world.isend(torch.ones(3), 0)
    else:
        world.recv(torch.empty(3), 1)


def test_a_send_that_was_received_has_left_nothing(capsys):
    assert reported(the_last_send_is_received, capsys) == []


def on_seven_lines(world):
    if world.rank:
        world.isend(torch.ones(1), 0)
        world.isend(torch.ones(1), 0)
        world.isend(torch.ones(1), 0)
        world.isend(torch.ones(1), 0)
        world.isend(torch.ones(1), 0)
        world.isend(torch.ones(1), 0)
        world.isend(torch.ones(1), 0)


def test_many_places_are_counted(capsys):
    lines = reported(on_seven_lines, capsys)
    assert len(lines) == 6 and lines[-1] == "[labkit] The same in 2 more places."


@pytest.mark.parametrize("step", [*QUIET, from_a_thread])
@pytest.mark.parametrize("world_size", [1, 3])
def test_healthy_steps_leave_nothing(step, world_size, capsys):
    assert reported(step, capsys, world_size, (0, 0.01)) == []


def test_healthy_programs_leave_nothing(capsys):
    for seed in range(4):
        launch(program, 3, [(seed,)], stall=None, timeout=600, device="cpu")
    lines = capsys.readouterr().out.splitlines()
    assert all("met from different lines" in line for line in lines if "[labkit]" in line)


def gives_and_passes(world):
    for _ in range(3):
        if world.rank == 0:
            world.all_reduce(torch.ones(3))
        else:
            world.all_reduce(torch.zeros(3))


def test_calls_that_met_from_different_lines_are_reported_once(capsys):
    assert reported(gives_and_passes, capsys, 3) == [
        "[labkit] all_reduce #1 and 2 more met from different lines, "
        "world.all_reduce(torch.ones(3)) (LINE) on rank 0 and "
        "world.all_reduce(torch.zeros(3)) (LINE) on ranks 1 and 2."
    ]


def test_a_cell_may_leave_what_a_later_one_waits_for(capsys):
    with Session(2, device="cpu") as session:
        session.execute("pending = world.all_reduce(torch.ones(2), wait=False)")
        session.execute("world.isend(torch.ones(1), 0) if rank else None")
        session.execute("pending.wait(); None if rank else world.recv(torch.empty(1), 1)")
    assert "[labkit]" not in capsys.readouterr().out


def test_who_asks_for_no_lines_gets_none(capsys):
    launch(forgets_to_wait, 2, [()], timeout=600, device="cpu", echo=False)
    assert capsys.readouterr().out == ""
