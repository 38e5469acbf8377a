"""Reduce ops and roots of what goes to a process group past torch.distributed's functions."""

import contextlib
import copy
import re
import threading
import time

import numpy
import pytest
import torch
import torch.distributed as dist
from torch._subclasses import FakeTensorMode
from torch.distributed import _functional_collectives as functional
from torch.distributed import distributed_c10d as c10d
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode

from labkit import Mismatch, run


def op_of(world):
    return dist.ReduceOp.MAX if world.rank == 1 else dist.ReduceOp.SUM


def word_of(world):
    return "max" if world.rank == 1 else "sum"


def functional_sum(world):
    functional.all_reduce(torch.ones(3), word_of(world), dist.group.WORLD)


def functional_sum_over_a_mesh(world):
    mesh = init_device_mesh("cpu", (world.size,))
    functional.all_reduce(torch.ones(3), word_of(world), mesh)


def functional_sum_of_a_list(world):
    functional.all_reduce_coalesced([torch.ones(3)] * 2, word_of(world), dist.group.WORLD)


def functional_reduce_scatter(world):
    x = torch.ones(2 * world.size)
    functional.reduce_scatter_single(x, word_of(world), 0, dist.group.WORLD)


def functional_broadcast(world):
    functional.broadcast(torch.ones(3), 1 if world.rank == 1 else 0, dist.group.WORLD)


def operator_in_place(world):
    operators, word = torch.ops._c10d_functional, word_of(world)
    operators.all_reduce_(torch.ones(3), word, dist.group.WORLD.group_name)


def overload_of_an_operator(world):
    reduce, word = torch.ops._c10d_functional.all_reduce.default, word_of(world)
    dist.group.WORLD.barrier().wait()
    reduce(torch.ones(3), group_name=dist.group.WORLD.group_name, reduce_op=word)


def operator_with_a_backward(world):
    operators, word = torch.ops._c10d_functional_autograd, word_of(world)
    x = torch.ones(2 * world.size)
    operators.reduce_scatter_tensor(x, word, world.size, dist.group.WORLD.group_name)


def send_from_0_to_1(world):
    if world.rank == 0:
        functional.isend_inplace(torch.ones(1), 1)
    elif world.rank == 1:
        functional.irecv_inplace(torch.ones(1), 0).wait()


def after_functional_messages(world):
    functional.all_reduce(torch.ones(1), "sum", dist.group.WORLD).wait()
    send_from_0_to_1(world)
    functional.all_reduce(torch.ones(3), word_of(world), dist.group.WORLD)


def after_a_functional_batch(world):
    if world.rank < 2:
        ops = ["isend", "isend"] if world.rank == 0 else ["irecv", "irecv"]
        peers, tensors = [1 - world.rank] * 2, [torch.ones(1), torch.ones(1)]
        batch = functional.batch_p2p_ops_inplace(ops, peers, [0, 0], tensors, dist.group.WORLD)
        for each in batch:
            functional.wait_tensor(each)
    functional.all_reduce(torch.ones(3), word_of(world), dist.group.WORLD)


def after_a_message_under_a_mode(world):
    with CommDebugMode():
        send_from_0_to_1(world)
        functional.all_reduce(torch.ones(3), word_of(world), dist.group.WORLD)


def after_a_message_without_data(world):
    if world.rank == 1:
        with FakeTensorMode():
            x = torch.ones(3)
        functional.isend_inplace(x, 0)  # outside of its mode, and it goes nowhere all the same
    functional.all_reduce(torch.ones(3), word_of(world), dist.group.WORLD)


def sum_of_a_dtensor(world):
    mesh = init_device_mesh("cpu", (world.size,))
    x = DTensor.from_local(torch.ones(3), mesh, [Partial(word_of(world))])
    x.redistribute(placements=[Replicate()])


def method_with_options(world):
    options = c10d.AllreduceOptions()
    options.reduceOp = op_of(world)
    dist.group.WORLD.allreduce([torch.ones(3)], options)


def method_with_an_op(world):
    dist.group.WORLD.allreduce(torch.ones(3), op_of(world))


def method_with_an_op_or_none(world):
    dist.group.WORLD.allreduce([torch.ones(3)], *([op_of(world)] if world.rank == 1 else []))


def method_with_a_root(world):
    dist.group.WORLD.broadcast(torch.ones(3), root=1 if world.rank == 1 else 0)


def method_with_a_root_in_options(world):
    options = c10d.ReduceOptions()
    options.rootRank = 1 if world.rank == 1 else 0
    dist.group.WORLD.reduce([torch.ones(3)], options)


def a_method_for_a_function(world):
    if world.rank == 1:
        dist.group.WORLD.allreduce(torch.ones(3), dist.ReduceOp.MAX)
    else:
        functional.all_reduce(torch.ones(3), "sum", dist.group.WORLD)


