"""What a backend's thread is about to let go of is nobody's memory."""

import threading
import time

import torch

from labkit.grade.graders.context_watch import ComputedStorages
from labkit.grade.graders.live_storages import LiveStorages
from labkit.grade.graders.patience import Patience
from labkit.grade.graders.zero3_watch import FORWARD, Diary


class Regions:
    """As much of a WatchedGroup as a diary asks for."""

    def region(self, name):
        return torch.no_grad()


def let_go_later(held):
    """A thread that has `held`'s tensor for a moment longer than anybody else."""

    def hold(tensor):
        time.sleep(0.03)

    thread = threading.Thread(target=hold, args=(held.pop(),))
    thread.start()
    return thread


def weights_in_memory(release):
    """As unit 1 is used, when unit 0's weights have been handed to `release`."""
    with LiveStorages() as live:  # which keeps collections of garbage short
        diary = Diary(Regions(), live)
        held = [torch.arange(100.0, dtype=torch.float64)]
        diary.note(FORWARD, 0, held[0])
        thread = release(held)
        diary.note(FORWARD, 1, -torch.arange(50.0, dtype=torch.float64))
    thread.join()
    return diary.uses[-1][2]


def test_weights_that_a_thread_releases_in_a_moment_are_not_in_memory():
    assert weights_in_memory(let_go_later) == 1


def test_weights_that_somebody_keeps_are():
    kept = []

    def keep(held):
        kept.append(held[0])
        return let_go_later(held)

    assert weights_in_memory(keep) == 2


class Receiving:
    """As much of a ReceivingGroup as counts what it has received: 100 bytes, then 10."""

    def __init__(self):
        self.gate, self._falls = None, iter([100, 100, 100])

    @property
    def received_bytes(self):
        return next(self._falls, 10)

    def region(self, name):
        return torch.no_grad()


def test_buffers_that_the_backend_releases_in_a_moment_are_not_counted():
    with ComputedStorages(Receiving(), [], most_bytes=50) as live:
        torch.ones(3, 3) @ torch.ones(3, 3)
    assert live.received_bytes == 10


def test_patience_ends_after_half_a_second_in_all():
    patience, looks = Patience(), []
    for _ in range(20):
        patience.wait_while(lambda: not looks.append(0))
    assert 490 <= len(looks) <= 530
