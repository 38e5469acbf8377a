"""The figures of torch's allocator on GPUs beside those of the meter."""

import pytest
import torch

from labkit import viz
from labkit.memory import KINDS, Meter, Usage


class Allocator:
    """Stands for torch.cuda, of two devices: what is given out, and the peak since a reset."""

    def __init__(self, monkeypatch):
        self.live, self.peak = [0, 0], [0, 0]
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
        monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: self.peak[device])
        monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", self.reset)

    def reset(self, device):
        self.peak[device] = self.live[device]

    def give_out(self, nbytes, device=0):
        self.live[device] += nbytes
        self.peak[device] = max(self.peak[device], self.live[device])


def test_the_allocators_peak_is_that_of_the_time_under_the_meter(monkeypatch):
    allocator, meter = Allocator(monkeypatch), Meter()
    allocator.give_out(5000)
    allocator.give_out(-4000)  # before the meter
    with meter:
        allocator.give_out(2000)
        allocator.give_out(-1000)
        allocator.give_out(512, device=1)
    allocator.give_out(9000)  # after it
    assert meter.usage.allocator_peak_bytes == {"cuda:0": 3000, "cuda:1": 512}


def test_a_meter_entered_again_has_the_highest_of_all_times(monkeypatch):
    allocator, meter = Allocator(monkeypatch), Meter()
    for nbytes in (700, 300):
        with meter:
            allocator.give_out(nbytes)
            allocator.give_out(-nbytes)
    assert meter.usage.allocator_peak_bytes["cuda:0"] == 700


def test_a_meter_within_a_meter_resets_no_peak_that_the_outer_one_has_seen(monkeypatch):
    allocator, outer, inner = Allocator(monkeypatch), Meter(), Meter()
    with outer:
        allocator.give_out(800)
        allocator.give_out(-800)
        with inner:
            allocator.give_out(100)
    assert outer.usage.allocator_peak_bytes["cuda:0"] == 800
    assert inner.usage.allocator_peak_bytes["cuda:0"] == 100


def test_a_gpu_that_nobody_uses_is_not_asked(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 1 / 0)
    with Meter() as meter:
        torch.ones(3)
    assert meter.usage.allocator_peak_bytes == {}


def test_the_picture_says_what_the_allocator_says():
    usage = Usage([0.0, 0.01], {kind: [0, 1024] for kind in KINDS}, {"cuda:0": 3 * 10**6})
    texts = [text.get_text() for text in viz.memory_timeline(usage).texts]
    assert any("cuda:0's allocator: 3 MB" in text for text in texts)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU, and --gpu")
def test_on_a_gpu_the_allocator_has_what_the_meter_has_and_what_rounding_adds():
    torch.ones(1, device="cuda")  # the device is in use from here on
    with Meter() as meter:
        x = torch.empty(1000, device="cuda")
    (peak,) = meter.usage.allocator_peak_bytes.values()
    assert meter.usage.peak_bytes == 4000
    assert peak >= 4096
    del x