def in_a_group_of_its_own(world):
    group = dist.new_group([0, 1])
    if world.rank < 2:
        functional.all_reduce(torch.ones(3), word_of(world), group)


def after_messages_of_a_process_group(world):
    # Ranks 0 and 1 have handed over more than the others, but not more collectives.
    if world.rank == 0:
        dist.group.WORLD.send([torch.ones(1)], 1, 0).wait()
    elif world.rank == 1:
        dist.group.WORLD.recv([torch.ones(1)], 0, 0).wait()
    functional.all_reduce(torch.ones(3), word_of(world), dist.group.WORLD)


def list_of_a_reduce_scatter(world):
    # gloo counts one for each rank.
    xs = [torch.ones(2) for _ in range(world.size)]
    dist.group.WORLD.reduce_scatter(torch.empty(2), xs, op_of(world))


def several_reduce_scatters(world):
    # And here one for each tensor.
    options = c10d.ReduceScatterOptions()
    options.reduceOp = op_of(world)
    xs = [torch.ones(2 * world.size)] * 3
    dist.group.WORLD.reduce_scatter_tensor_coalesced([torch.empty(2)] * 3, xs, options)


def several_functional_reduce_scatters(world):
    xs = [torch.ones(2 * world.size)] * 3
    group, word = dist.group.WORLD, word_of(world)
    functional.reduce_scatter_single_coalesced(xs, word, [0, 0, 0], group)


def root_of_numpy(world):
    dist.group.WORLD.broadcast(torch.ones(3), numpy.int64(world.rank == 1))


def root_in_a_tensor(world):
    dist.group.WORLD.reduce(torch.ones(3), root=torch.tensor(int(world.rank == 1)))


def after_a_monitored_barrier(world):
    dist.monitored_barrier()
    dist.group.WORLD.monitored_barrier()
    functional.all_reduce(torch.ones(3), word_of(world), dist.group.WORLD)


def after_a_refused_message(world):
    if world.rank == 0:
        with pytest.raises(ValueError):
            dist.send(torch.ones(1), 0)
    functional.all_reduce(torch.ones(3), word_of(world), dist.group.WORLD)


def beside_a_thread_that_waits(world):
    last = world.size - 1
    if world.rank == 0:
        thread = threading.Thread(target=dist.recv, args=(torch.ones(3), last))
        thread.start()
        while not dist.group.WORLD._get_sequence_number_for_group():
            time.sleep(0.001)
    functional.all_reduce(torch.ones(3), word_of(world), dist.group.WORLD)
    if world.rank == last:
        dist.group.WORLD.send([torch.ones(3)], 0, 0)


def caught(world):
    with contextlib.suppress(Exception):
        functional.all_reduce(torch.ones(3), word_of(world), dist.group.WORLD)


def in_another_thread(world):
    threads = [threading.Thread(target=functional_sum, args=(world,))]
    threads[0].start()
    threads[0].join()


