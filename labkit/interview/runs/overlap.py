"""Who makes communication overlap with computation: the same collectives, begun at other moments.

Two classes reduce the same buckets by the same ring. BucketedDDP begins when backward has finished,
OverlappedDDP as soon as a bucket is full. Layers sleep instead of computing, as a GPU would
leave the processor alone, and links are held back to 1 ms and 20 MB/s.
"""

import time
from typing import Any

import torch
from torch import Tensor, nn

from labkit import Group, Link, Run, Topology
from labkit.collectives import ring_all_reduce
from labkit.data_parallel import DDP, BucketedDDP, InBackground
from labkit.interview.runs.journals_of_runs import operations_in, region_of
from labkit.interview.runs.real_run import real_run, run

LAYERS, WIDTH, BACKWARD_S = 5, 128, 0.03
LINK = Link(bandwidth_bytes_per_s=20e6, latency_s=1e-3)
FRAMEWORKS = ("bucketed", "overlapped")


@real_run
def run_of(framework: str) -> Run:
    """A backward pass through LAYERS layers on two ranks, with a bucket of 64 KiB for each.

    framework: "bucketed" or "overlapped". Regions: "step", and in it "backward" for each layer.
    """
    if framework not in FRAMEWORKS:
        raise ValueError(f"framework={framework!r}: give one of {', '.join(FRAMEWORKS)}")
    topology = Topology(hosts=1, ranks_per_host=2, fast=LINK)
    return run(_step, 2, args=(framework,), topology=topology)


def begun_in_backward(framework: str) -> int:
    """How many of LAYERS buckets rank 0 began to send before the last layer's backward ended."""
    timeline = run_of(framework).timeline[0]
    _, last_s = region_of(timeline, "backward")  # of the layer that comes last
    first: dict[str | None, float] = {}
    for each in operations_in(timeline, "step"):
        if each.kind == "send":
            first.setdefault(each.label, each.posted_s)
    if len(first) != LAYERS:
        raise RuntimeError(f"{len(first)} buckets were sent, not {LAYERS}: {list(first)}")
    return sum(posted_s < last_s for posted_s in first.values())


def _step(world: Group, framework: str) -> None:
    stack = nn.Sequential(*(_Layer(world) for _ in range(LAYERS)))
    bucket_bytes = 4 * WIDTH * WIDTH
    if framework == "bucketed":
        model: Any = BucketedDDP(stack, world, ring_all_reduce, bucket_bytes=bucket_bytes)
    else:
        ring = InBackground(ring_all_reduce, world)
        model = DDP(stack, world, ring, bucket_bytes=bucket_bytes)
        model(torch.ones(1, WIDTH)).sum().backward()  # it then agrees on the order of its buckets
        model.zero_grad()
    world.barrier()
    with world.region("step"):
        model(torch.ones(1, WIDTH)).sum().backward()
        model.reduce_gradients()  # overlapped: backward has done it


class _Layer(nn.Module):
    def __init__(self, world: Group) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH, bias=False)
        self.world = world

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = _Sleeping.apply(self.linear(x), self.world)
        return y


class _Sleeping(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, y: Tensor, world: Group) -> Tensor:
        context.world = world
        return y.clone()

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        with context.world.region("backward"):
            time.sleep(BACKWARD_S)
        return gradients[0], None
