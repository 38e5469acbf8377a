"""Ranks draw random numbers of their own unless they seed, as processes of torchrun do."""

import random

import numpy
import torch

from labkit import Session, attempt, elastic, run


def drawn(world):
    """A number of each generator that a program may use without a seed, by the generator's name."""
    return {
        "torch": torch.nn.Linear(2, 1).weight[0, 0].item(),
        "numpy": numpy.random.rand(),
        "python": random.random(),
    }


def all_differ(draws):
    return all(len({each[name] for each in draws}) == len(draws) for name in draws[0])


def test_unseeded_ranks_differ_and_so_do_runs():
    draws = []
    for world_size in (3, 2):
        torch.manual_seed(0)  # in the caller: it reaches no rank
        draws += run(drawn, world_size, timeout=600).values
    assert all_differ(draws)


def test_seeded_ranks_are_equal():
    def seeds_and_draws(world):
        torch.manual_seed(0)
        numpy.random.seed(0)
        random.seed(0)
        return drawn(world)

    first, second = run(seeds_and_draws, 2).values
    assert first == second


CELL = """
import random, numpy
{"torch": torch.rand(1).item(), "numpy": numpy.random.rand(), "python": random.random()}
"""


def test_ranks_of_a_session_differ_and_so_do_sessions():
    draws = []
    for _ in range(2):
        with Session(2) as session:
            draws += session.execute(CELL).values + session.execute(CELL).values
    assert all_differ(draws)


def test_restarted_ranks_differ_from_those_before(tmp_path):
    def draws_and_restarts(world):
        (tmp_path / f"{attempt()}-{world.rank}").write_text(repr(drawn(world)))
        world.barrier()
        if attempt() == 0:
            raise elastic.Restart

    elastic.run(draws_and_restarts, 2)
    assert all_differ([eval(path.read_text()) for path in tmp_path.iterdir()])
