"""Process groups that a program makes with torch's own functions: refused ones, destroyed ones."""

import os
import re
import tempfile
import time

import numpy
import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from labkit import Deadlock, Mismatch, RankError, run
from labkit.comm import Group

pytestmark = pytest.mark.filterwarnings("ignore:Device capability of")


def is_refused(backend):
    try:
        dist.new_group(backend=backend)
    except Exception:
        return True
    return False


def compute(seconds):
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        torch.ones(100).sum()


def computes_after_a_refusal(world):
    """While rank 0 computes, rank 1 waits for it: that ends well."""
    if world.rank == 0:
        assert is_refused("nonsense")
        compute(1.5)
        world.send(torch.ones(1), 1)
        return 1.0
    return world.recv(torch.empty(1), 0).item()


def all_are_refused(world):
    assert is_refused("ucc")
    if world.rank == 0:
        compute(1.5)
    x = torch.ones(1)
    dist.all_reduce(x, group=dist.new_group())
    return x.item()


@pytest.mark.parametrize("program", [computes_after_a_refusal, all_are_refused])
def test_a_rank_whose_group_torch_refused_is_not_waiting_for_it(program):
    assert len(set(run(program, 2, timeout=30, stall=0.5).values)) == 1


def one_is_refused(world, then):
    if world.rank == 0:
        assert is_refused("nonsense")
        if then == "sends":
            world.send(torch.ones(1), 1)
    else:
        dist.new_group()


@pytest.mark.parametrize(
    ("then", "said"),
    [
        ("returns", r"rank 1 waits in new_group #1 .*; rank 0 returned .* without calling it"),
        ("sends", r"rank 0 in send #1 to rank 1 .* and rank 1 in new_group #1 "),
    ],
)
def test_who_waits_for_a_group_that_another_rank_was_refused_waits_in_vain(then, said):
    with pytest.raises(Deadlock, match=said):
        run(one_is_refused, 2, [then], timeout=30, stall=0.5)


needs_proc = pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts with /proc")


def num_open():
    """Open files and threads; the fewest of several looks: another thread may just have a file."""
    looks = []
    for _ in range(10):
        looks.append((len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))))
        time.sleep(0.01)
    return tuple(map(min, zip(*looks, strict=True)))


def made_and_destroyed(world, num_groups):
    """What is open after two groups, and after all of them."""
    told, other = [], 1 - world.rank
    for _ in range(num_groups):
        group = dist.new_group()
        dist.all_reduce(torch.ones(1), group=group)
        sending = dist.isend(torch.ones(1), other, group=group, tag=world.rank)
        dist.recv(torch.ones(1), other, group=group, tag=other)
        sending.wait()
        del sending
        dist.destroy_process_group(group)
        told.append(num_open())
    return told[1], told[-1]


def worlds_made_and_destroyed(world, num_worlds, folder):
    told = []
    for number in range(num_worlds):
        dist.destroy_process_group()
        store = dist.FileStore(f"{folder}/{number}", world.size)
        dist.init_process_group("gloo", store=store, rank=world.rank, world_size=world.size)
        dist.all_reduce(torch.ones(1))
        dist.all_reduce(torch.ones(1), group=dist.new_group())
        Group.default().all_reduce(torch.ones(1))
        told.append(num_open())
    return told[1], told[-1]


@needs_proc
def test_of_destroyed_groups_nothing_stays_open():
    for early, late in run(made_and_destroyed, 2, [12], timeout=60).values:
        assert late == early


@needs_proc
def test_of_destroyed_worlds_nothing_stays_open():
    with tempfile.TemporaryDirectory() as folder:
        values = run(worlds_made_and_destroyed, 2, [8, folder], timeout=60).values
    for early, late in values:
        assert late == early


def leaves_the_comparison(world):
    """How many groups' entries are compared in the end: before, during and after."""
    agreements = world._neighbours.agreements
    counts = [len(agreements)]
    group = dist.new_group()
    dist.all_reduce(torch.ones(1), group=group)
    counts.append(len(agreements))
    dist.destroy_process_group(group)
    return [*counts, len(agreements)]


def test_a_destroyed_group_has_left_the_comparison():
    # One more stays: that new groups are made in one order is compared to the end.
    assert run(leaves_the_comparison, 2).values == [[1, 3, 2]] * 2


def made_anew_under_its_name(world, folder, shapes):
    for number, shape in enumerate(shapes[world.rank]):
        dist.destroy_process_group()
        store = dist.FileStore(f"{folder}/{number}", world.size)
        dist.init_process_group("gloo", store=store, rank=world.rank, world_size=world.size)
        group = dist.new_group()
        dist.all_reduce(torch.ones(shape), group=group)


def test_a_group_made_anew_under_its_old_name_is_compared_from_the_beginning():
    with tempfile.TemporaryDirectory() as folder:
        run(made_anew_under_its_name, 2, [folder, [(2, 3, 4), (2, 3, 4)]], timeout=30)
    said = r"in all_reduce #1 of torch.distributed/1, made anew \(4\), rank 0 passes shape \(4,\)"
    with tempfile.TemporaryDirectory() as folder, pytest.raises(Mismatch, match=said):
        run(made_anew_under_its_name, 2, [folder, [(2, 3, 4), (2, 3, 5)]], timeout=30)


