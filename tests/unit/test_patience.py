"""What a backend's thread is about to let go of is nobody's memory."""

import threading
import time
import weakref
from types import SimpleNamespace

import torch

from labkit.grade.graders import patience
from labkit.grade.graders.context_watch import ComputedStorages
from labkit.grade.graders.live_storages import LiveStorages
from labkit.grade.graders.zero3_watch import FORWARD, Diary


class Regions:
    """As much of a WatchedGroup as a diary asks for."""

    def region(self, name):
        return torch.no_grad()


def let_go_later(held, monkeypatch):
    """A thread that has `held`'s tensor until somebody has waited for it."""

    def hold(tensor):
        assert looked.wait(10)

    def sleep(seconds):
        looked.set()
        time.sleep(seconds)

    looked = threading.Event()
    monkeypatch.setattr(patience, "time", SimpleNamespace(sleep=sleep))
    thread = threading.Thread(target=hold, args=(held.pop(),))
    thread.start()
    return thread


def weights_in_memory(release, monkeypatch):
    """As unit 1 is used, when unit 0's weights have been handed to `release`."""
    with LiveStorages() as live:  # which keeps collections of garbage short
        diary = Diary(Regions(), live)
        held = [torch.arange(100.0, dtype=torch.float64)]
        diary.note(FORWARD, 0, held[0])
        thread = release(held, monkeypatch)
        diary.note(FORWARD, 1, -torch.arange(50.0, dtype=torch.float64))
    thread.join()
    return diary.uses[-1][2]


def test_weights_that_a_thread_releases_in_a_moment_are_not_in_memory(monkeypatch):
    assert weights_in_memory(let_go_later, monkeypatch) == 1


def test_weights_that_somebody_keeps_are(monkeypatch):
    kept = []

    def keep(held, monkeypatch):
        kept.append(held[0])
        return let_go_later(held, monkeypatch)

    assert weights_in_memory(keep, monkeypatch) == 2


def test_whole_gradients_that_a_thread_releases_in_a_moment_are_not_in_memory(monkeypatch):
    with LiveStorages() as live:
        diary = Diary(Regions(), live)
        held = [torch.ones(100)]
        diary.gradients.append(weakref.ref(held[0].untyped_storage()))
        thread = let_go_later(held, monkeypatch)
        diary.note(FORWARD, 1, torch.ones(50, dtype=torch.float64))
    thread.join()
    assert diary.uses[-1][4] == 0


def test_a_peak_that_a_thread_releases_in_a_moment_is_none(monkeypatch):
    with LiveStorages(allowed_bytes=500) as live:
        held = [torch.ones(100)]
        thread = let_go_later(held, monkeypatch)
        kept = torch.ones(50)
    thread.join()
    assert (live.peak_bytes, kept.nbytes) == (400, 200)


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


def test_patience_ends_after_five_hundred_pauses(monkeypatch):
    pauses = []
    monkeypatch.setattr(patience, "time", SimpleNamespace(sleep=pauses.append))
    patient = patience.Patience()
    for number in range(1, 20):
        patient.wait_while(lambda: True)
        assert len(pauses) == min(100 * number, 500)
    assert set(pauses) == {0.001}
