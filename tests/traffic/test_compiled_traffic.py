"""Bytes of a traced step, of 8-bit gathers and of FSDP2's switches: those of labkit.calc."""

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from labkit import calc, run
from labkit.compiled import CountCollectives, collectives, compiled_step, simple_fsdp

SHAPES = [(8, 6), (7, 8), (5, 7)]  # (out, in): none of 48, 56 and 35 is a multiple of 3 and of 4


def layers():
    return nn.Sequential(*(nn.Linear(i, o, bias=False) for o, i in SHAPES))


def sent_bytes(order):
    """By kind, what a ring sends from one rank: (ranks - 1)/ranks of each whole tensor."""
    total = {}
    for kind, numel, dtype, ranks in order:
        share = numel * dtype.itemsize * (ranks - 1) // ranks
        total[kind] = total.get(kind, 0) + share
    return total


def stepped(world, wire, **options):
    model = simple_fsdp(
        layers(),
        world,
        torch.bfloat16 if wire == "bfloat16" else None,
        wire="whole" if wire in ("bfloat16", "float32") else wire,
    )
    step = compiled_step(model, world, **options)
    dtype = torch.bfloat16 if wire == "bfloat16" else torch.float32
    x = torch.ones(2, 6, dtype=dtype)
    step(x).sum().backward()
    step.watch = counted = CountCollectives()
    step(x).sum().backward()
    dtypes = {str(dtype) for kind, _, dtype, _ in counted.order if kind == "all_gather"}
    counts = {name: len(collectives(graph)) for name, graph in step.changed.items()}
    return sent_bytes(counted.order), dtypes, counts


def all_wires(world):
    return {wire: stepped(world, wire) for wire in ("float32", "bfloat16", "float8", "int8")}


@pytest.mark.parametrize("world_size", [3])
def test_a_gather_sends_the_bytes_of_its_wire_and_nothing_gathers_more(world_size):
    # In public, a sharded compile path gathered bfloat16 where float8 was meant, without a word.
    dtypes = {"float8": "torch.uint8", "int8": "torch.uint8"}
    for wire, (sent, seen, _) in run(all_wires, world_size, timeout=240).values[0].items():
        once = sum(int(calc.gather_bytes(o * i, world_size, wire)) for o, i in SHAPES)
        again = once - int(calc.gather_bytes(8 * 6, world_size, wire))
        # Backward of the first layer needs no weight, since its input is no parameter.
        assert sent["all_gather"] == once + again, wire
        assert seen == {dtypes.get(wire, f"torch.{wire}")}
        full = "bfloat16" if wire == "bfloat16" else "float32"
        reduced = sum(int(calc.gather_bytes(o * i, world_size, full)) for o, i in SHAPES)
        assert sent["reduce_scatter"] == reduced


def in_buckets(world, bucket_bytes):
    return {each: stepped(world, "float32", bucket_bytes=each)[2] for each in bucket_bytes}


def test_buckets_are_as_many_as_predicted():
    sizes = [4 * 2 * -(-o * i // 2) for o, i in SHAPES]
    for bucket_bytes, counts in (
        run(in_buckets, 2, args=((1, 420, 1000),), timeout=240).values[0].items()
    ):
        forward = len(calc.bucket_sizes(sizes, bucket_bytes))
        again = len(calc.bucket_sizes(sizes[:0:-1], bucket_bytes))
        reduced = len(calc.bucket_sizes(sizes[::-1], bucket_bytes))
        assert counts == {"forward": forward, "backward": again + reduced}, bucket_bytes


SWITCHES = [(True, False), (False, False), (2, False), (False, True)]


def fsdp2(world, microbatches):
    found = []
    for reshard, reduce_once in SWITCHES:
        model = nn.Sequential(*(nn.Linear(8, 8, bias=False) for _ in range(3)))
        mesh = init_device_mesh("cpu", (world.size,))
        for unit in model:
            fully_shard(unit, mesh=mesh, reshard_after_forward=reshard)
        with CountCollectives() as counted:
            for microbatch in range(microbatches):
                for unit in model:
                    unit.set_requires_gradient_sync(
                        not reduce_once or microbatch == microbatches - 1
                    )
                model(torch.ones(2, 8)).sum().backward()
        found.append(sum(sent_bytes(counted.order).values()))
    return found


@pytest.mark.parametrize("microbatches", [1, 3])
def test_fsdp2s_switches_send_what_the_formula_says(microbatches):
    measured = run(fsdp2, 4, args=(microbatches,)).values[0]
    for (reshard, reduce_once), sent in zip(SWITCHES, measured, strict=True):
        predicted = calc.fsdp_traffic_bytes(
            3 * 64,
            4,
            reshard,
            microbatches=microbatches,
            reduce_once=reduce_once,
            itemsize=4,
        )
        assert sent == predicted, (reshard, reduce_once)
