"""examples/train.py goes on where it was, on another number of ranks."""

import os
import signal
import sys

from labkit import run
from tests.an_example import load_example

train = load_example("train")


def trains(world, folder, num_steps, ends_early=False):
    sys.argv = ["train.py", "--steps", str(num_steps), "--every", "3", "--checkpoints", str(folder)]
    if ends_early and world.rank == 1:
        signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGTERM))
        signal.setitimer(signal.ITIMER_REAL, 0.5)
    return train.main(world)


def test_it_goes_on_from_its_newest_checkpoint_and_saves_when_the_end_is_announced(tmp_path):
    whole = run(trains, 2, (tmp_path / "whole", 6)).values[0]["losses"]
    assert len(whole) == 6
    ended = run(trains, 2, (tmp_path / "job", 10_000, True)).values[1]["losses"]
    assert 0 < len(ended) < 10_000
    went_on = run(trains, 3, (tmp_path / "job", len(ended) + 2)).values[0]
    assert (went_on["first_step"], len(went_on["losses"])) == (len(ended), 2)
    num = min(len(ended), 6)
    assert ended[:num] == whole[:num]
