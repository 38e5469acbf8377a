"""A Group, torch.distributed's functions and torch's DDP beside each other on one process group."""

import re
import threading
import time
import warnings

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from labkit import Mismatch, run

SIZES = [2, 3, 4]


def a_group_beside_torchs_functions(world):
    loss, gradient = torch.ones(3), torch.full((3,), 10.0)
    if world.rank == 1:
        world.all_reduce(gradient)  # <-
        dist.all_reduce(loss)  # <-
    else:
        dist.all_reduce(loss)  # <-
        world.all_reduce(gradient)  # <-


def _model_and_sums():
    model = DistributedDataParallel(torch.nn.Linear(3, 3, bias=False))
    return model, model(torch.ones(1, 3)).sum(), torch.full((9,), 100.0)


def torchs_functions_beside_its_ddp(world):
    _model, loss, sums = _model_and_sums()
    if world.rank != 1:
        loss.backward()
    dist.all_reduce(sums)  # <-
    if world.rank == 1:
        loss.backward()


def a_group_beside_torchs_ddp(world):
    _model, loss, sums = _model_and_sums()
    if world.rank != 1:
        loss.backward()
    world.all_reduce(sums)  # <-
    if world.rank == 1:
        loss.backward()


@pytest.mark.parametrize(
    "program",
    [
        a_group_beside_torchs_functions,
        torchs_functions_beside_its_ddp,
        a_group_beside_torchs_ddp,
    ],
    ids=lambda program: program.__name__,
)
@pytest.mark.parametrize("world_size", SIZES)
def test_what_comes_in_another_order_is_an_error(program, world_size):
    with pytest.raises(Mismatch) as caught:
        run(program, world_size, timeout=60)
    said = str(caught.value).splitlines()[0]
    found = re.findall(r"rank[s 0-9,and]* calls? it with (\d+) collectives? of the process", said)
    assert len(found) == 2 and abs(int(found[0]) - int(found[1])) == 1, said
    assert "rank 1 calls it" in said
    with open(__file__) as file:
        marked = {n for n, line in enumerate(file, start=1) if line.rstrip().endswith("# <-")}
    named = {int(n) for n in re.findall(r"test_one_queue.py, line (\d+)", said)}
    assert named and named <= marked, said


def all_of_them(world):
    """Ranks have different numbers of messages, and the same collectives in between."""
    x, last = torch.ones(3), world.size - 1
    model = DistributedDataParallel(torch.nn.Linear(3, 3, bias=False))
    for _ in range(3):
        model(torch.ones(1, 3)).sum().backward()
        dist.all_reduce(x)
        world.all_reduce(x)
        if world.rank == 0 and last:
            world.send(x, last)
            dist.send(x, last)
            dist.send_object_list(["any"], last)
            dist.isend(x, last).wait()
            dist.batch_isend_irecv([dist.P2POp(dist.isend, x, last)])[0].wait()
        elif world.rank == last and last:
            world.recv(x.clone(), 0)
            dist.recv(x.clone())  # from anybody
            dist.recv_object_list([None], 0)
            dist.irecv(x.clone(), 0).wait()
            dist.batch_isend_irecv([dist.P2POp(dist.irecv, x.clone(), 0)])[0].wait()
        world.split(world.rank % 2).all_reduce(x)
        pending = world.all_gather(x, wait=False)
        dist.barrier()
        pending.wait()
    return world._handed.num_collectives


@pytest.mark.parametrize("world_size", [1, *SIZES])
def test_what_comes_in_one_order_is_right(world_size):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        numbers = run(all_of_them, world_size, timeout=60).values
    assert len(set(numbers)) == 1 and numbers[0] > 15


def with_a_message_of_another_thread(world):
    last = world.size - 1
    number = dist.group.WORLD._get_sequence_number_for_group
    if world.rank == 0:
        before = number()
        thread = threading.Thread(target=dist.recv, args=(torch.ones(3), last))
        thread.start()
        while number() == before:
            time.sleep(0.001)
    for _ in range(20):
        world.all_reduce(torch.ones(3))
    known = [world._handed.num_collectives]
    if world.rank == last:
        dist.send(torch.ones(3), 0)
    if world.rank == 0:
        thread.join()
    world.all_reduce(torch.ones(3))
    return [*known, world._handed.num_collectives]


def test_a_message_that_another_thread_waits_for_is_counted_from_its_beginning():
    assert run(with_a_message_of_another_thread, 2, timeout=60).values == [[20, 21]] * 2


def after_calls_that_torch_refused(world):
    if world.rank == 0:
        with pytest.raises((TypeError, ValueError, RuntimeError)):
            dist.send("no tensor", 1)
        with pytest.raises((TypeError, ValueError, RuntimeError)):
            dist.group.WORLD.send([torch.ones(1)] * 2, 1, 0)
    return [world.all_reduce(torch.ones(3))[0].item(), world._handed.num_collectives]


def test_a_refused_message_is_not_counted():
    assert run(after_calls_that_torch_refused, 2, timeout=60).values == [[2.0, 1]] * 2


