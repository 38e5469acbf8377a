"""DDP in buckets of a layer, of two and of all: what a replay predicts, beside what runs take.

    python examples/bucket_sizes.py

Two ranks train a stack of layers that wait 6 ms in forward and 12 in backward. Between them is one
slow link: an all-reduce takes 4 ms, and 8 ms for each layer in its bucket. Each step is predicted
from the journals of the runs with other buckets. Other programs on the same cores make runs longer,
and predictions from them too: the fastest of three runs counts.
"""

import argparse
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import labkit
from labkit import profile
from labkit.data_parallel import DDP
from labkit.inject.timed_training import LAYER_BYTES, LAYERS, WIDTH, TimedLayer
from labkit.profile import Trace, what_if

FIXED_S, PER_BYTE_S = 0.004, 0.008 / LAYER_BYTES
LAYERS_PER_BUCKET = (1, 2, LAYERS)
STEPS, NUM_RUNS = 3, 3


class OnLink(NamedTuple):
    """An all-reduce on the slow link."""

    moved: Future[None]

    def wait(self) -> None:
        """Until the link has moved it."""
        self.moved.result()


class SlowLink:
    """A process group whose all-reduces take time after all ranks have come, one by one."""

    def __init__(self, process_group: Any) -> None:
        self._process_group, self._link = process_group, ThreadPoolExecutor(1)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._process_group, name)

    def allreduce(self, tensors: list[Tensor], options: Any) -> OnLink:
        """Begin one."""
        work = self._process_group.allreduce(tensors, options)
        return OnLink(self._link.submit(self._move, work, tensors[0].nbytes))

    def _move(self, work: Any, nbytes: int) -> None:
        work.wait()
        time.sleep(FIXED_S + PER_BYTE_S * nbytes)


def training(world: labkit.Group, layers_per_bucket: int) -> None:
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


def trace_of(layers_per_bucket: int) -> Trace:
    """Return the journal of such a run."""
    return profile.trace_of_run(labkit.run(training, 2, args=(layers_per_bucket,)))


def predicted_s(before: Trace, is_of_two_sizes: bool, layers_per_bucket: int) -> float:
    """Seconds of the run with other buckets. One size does not show what a message costs."""
    fixed_s = None if is_of_two_sizes else FIXED_S
    graph, change = what_if.buckets(before, layers_per_bucket * LAYER_BYTES, fixed_s)
    return graph.seconds(change)


def main() -> None:
    """Print milliseconds of a step: measured, and predicted from each run."""
    argparse.ArgumentParser(description=__doc__.split("\n")[0]).parse_args()
    traces = {
        size: min((trace_of(size) for _ in range(NUM_RUNS)), key=lambda trace: trace.seconds)
        for size in LAYERS_PER_BUCKET
    }
    print(f"{'layers in a bucket':<20}{'measured':>10}   predicted from runs with buckets of")
    print(" " * 30 + "".join(f"{size:>10}" for size in LAYERS_PER_BUCKET))
    for size, trace in traces.items():
        # With buckets of two layers the last one has the layer that is left: another size.
        found = [predicted_s(each, before == 2, size) for before, each in traces.items()]
        cells = "".join(f"{1e3 * seconds / STEPS:>7.0f} ms" for seconds in found)
        print(f"{size:<20}{1e3 * trace.seconds / STEPS:>7.0f} ms{cells}")


if __name__ == "__main__":
    main()