def used_when_destroyed(world):
    group, said = dist.new_group(), []
    dist.all_reduce(torch.ones(1), group=group)
    dist.destroy_process_group(group)
    for use in (
        lambda: dist.isend(torch.ones(1), 1 - world.rank, group=group),
        lambda: dist.destroy_process_group(group),
        lambda: dist.all_reduce(torch.ones(1), group=group),  # gloo carries it out
    ):
        try:
            use()
        except ValueError as error:
            said.append(str(error))
    return said


def test_what_is_called_on_a_destroyed_group_is_refused_in_torchs_words():
    for first, second in run(used_when_destroyed, 2, timeout=30).values:
        assert "is not registered" in first
        assert second == "Invalid process group specified"


def _a_world_anew(world, folder):
    dist.destroy_process_group()
    store = dist.FileStore(f"{folder}/anew", world.size)
    dist.init_process_group("gloo", store=store, rank=world.rank, world_size=world.size)


def in_a_world_anew(world, folder, op):
    """In the one before, ranks 0 and 1 alone have called torch's functions."""
    x = torch.ones(1)
    if world.rank == 0:
        dist.send(x, 1)
    elif world.rank == 1:
        dist.recv(x, 0)
    world.barrier()
    _a_world_anew(world, folder)
    dist.all_reduce(x, op if world.rank == 2 else dist.ReduceOp.SUM)
    return x.item()


def test_a_world_made_anew_has_one_name_whatever_ranks_called_before(tmp_path):
    values = run(in_a_world_anew, 3, [str(tmp_path), dist.ReduceOp.SUM], timeout=30).values
    assert values == [3.0] * 3


def test_what_differs_in_a_world_made_anew_is_a_mismatch(tmp_path):
    with pytest.raises(Mismatch, match=r"made anew \(2\), rank 2 reduces by max"):
        run(in_a_world_anew, 3, [str(tmp_path), dist.ReduceOp.MAX], timeout=30)


def tries_again(world, who):
    """An all_gather with too few places for what comes is refused; then it is made as it should."""
    x, places = torch.ones(2), [torch.empty(2) for _ in range(world.size)]
    if world.rank in who:
        time.sleep(0.3 * world.rank)  # nobody knows of the others whether theirs was refused
        with pytest.raises(RuntimeError):
            dist.all_gather(places[:1], x)
    dist.all_gather(places, x)
    return sum(places).tolist()


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("is_alone", [True, False], ids=["on one rank", "on all"])
def test_a_call_that_torch_refused_may_be_made_again(world_size, is_alone):
    who = [0] if is_alone else list(range(world_size))
    values = run(tries_again, world_size, [who], timeout=30).values
    assert values == [[world_size] * 2] * world_size


def is_refused_alone_and_goes_on(world, who):
    """Calls that torch refuses before anything is handed over: nobody else need make them."""
    x = torch.full((2,), float(world.rank))
    for _ in range(2):
        if world.rank == who:
            with pytest.raises(ValueError):
                dist.broadcast(x, src=0, group_src=0)
        dist.broadcast(x, 0)
        time.sleep(0.1 * world.rank)
        whole = torch.ones(3, dtype=torch.int64)
        dist.all_reduce(whole)
    if world.rank == who:
        with pytest.raises(ValueError):
            dist.broadcast(x, src=0, group_src=0)
    return [*x.tolist(), *whole.tolist()]


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("who", [0, 1])
def test_a_call_that_torch_refused_on_one_rank_is_not_counted(world_size, who, capfd):
    values = run(is_refused_alone_and_goes_on, world_size, [who], timeout=30).values
    assert values == [[0.0, 0.0, *[world_size] * 3]] * world_size
    assert "[labkit]" not in capfd.readouterr().out


def is_refused_before_others_make_another_call(world):
    store = c10d._get_default_store()
    x = torch.ones(2)
    if world.rank == 1:
        with pytest.raises(ValueError):
            dist.broadcast(x, src=0, group_src=0)
        store.set("refused", "")
        time.sleep(0.5)
    store.wait(["refused"])
    dist.all_reduce(x)
    return x.tolist()


@pytest.mark.parametrize("world_size", [2, 3])
def test_others_take_no_notice_of_a_call_that_was_refused(world_size):
    values = run(is_refused_before_others_make_another_call, world_size, timeout=30).values
    assert values == [[world_size] * 2] * world_size


def is_refused_alone_then_differs(world):
    if world.rank == 1:
        time.sleep(0.5)  # the others' entries are there, and are looked at before it is refused
        with pytest.raises(ValueError):
            dist.broadcast(torch.ones(2), src=0, group_src=0)
    dist.broadcast(torch.ones(2), 1 if world.rank == 1 else 0)