def after_monitored_barriers(world):
    dist.monitored_barrier()
    dist.group.WORLD.monitored_barrier(wait_all_ranks=True)
    return [world.all_reduce(torch.ones(3))[0].item(), world._handed.num_collectives]


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_a_barrier_that_consists_of_messages_is_no_collective(world_size):
    values = run(after_monitored_barriers, world_size, timeout=60).values
    assert values == [[world_size, 1]] * world_size


def the_last_of_a_run(world):
    x = torch.ones(3)
    world.all_reduce(x)
    if world.rank == 1:
        dist.all_reduce(x)  # <- last
    else:
        world.all_reduce(x)  # <- its
    return x


def the_last_beside_torchs_ddp(world):
    _model, loss, sums = _model_and_sums()
    if world.rank != 1:
        loss.backward()
    else:
        world.all_reduce(sums)  # <- ddp


@pytest.mark.parametrize("world_size", SIZES)
def test_what_meets_something_else_as_the_last_of_a_run_is_an_error_in_the_end(world_size):
    with pytest.raises(Mismatch, match="every rank has returned, but the numbers may be") as caught:
        run(the_last_of_a_run, world_size, timeout=60)
    line = {mark: number for number, mark in _marks()}
    others = "rank 0 called all_reduce #2 (test_one_queue.py, line {}) and had it back, and rank 1 "
    assert others.format(line["its"]) in str(caught.value)
    past = "all_reduce #1 of torch.distributed on rank 1 (test_one_queue.py, line {})"
    assert past.format(line["last"]) in str(caught.value)
    assert caught.value.verdict.ranks == (1,)


@pytest.mark.parametrize("world_size", SIZES)
def test_so_is_what_meets_torchs_own_ddp(world_size):
    with pytest.raises(Mismatch, match="rank 1 called all_reduce #1 .* and had it back, and rank"):
        run(the_last_beside_torchs_ddp, world_size, timeout=60)


def a_call_beside_torchs_ddp(world, async_op):
    _model, loss, sums = _model_and_sums()
    if world.rank != 1:
        loss.backward()
    elif work := dist.all_reduce(sums, async_op=async_op):  # <- call
        work.wait()


@pytest.mark.parametrize("async_op", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("world_size", SIZES)
def test_so_is_a_call_of_torchs_functions_that_meets_its_ddp(world_size, async_op):
    line = {mark: number for number, mark in _marks()}["call"]
    said = rf"rank 1 called all_reduce #1 of torch.distributed \(test_one_queue.py, line {line}\)"
    with pytest.raises(Mismatch, match=said) as caught:
        run(a_call_beside_torchs_ddp, world_size, [async_op], timeout=60)
    others = tuple(rank for rank in range(world_size) if rank != 1)
    assert caught.value.verdict.ranks == others
    assert "that came from torch itself" in str(caught.value)


def a_call_that_nothing_met(world):
    if world.rank == 0:
        dist.all_reduce(torch.ones(3), async_op=True)
    return True


def test_a_call_that_met_nothing_is_no_error():
    assert run(a_call_that_nothing_met, 3, timeout=60).values == [True] * 3


def _marks():
    with open(__file__) as file:
        for number, line in enumerate(file, start=1):
            if found := re.search(r"# <- (\w+)$", line.rstrip()):
                yield number, found[1]


def others_come_without_it(world):
    """A root has what it needs when the others have not come, and nobody waits for the rest."""
    x = torch.ones(3)
    if world.rank == 0:
        world.broadcast(x, 0, wait=False)
        world.all_reduce(x, wait=False)
    return True


def test_what_does_not_come_back_is_no_error(capsys):
    assert run(others_come_without_it, 3, timeout=60).values == [True] * 3
    assert "and ranks 1 and 2 never called it" in capsys.readouterr().out


def _one_of_two_ways(way, others):
    """Rank 1 goes one way, and the others another, which do the same: gloo does not mind."""

    def program(world):
        (way if world.rank == 1 else others)(world)

    return program


X = torch.ones(4)


@pytest.mark.parametrize(
    "program",
    [
        _one_of_two_ways(lambda w: w.broadcast(X.clone(), 0), lambda w: dist.broadcast(X, 0)),
        _one_of_two_ways(lambda w: dist.gather(X, None, 0), lambda w: w.gather(X.clone(), root=0)),
        _one_of_two_ways(
            lambda w: w.all_to_all(torch.ones(w.size, 1)),
            lambda w: dist.all_to_all_single(torch.empty(w.size), torch.ones(w.size)),
        ),
    ],
    ids=["broadcast", "gather", "all_to_all"],
)
@pytest.mark.parametrize("world_size", SIZES)
def test_what_has_come_from_somewhere_else_is_an_error_in_the_end(program, world_size):
    with pytest.raises(Mismatch, match="the numbers may be wrong: an operation met something else"):
        run(program, world_size, timeout=60)


@pytest.mark.parametrize(
    "others",
    [lambda world: world.barrier(), lambda world: dist.group.WORLD.barrier().wait()],
    ids=["of a Group", "of a ProcessGroup"],
)
def test_a_barrier_that_met_another_one_has_no_numbers_to_be_wrong(others):
    run(_one_of_two_ways(lambda world: dist.barrier(), others), 3, timeout=60)
