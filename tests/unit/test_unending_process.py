"""A process that even SIGKILL does not end at once keeps nobody from the run's error."""

from multiprocessing import Pipe

from labkit.launch import rank_process
from labkit.launch.rank_process import RankProcess


class Sleeper:
    """In an uninterruptible sleep: alive, whatever it was sent."""

    pid = None

    def __init__(self):
        self.waits_s = []

    def join(self, timeout=None):
        assert timeout is not None, "waits for ever"
        self.waits_s.append(timeout)

    def is_alive(self):
        return True


def test_an_unending_process_is_reported_and_left(capsys):
    control, output, lifeline = (Pipe()[0] for _ in range(3))
    sleeper = Sleeper()
    RankProcess(1, sleeper, control, output, lifeline).end(0.5)
    assert sleeper.waits_s == [0.5, rank_process._KILLED_S]
    assert "of rank 1 does not end: it was sent SIGKILL" in capsys.readouterr().out
    assert control.closed and output.closed
