"""DDP in buckets of a layer, of two and of all: each run is predicted from another one's journal.

Layers wait 6 ms in forward and 12 in backward. Between the ranks is one slow link: an all-reduce
takes 4 ms, and 8 ms for each layer in its bucket.
"""

import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import pytest
import torch
from torch import nn

import labkit
from labkit import profile
from labkit.data_parallel import DDP
from labkit.inject.timed_training import LAYER_BYTES, LAYERS, WIDTH, TimedLayer
from labkit.profile import what_if

pytestmark = pytest.mark.clock

STEPS = 3
FIXED_S, PER_BYTE_S = 0.004, 0.008 / LAYER_BYTES


class OnLink(NamedTuple):
    """An all-reduce on the slow link."""

    moved: Future

    def wait(self):
        self.moved.result()


class SlowLink:
    """A process group whose all-reduces take time after all ranks have come, one by one."""

    def __init__(self, process_group):
        self._process_group, self._link = process_group, ThreadPoolExecutor(1)

    def __getattr__(self, name):
        return getattr(self._process_group, name)

    def allreduce(self, tensors, options):
        work = self._process_group.allreduce(tensors, options)
        return OnLink(self._link.submit(self._move, work, tensors[0].nbytes))

    def _move(self, work, nbytes):
        work.wait()
        time.sleep(FIXED_S + PER_BYTE_S * nbytes)


def training(world, layers_per_bucket):
    """A pass in which DDP decides on its buckets, and then STEPS steps."""
    fast = world._process_group
    world._process_group = SlowLink(fast)
    stack = nn.Sequential(*(TimedLayer(0.006) for _ in range(LAYERS)))
    model = DDP(stack, world, bucket_bytes=layers_per_bucket * LAYER_BYTES)
    model(torch.ones(1, WIDTH)).sum().backward()
    world.barrier()
    for _ in range(STEPS):
        with world.region("step"):
            model(torch.ones(1, WIDTH)).sum().backward()
    world._process_group = fast


@pytest.fixture(scope="module")
def traces():
    """By layers per bucket: the fastest of three runs, which the machine has disturbed least."""
    found = {size: [] for size in (1, 2, LAYERS)}
    for size in 3 * list(found):
        found[size].append(profile.of_run(labkit.run(training, 2, args=(size,))))
    return {size: min(each, key=lambda trace: trace.seconds) for size, each in found.items()}


@pytest.mark.parametrize("before", [1, 2, LAYERS])
@pytest.mark.parametrize("after", [1, 2, LAYERS])
def test_other_buckets_are_predicted_within_15_percent(traces, before, after):
    fixed_s = None if before == 2 else FIXED_S  # buckets of 2, 2 and 1 layers show it
    graph, change = what_if.buckets(traces[before], after * LAYER_BYTES, fixed_s)
    assert graph.seconds(change) == pytest.approx(traces[after].seconds, rel=0.15)


def test_merging_all_buckets_costs_more_than_it_saves(traces):
    one_layer, all_layers = (what_if.buckets(traces[2], n * LAYER_BYTES) for n in (1, LAYERS))
    assert one_layer[0].seconds(one_layer[1]) < all_layers[0].seconds(all_layers[1])
    assert traces[1].seconds < traces[LAYERS].seconds


def test_one_size_of_buckets_does_not_show_what_a_message_costs(traces):
    with pytest.raises(ValueError, match="give fixed_s"):
        what_if.buckets(traces[1], 2 * LAYER_BYTES)