@pytest.mark.parametrize("world_size", [2, 3])
def test_what_differs_after_a_refused_call_is_a_mismatch_before_it_begins(world_size):
    with pytest.raises(Mismatch, match=r"in broadcast #1 .*rank 1 names rank 1 as the root") as e:
        run(is_refused_alone_then_differs, world_size, timeout=30)
    assert re.search("rank 1 +raised", str(e.value))  # and the others wait for the first


def keeps_more_than_it_sends_itself(world):
    dist.all_to_all_single(torch.empty(2), torch.ones(2), [1, 1], [2, 0])


def test_what_a_rank_sends_itself_is_torchs_to_refuse():
    with pytest.raises(Exception, match="rank|row") as caught:
        run(keeps_more_than_it_sends_itself, 2, timeout=30)
    assert isinstance(caught.value, Mismatch | RankError)


def sends_again(world):
    """Rank 0's first one is refused, and rank 1 comes before rank 0 sends another."""
    store, x = c10d._get_default_store(), torch.full((8,), float(world.rank))
    if world.rank == 0:
        with pytest.raises(RuntimeError, match="contiguous"):
            dist.send(x[::2], 1)
        store.set("refused", "")
        time.sleep(0.5)
        dist.send(torch.ones(3), 1)
        dist.send(torch.ones(5), 1)
    elif world.rank == 1:
        store.wait(["refused"])
        dist.recv(torch.empty(3), 0)
        dist.recv(torch.empty(5), 0)
    dist.all_reduce(x)


@pytest.mark.parametrize("world_size", [2, 3])
def test_a_message_that_torch_refused_is_not_counted(world_size):
    run(sends_again, world_size, timeout=30)


def makes_groups_again(world):
    if world.rank == 0:
        with pytest.raises(ValueError, match="rank"):
            dist.new_group([0, 5])
        with pytest.raises(TypeError, match="timeout"):
            dist.new_group([0], timeout=5)
        dist.distributed_c10d._get_default_store().set("refused", "")
    dist.distributed_c10d._get_default_store().wait(["refused"])
    pair = dist.new_group(numpy.arange(2))
    x = torch.ones(2)
    if world.rank < 2:
        dist.all_reduce(x, group=pair)
    return x.tolist()


@pytest.mark.parametrize("world_size", [2, 3])
def test_a_group_that_torch_refused_is_not_counted(world_size):
    values = run(makes_groups_again, world_size, timeout=30).values
    assert values == [[2.0] * 2] * 2 + [[1.0] * 2] * (world_size - 2)


def makes_another_group_of_numpys_ranks(world):
    dist.new_group(numpy.arange(1 if world.rank == 1 else 2))


def test_groups_of_numpys_ranks_are_compared():
    with pytest.raises(Mismatch, match=r"in new_group #1, .*group of ranks \(0, 1\)"):
        run(makes_another_group_of_numpys_ranks, 2, timeout=30)


def exchanges_again(world, is_refused):
    """Rank 0's first is refused, and rank 1 makes its own before rank 0 tries again."""
    store, x = c10d._get_default_store(), torch.ones(4)
    if world.rank == 0:
        is_refused(x)
        store.set("refused", "")
    store.wait(["refused"])
    if world.rank == 0:
        store.wait(["begun"])
    work = dist.all_to_all_single(x, torch.ones(4), [2, 2], [2, 2], async_op=True)
    store.set("begun", "")
    work.wait()
    dist.all_reduce(x)
    return x.tolist()


def with_a_list_for_another_group(x):
    with pytest.raises(RuntimeError):
        dist.all_to_all([x[:2]], [torch.ones(2)])


def with_a_list_of_numbers(x):
    with pytest.raises(TypeError):
        dist.all_to_all([x[:2], x[2:]], [1, 2])


@pytest.mark.parametrize("is_refused", [with_a_list_for_another_group, with_a_list_of_numbers])
def test_lists_that_torch_refused_are_not_compared(is_refused):
    assert run(exchanges_again, 2, [is_refused], timeout=30).values == [[2.0] * 4] * 2


def names_nobody(world):
    with pytest.raises(TypeError, match="incompatible function arguments"):
        dist.group.WORLD.broadcast(torch.ones(2), root="a")
    dist.all_reduce(torch.ones(2))


def test_a_root_that_is_no_number_is_torchs_to_refuse():
    run(names_nobody, 2, timeout=30)


def sends_by_many_tags(world):
    """More than a process could have tables for: the last ones are not compared."""
    for tag in (1, 4095, 4096, 10**6):
        x = torch.ones(1 + world.rank * (tag == 10**6))
        if world.rank == 0:
            dist.send(x, 1, tag=tag)
        else:
            dist.recv(x, 0, tag=tag)
    from labkit.comm.calls.compared import of_this_process

    return len(of_this_process()._by_group)


def test_messages_have_tables_by_their_tags_up_to_a_bound():
    assert run(sends_by_many_tags, 2, timeout=30).values == [2, 2]
