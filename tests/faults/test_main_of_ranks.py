"""What stands in the same script or cell as the function can be pickled on ranks, as without us."""

import subprocess
import sys
from pathlib import Path

SCRIPT = '''
import functools
import pickle
from dataclasses import dataclass

import torch
import torch.distributed as dist

import labkit
import library


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


def gathers(world):
    """Objects of a class of the script's."""
    found = [None] * world.size
    dist.all_gather_object(found, Stats(world.rank))
    return found


def saves(world, path):
    """A model with its class, of which torch stores the name only."""
    if world.rank == 0:
        torch.save(Net(), path)


def sends_its_argument(config, world):
    """Only the argument is of this class: no function names it."""
    return pickle.loads(pickle.dumps(config)) == config, pickle.loads(pickle.dumps(double))(2)


def pickles_itself(path):
    again = pickle.loads(pickle.dumps(pickles_itself))
    return again("") if path else double(2)


if __name__ == "__main__":
    assert labkit.run(gathers, 2).values == [[Stats(0), Stats(1)]] * 2
    labkit.run(saves, 2, ["net.pt"])
    assert type(torch.load("net.pt", weights_only=False)) is Net
    bound = functools.partial(sends_its_argument, Config(3))
    assert labkit.run(bound, 2).values == [(True, 4)] * 2
    # `call` is a library's, and only its arguments are of this script.
    assert labkit.run(library.call, 2, [pickles_itself, "again"]).values == [4, 4]
    assert labkit.run(library.call, 2, [functools.partial(pickles_itself, "")]).values == [4, 4]
    print("as without us")
'''


def test_a_scripts_own_classes_and_functions_can_be_pickled_on_ranks(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    library = "def call(world, function, *args):\n    return function(*args)\n"
    (tmp_path / "library.py").write_text(library)
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(root), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.endswith("as without us\n"), done.stdout + done.stderr
