"""Ranks that stay for the next run: the same processes, and nothing of the last run in them."""

import os

import pytest
import torch

from labkit import RankError, run


def process_dtype_and_number(world):
    found = os.getpid(), torch.get_default_dtype(), torch.rand(1).item()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    return found


def test_a_run_finds_the_processes_of_the_last_one_and_neither_its_dtype_nor_its_seed():
    runs = [run(process_dtype_and_number, 2).values for _ in range(3)]
    found = [each for values in runs for each in values]
    assert len({process for process, *_ in found}) == 2
    assert {dtype for _, dtype, _ in found} == {torch.float32}
    assert len({number for *_, number in found}) == 6


def leaves_a_message(world):
    if world.rank == 0:
        world.isend(torch.ones(3), 1)
    return os.getpid()


def sends_zeros(world):
    if world.rank == 0:
        world.send(torch.zeros(3), 1)
        return os.getpid(), None
    return os.getpid(), world.recv(torch.empty(3), 0).tolist()


def test_a_message_that_a_run_has_left_reaches_no_other_run():
    before = run(leaves_a_message, 2).values
    (first, _), (second, received) = run(sends_zeros, 2).values
    assert received == [0, 0, 0]
    assert not {first, second} & set(before)


def fails(world, on):
    """The others wait for those that fail."""
    if world.rank in on:
        raise ValueError
    world.barrier()


def processes():
    return set(run(lambda world: os.getpid(), 2).values)


def test_ranks_that_have_failed_together_stay_and_those_out_of_step_do_not():
    before = processes()
    with pytest.raises(RankError):
        run(fails, 2, ([0, 1],))
    assert processes() == before
    with pytest.raises(RankError):
        run(fails, 2, ([0],))
    assert not processes() & before
