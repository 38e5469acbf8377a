"""Classes of the function's own script or cell can be pickled on ranks, as in any process."""

import functools
import sys
from types import ModuleType

import pytest
import torch

import labkit

SCRIPT = """
import pickle
from dataclasses import dataclass

import torch
import torch.distributed as dist


@dataclass
class Stats:
    rank: int


@dataclass
class Config:
    steps: int


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 2)


def double(x):
    return 2 * x


def gathers(world, path):
    found = [None] * world.size
    dist.all_gather_object(found, Stats(world.rank))
    if world.rank == 0:
        torch.save(Net(), path)  # torch stores the name of its class only
    return found


def sends_its_argument(config, world):
    return pickle.loads(pickle.dumps(config)) == config, pickle.loads(pickle.dumps(double))(2)


def pickles_itself(path):
    again = pickle.loads(pickle.dumps(pickles_itself))
    return again("") if path else double(2)
"""


@pytest.fixture
def script(tmp_path, monkeypatch):
    """The script as this process's `__main__`, which it is where a reader runs it."""
    main = ModuleType("__main__")
    main.__file__ = str(tmp_path / "script.py")
    (tmp_path / "script.py").write_text(SCRIPT)
    exec(compile(SCRIPT, main.__file__, "exec"), main.__dict__)
    monkeypatch.setitem(sys.modules, "__main__", main)
    return main


def call(world, function, *args):
    """Call a function as a library does: only its arguments are the script's."""
    return function(*args)


def test_a_class_of_the_script_travels_between_ranks_and_into_a_file(script, tmp_path):
    path = tmp_path / "net.pt"
    values = labkit.run(script.gathers, 2, [path]).values
    assert values == [[script.Stats(0), script.Stats(1)]] * 2
    assert type(torch.load(path, weights_only=False)) is script.Net


def test_a_class_that_only_an_argument_is_of_travels(script):
    bound = functools.partial(script.sends_its_argument, script.Config(3))
    assert labkit.run(bound, 2).values == [(True, 4)] * 2


def test_a_function_that_a_library_calls_can_pickle_itself(script):
    assert labkit.run(call, 2, [script.pickles_itself, "again"]).values == [4, 4]
    bound = functools.partial(script.pickles_itself, "")
    assert labkit.run(call, 2, [bound]).values == [4, 4]