SAID = {
    list_of_a_reduce_scatter: r"in reduce_scatter, collective #1 .*{by max}",
    several_reduce_scatters: r"in reduce_scatter, collective #1 .*{by max}",
    several_functional_reduce_scatters: r"in reduce_scatter, collective #1 .*{by max}",
    root_of_numpy: r"in broadcast, collective #1 .*{root}",
    root_in_a_tensor: r"in reduce, collective #1 .*{root}",
    after_a_monitored_barrier: r"in all_reduce, collective #1 .*{by max}",
    after_a_refused_message: r"in all_reduce, collective #1 .*{by max}",
    beside_a_thread_that_waits: r"in all_reduce, collective #1 .*{by max}",
    functional_sum: r"in all_reduce, collective #1 of torch.distributed, .*{by max}",
    functional_sum_over_a_mesh: r"in all_reduce, collective #\d+ of torch.distributed.*{by max}",
    functional_sum_of_a_list: r"in all_reduce, collective #1 .*{by max}",
    functional_reduce_scatter: r"in reduce_scatter, collective #1 .*{by max}",
    operator_in_place: r"in all_reduce, collective #1 .*{by max}",
    overload_of_an_operator: r"in all_reduce, collective #2 .*{by max}",
    operator_with_a_backward: r"in reduce_scatter, collective #1 .*{by max}",
    after_functional_messages: r"in all_reduce, collective #2 .*{by max}",
    after_a_functional_batch: r"in all_reduce, collective #1 .*{by max}",
    after_a_message_under_a_mode: r"in all_reduce, collective #1 .*{by max}",
    after_a_message_without_data: r"in all_reduce, collective #1 .*{by max}",
    functional_broadcast: r"in broadcast, collective #1 .*{root}",
    sum_of_a_dtensor: r"in all_reduce, collective #\d+ .*{by max}",
    method_with_options: r"in all_reduce, collective #1 .*{by max}",
    method_with_an_op: r"in all_reduce, collective #1 .*{by max}",
    method_with_an_op_or_none: r"in all_reduce, collective #1 .*{by max}",
    method_with_a_root: r"in broadcast, collective #1 .*{root}",
    method_with_a_root_in_options: r"in reduce, collective #1 .*{root}",
    a_method_for_a_function: r"in all_reduce, collective #1 .*{by max}",
    in_a_group_of_its_own: r"in all_reduce, collective #1 of torch.distributed/\S+, .*{by max}",
    after_messages_of_a_process_group: r"in all_reduce, collective #1 .*{by max}",
}
# Either of two ranks may be the one that comes later, and tells.
_ENDS = {
    "{by max}": r"(rank 1 reduces by max, and rank \d by sum"
    r"|rank \d reduces by sum, and rank 1 by max)",
    "{root}": r"(rank 1 names rank 1 as the root, and rank \d rank 0"
    r"|rank \d names rank 0 as the root, and rank 1 rank 1)",
}


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("program", SAID, ids=lambda program: program.__name__)
def test_another_reduce_op_or_root_is_an_error_that_names_ranks_and_lines(program, size):
    with pytest.raises(Mismatch) as caught:
        run(program, size, timeout=30)
    said = str(caught.value).splitlines()[0]
    expected = SAID[program]
    for name, end in _ENDS.items():
        expected = expected.replace(name, end)
    assert re.search(expected, said), said
    assert re.match(r"rank \d found at test_by_place.py, line \d+: ", said), said
    lines = [line.strip() for line in open(__file__)]
    for number in re.findall(r"line (\d+)", said):
        assert re.match(
            r"((functional|operators|dist\.group\.WORLD|x)\.\w+|reduce)\(", lines[int(number) - 1]
        ), said


def another_kind(world):
    if world.rank == 1:
        dist.group.WORLD.broadcast(torch.ones(3), 0)
    else:
        dist.group.WORLD.allreduce(torch.ones(3))


def test_of_another_collective_torchs_record_has_more_to_say():
    with pytest.raises(Mismatch, match=r"^rank 1 calls broadcast #1 .*, and ranks 0 and 2 call "):
        run(another_kind, 3, timeout=30)


def what_matches(world):
    group = dist.group.WORLD
    pair = dist.new_group([0, 1])
    x = torch.full((3,), float(world.rank + 1))
    values = [
        functional.all_reduce(x, "sum", group),
        functional.all_reduce(x, "max", group=group, tag=""),
        functional.broadcast(x, world.size - 1, group),
    ]
    if world.rank < 2:
        values.append(functional.all_reduce(x, "min", pair))
    y = x.clone()
    group.allreduce([y], dist.ReduceOp.MAX).wait()
    world.all_reduce(x, "max")
    dist.all_reduce(x.clone(), dist.ReduceOp.MIN)
    # One rank may go another way to the same.
    z = x.clone()
    if world.rank == 0:
        z = functional.all_reduce(z, "sum", group)
    else:
        group.allreduce([z]).wait()
    return [value.tolist()[0] for value in (*values, y, z)]


@pytest.mark.parametrize("size", [2, 3, 4])
def test_what_matches_goes_through(size):
    total = size * (size + 1) / 2
    values = run(what_matches, size, timeout=30).values
    for rank, value in enumerate(values):
        of_a_pair = [1.0] if rank < 2 else []
        assert value == [total, size, size, *of_a_pair, size, total]


def in_a_world_of(world, folder, backend):
    dist.destroy_process_group()
    store = dist.FileStore(f"{folder}/anew", world.size)
    named = {} if backend is None else {"backend": backend}
    dist.init_process_group(store=store, rank=world.rank, world_size=world.size, **named)
    functional.all_reduce(torch.ones(3), word_of(world), dist.group.WORLD)


@pytest.mark.parametrize("backend", [None, "cpu:gloo", "gloo"])
def test_gloo_is_known_by_whatever_name_a_program_asks_for_it(backend, tmp_path):
    with pytest.raises(Mismatch, match="in all_reduce, collective #1 of .*max"):
        run(in_a_world_of, 2, [str(tmp_path), backend], timeout=30)


def from_a_file_whose_name_is_no_text(world):
    step = compile("reduce(torch.ones(3), op, group)", "bad\udcff.py", "exec")
    reduce, group = functional.all_reduce, dist.group.WORLD
    names = {"torch": torch, "reduce": reduce, "op": word_of(world), "group": group}
    exec(step, names)


