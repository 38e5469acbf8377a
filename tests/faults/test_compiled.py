"""torch.compile under the lab: programs give what they give without it."""

import os
import re
import sys

import pytest
import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional

from labkit import Mismatch, run
from labkit.comm.callers import frames_outside

SIZES = (2, 3)


def reduces_by_torchs_function(x, world):
    y = x * 2
    dist.all_reduce(y, dist.ReduceOp.MAX)
    return y + 1


def reduces_functionally(x, world):
    return functional.all_reduce(x * 2, "max", dist.group.WORLD) + 1


def gathers(x, world):
    y = x.new_empty(world.size * x.numel())
    dist.all_gather_into_tensor(y, x * 2)
    return y.amax(0, keepdim=True).expand(3) + 1


def broadcasts(x, world):
    y = x * 2
    dist.broadcast(y, world.size - 1)
    return y + 1


def reduces_by_a_group(x, world):
    return world.all_reduce(x * 2, "max") + 1


def sends(x, world):
    y = x * 2
    if world.rank == world.size - 1:
        for other in range(world.rank):
            dist.send(y, other)
    else:
        dist.recv(y, world.size - 1)
    return y + 1


IN_GRAPHS = (reduces_by_torchs_function, reduces_functionally, gathers)
BETWEEN_GRAPHS = (broadcasts, reduces_by_a_group, sends)


def all_compiled(world, steps, fullgraph=False):
    x = torch.full((3,), float(world.rank + 1))
    values = []
    for step in steps:
        compiled = torch.compile(step, backend="aot_eager", fullgraph=fullgraph)
        values += [compiled(x, world).tolist() for _ in range(2)]
        world.barrier()
    return values


@pytest.mark.parametrize("size", SIZES)
def test_steps_that_communicate_can_be_compiled(size):
    steps = IN_GRAPHS + BETWEEN_GRAPHS
    for values in run(all_compiled, size, (steps,), timeout=120).values:
        assert values == [[2 * size + 1.0] * 3] * 2 * len(steps)


@pytest.mark.parametrize("size", SIZES)
def test_into_one_graph_where_torch_can(size):
    for values in run(all_compiled, size, (IN_GRAPHS, True), timeout=120).values:
        assert values == [[2 * size + 1.0] * 3] * 2 * len(IN_GRAPHS)


def test_under_torchrun_too_where_dynamo_is_imported_later():
    steps = (reduces_by_torchs_function, reduces_by_a_group)
    for values in run(all_compiled, 2, (steps,), timeout=120, engine="torchrun").values:
        assert values == [[5.0] * 3] * 4


def trains(world, compiled):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 1))
    model = torch.nn.parallel.DistributedDataParallel(model)
    step = torch.compile(model, backend="aot_eager") if compiled else model
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    torch.manual_seed(world.rank)
    for _ in range(3):
        optimizer.zero_grad()
        step(torch.randn(5, 4)).square().mean().backward()
        optimizer.step()
    return [p.detach().clone() for p in model.parameters()]


def test_a_compiled_model_in_torchs_ddp_trains_as_one_that_is_not():
    (compiled, plain) = (run(trains, 2, (each,), timeout=120).values for each in (True, False))
    for ours, theirs in zip(compiled, plain, strict=True):
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, b)


def sends_in_a_graph(world):
    """Rank 2 has no message."""
    from torch._dynamo import config  # no program can take it along

    with config.patch(enable_p2p_compilation=True):

        def step(x):
            y = x * 2
            if world.rank == 0:
                dist.isend(y, 1).wait()
            elif world.rank == 1:
                dist.irecv(y, 0).wait()
            return y + 1

        torch.compile(step, backend="aot_eager", fullgraph=True)(torch.ones(3))
    return world.all_reduce(torch.ones(1)).item()


def sends_around_in_a_graph(world):
    from torch._dynamo import config  # no program can take it along

    right, left = (world.rank + 1) % world.size, (world.rank - 1) % world.size

    def step(x):
        y = torch.empty_like(x)
        ops = [dist.P2POp(dist.isend, x, right), dist.P2POp(dist.irecv, y, left)]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        return y + 1

    with config.patch(enable_p2p_compilation=True):
        compiled = torch.compile(step, backend="eager", fullgraph=True)
        return compiled(torch.full((2,), float(world.rank))).tolist()


@pytest.mark.parametrize("size", SIZES)
def test_a_batch_of_messages_goes_into_a_graph(size):
    values = run(sends_around_in_a_graph, size, timeout=120).values
    assert values == [[(rank - 1) % size + 1.0] * 2 for rank in range(size)]


def test_messages_in_a_graph_are_no_collectives():
    values = run(sends_in_a_graph, 3, timeout=120).values
    assert values == [3.0] * 3


def reduces_in_a_graph_by_another_op(world, backend, cache):
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
    op = dist.ReduceOp.MAX if world.rank == 1 else dist.ReduceOp.SUM

    def step(x):
        dist.all_reduce(x, op)
        return x

    torch.compile(step, backend=backend)(torch.ones(3))


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_another_reduce_op_in_a_graph_is_told_with_the_functions_line(backend, tmp_path):
    with pytest.raises(Mismatch) as caught:
        run(reduces_in_a_graph_by_another_op, 2, (backend, str(tmp_path)), timeout=120)
    step = reduces_in_a_graph_by_another_op.__code__.co_firstlineno + 4
    found, _, why = str(caught.value).splitlines()[0].partition(": ")
    assert re.fullmatch(rf"rank [01] found at test_compiled.py, line {step}", found)
    assert re.search(rf"in all_reduce, collective #1 .* by (sum|max), .*\(line {step}\)", why)
    assert "eval_with_key" not in str(caught.value)


def swapped_between_graphs(world):
    weight, bias = torch.ones(3), torch.zeros(3)

    def step(x):
        y = x * 2
        if world.rank == 1:
            world.all_reduce(bias)
            world.all_reduce(weight)
        else:
            world.all_reduce(weight)
            world.all_reduce(bias)
        return y + 1

    torch.compile(step, backend="aot_eager")(weight)


def test_calls_between_graphs_are_compared():
    with pytest.raises(Mismatch, match="make the same calls in another order: .*weight"):
        run(swapped_between_graphs, 2, timeout=120)


def test_only_parts_of_one_function_are_one_function():
    """What torch.compile makes of outer() and inner(), each of which it has cut."""
    source = """
def torch_dynamo_resume_in_inner_at_2(): return names()
def inner(): return torch_dynamo_resume_in_inner_at_2()
def torch_dynamo_resume_in_outer_at_7(): return inner()
def torch_dynamo_resume_in_outer_at_6(): return torch_dynamo_resume_in_outer_at_7()
def outer(): return torch_dynamo_resume_in_outer_at_6()
def torch_dynamo_resume_in_last_at_9(): return names()
def torch_dynamo_resume_in_first_at_8(): return torch_dynamo_resume_in_last_at_9()
"""
    told = {"names": lambda: [f.f_code.co_name for f in frames_outside(sys._getframe(1))]}
    exec(compile(source, "step.py", "exec"), told)
    inner, outer = "torch_dynamo_resume_in_inner_at_2", "torch_dynamo_resume_in_outer_at_7"
    assert told["outer"]()[:3] == [inner, outer, "test_only_parts_of_one_function_are_one_function"]
    last, first = "torch_dynamo_resume_in_last_at_9", "torch_dynamo_resume_in_first_at_8"
    assert told[first]()[:2] == [last, first]