def test_a_files_name_may_be_no_text():
    with pytest.raises(Mismatch, match="in all_reduce, collective #1 .*"):
        run(from_a_file_whose_name_is_no_text, 2, timeout=30)


@pytest.mark.parametrize("program", [caught, in_another_thread])
def test_what_a_program_catches_is_told_at_the_end(program):
    with pytest.raises(Mismatch, match="in all_reduce, collective #1 of torch.distributed.*max"):
        run(program, 3, timeout=30)


def distributes_a_tensor(world):
    mesh = init_device_mesh("cpu", (world.size,))
    source = 1 if world.rank == 1 else 0
    distribute_tensor(torch.ones(2 * world.size), mesh, [Replicate()], src_data_rank=source)


@pytest.mark.parametrize("size", [2, 3])
def test_functions_that_torch_took_by_name_are_compared_as_calls(size):
    with pytest.raises(Mismatch, match=r"in broadcast #1 .*rank 1 names rank 1 as the root"):
        run(distributes_a_tensor, size, timeout=30)


def traces_while_another_thread_communicates(world):
    """Both reduce by max, and a thread of rank 1 only traces, what would reduce by sum."""
    is_over = threading.Event()

    def trace():
        with FakeTensorMode():
            while not is_over.is_set():
                functional.all_reduce(torch.ones(3), "sum", dist.group.WORLD)

    thread = threading.Thread(target=trace)
    if world.rank == 1:
        thread.start()
    for _ in range(200):
        functional.all_reduce(torch.ones(3), "max", dist.group.WORLD).wait()
    is_over.set()


def test_a_thread_that_traces_is_no_other_reduce_op():
    run(traces_while_another_thread_communicates, 2, timeout=60)


def in_threads(world):
    """Each thread has a group of its own."""
    groups = [dist.new_group() for _ in range(2)]

    def reduce(group, op):
        for _ in range(50):
            functional.all_reduce(torch.ones(1), op, group).wait()
            functional.all_reduce(torch.ones(1), op, group).wait()

    threads = [threading.Thread(target=reduce, args=each) for each in zip(groups, ("sum", "max"))]
    for thread in threads:
        thread.start()
    for _ in range(100):
        functional.all_reduce(torch.ones(1), "min", dist.group.WORLD).wait()
    for thread in threads:
        thread.join()


def test_threads_with_a_group_of_their_own_go_through():
    run(in_threads, 3, timeout=60)


def traces_first(world):
    store = c10d._get_default_store()
    if world.rank == 1:
        with FakeTensorMode():
            functional.all_reduce(torch.ones(3), "max", dist.group.WORLD)  # no bytes, no place
        store.set("traced", "")
        store.wait(["begun"])  # if there was a false entry, rank 0 has seen it
    store.wait(["traced"])
    x = functional.all_reduce(torch.ones(3), "sum", dist.group.WORLD)
    store.set("begun", "")
    assert x.tolist() == [2] * 3


def test_what_is_only_traced_has_no_place():
    run(traces_first, 2, timeout=30)


def refuses(world):
    with pytest.raises(TypeError):
        functional.all_reduce(torch.ones(3))
    with pytest.raises(TypeError):
        dist.group.WORLD.allreduce()
    with pytest.raises(ValueError):
        functional.all_reduce(torch.ones(3), "sum", 7)
    functional.all_reduce(torch.ones(3), "sum", dist.group.WORLD)


def test_what_torch_refuses_it_refuses_in_its_own_words():
    run(refuses, 2, timeout=30)


def looks_operators_up(world):
    """As torch does: by what was put into tables before there were ranks."""
    isend, reduce = torch.ops._c10d_functional.isend, torch.ops._c10d_functional.all_reduce
    assert {isend, isend.default} <= torch.fx.node._side_effectful_functions
    assert copy.deepcopy(reduce) is reduce
    assert copy.deepcopy(reduce.op) is reduce.op and copy.copy(reduce.default.op)

    def scripted(x: torch.Tensor, name: str):
        y = torch.ops._c10d_functional.all_reduce(x, "sum", name)
        return torch.ops._c10d_functional.wait_tensor(y)

    return torch.jit.script(scripted)(torch.ones(3), dist.group.WORLD.group_name).tolist()


def test_operators_are_found_in_torchs_tables():
    assert run(looks_operators_up, 2, timeout=30).values == [[2.0] * 3] * 2


def beyond_a_file_of_rows(world):
    for _ in range(4100):
        functional.all_reduce(torch.ones(1), "sum", dist.group.WORLD)
    functional.all_reduce(torch.ones(1), word_of(world), dist.group.WORLD).wait()


def test_a_reduce_op_is_compared_after_thousands_of_collectives():
    with pytest.raises(Mismatch, match="in all_reduce, collective #4101 .*max"):
        run(beyond_a_file_of_rows, 2, timeout=60)
