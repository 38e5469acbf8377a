"""Process groups that are destroyed, and others made under their names."""

import gc
import os
import socket
import time
import weakref
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional
from torch.distributed import distributed_c10d as c10d
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from labkit import Mismatch, run
from labkit.comm import flight_recorder, made_anew, torchs_groups


def destroys_a_group_that_it_is_not_in(world):
    group = dist.new_group([0])
    dist.destroy_process_group(group)
    return True


def test_a_group_may_be_destroyed_by_ranks_that_are_not_in_it():
    assert run(destroys_a_group_that_it_is_not_in, 2, timeout=30).values == [True] * 2


def names_in_torchs_record(world, folder):
    """Rank 0 has used the group of this name in the world before, and the others have not."""
    dist.new_group()
    alone = dist.new_group([0])
    if world.rank == 0:
        functional.all_reduce(torch.ones(1), "sum", alone).wait()
    world.barrier()
    dist.destroy_process_group()
    store = dist.FileStore(f"{folder}/anew", world.size)
    dist.init_process_group("gloo", store=store, rank=world.rank, world_size=world.size)
    dist.new_group([0])
    group = dist.new_group()
    functional.all_reduce(torch.ones(1), "sum", group).wait()
    functional.all_reduce(torch.ones(1), "sum", dist.group.WORLD).wait()
    names = torchs_groups.names_of(flight_recorder.dump_without_stacks()["entries"])
    return group.group_name, sorted(name for name in names.values() if "anew" in name)


def test_torchs_record_of_a_new_world_has_the_same_names_on_ranks_that_used_others(tmp_path):
    for name, found in run(names_in_torchs_record, 3, [str(tmp_path)], timeout=30).values:
        in_torchs_words = "torch.distributed" + f"/{name}" * (name != "0")
        assert found == ["torch.distributed, made anew (2)", f"{in_torchs_words}, made anew (2)"]


def test_a_group_is_called_by_what_was_destroyed_before_it(monkeypatch):
    monkeypatch.setattr(made_anew, "_worlds", [made_anew._World(1)])
    said, moments = [], []
    for destroyed in ("a", "b", None, "a", "a", None, None):
        said.append(made_anew.suffix("a"))
        moments.append(made_anew.now())
        made_anew.destroyed(destroyed)
    assert [*said, made_anew.suffix("a")] == [
        "",
        ", made anew (1.2)",
        ", made anew (1.2)",
        ", made anew (2)",
        ", made anew (2.2)",
        ", made anew (2.3)",
        ", made anew (3)",
        ", made anew (4)",
    ]
    assert [made_anew.suffix("a", moment) for moment in moments] == said, "and so it was called"
    made_anew.made(7, "ranks 0 and 1")
    assert made_anew.suffix("a") == ", made anew (7 of ranks 0 and 1)"


def makes_a_world(store, members, rank, backend="gloo"):
    dist.init_process_group(backend, store=store, rank=members.index(rank), world_size=len(members))


def one_step_of_ddp(size):
    model = DistributedDataParallel(torch.nn.Linear(size, 2))
    model(torch.ones(1, size)).sum().backward()


def in_worlds_of_their_own(world, folder, worlds):
    """Each with tensors of another size, and one more call in the last."""
    members = next(members for members in worlds if world.rank in members)
    size = 3 + members[0]
    world.barrier()
    dist.destroy_process_group()
    makes_a_world(dist.FileStore(f"{folder}/{size}", len(members)), members, world.rank)
    x = torch.ones(size)
    dist.all_reduce(x)
    one_step_of_ddp(size)
    if members is worlds[-1]:
        dist.broadcast(x, 0)
    dist.destroy_process_group()
    return x.sum().item() / size


@pytest.mark.parametrize("worlds", [[(0, 1), (2, 3)], [(0,), (1,)], [(1, 0), (2,)]], ids=str)
def test_worlds_of_some_ranks_each_may_do_different_things(tmp_path, worlds):
    world_size = sum(map(len, worlds))
    values = run(in_worlds_of_their_own, world_size, [str(tmp_path), worlds], timeout=30).values
    assert values == [len(each) for rank in range(world_size) for each in worlds if rank in each]


def test_what_differs_within_one_of_two_worlds_is_a_mismatch(tmp_path):
    def program(world):
        pair = (0, 1) if world.rank < 2 else (2, 3)
        dist.destroy_process_group()
        makes_a_world(dist.FileStore(f"{tmp_path}/{pair}", 2), pair, world.rank)
        dist.all_reduce(torch.ones(2 + (world.rank == 3)))

    said = r"torch.distributed, made anew \(2 of ranks 2 and 3\), rank 2 passes shape \(2,\)"
    with pytest.raises(Mismatch, match=said):
        run(program, 4, timeout=30)


def first_alone_and_then_together(world, folder):
    """Rank 0 has made a world more than the others when all meet in one."""
    dist.destroy_process_group()
    if world.rank == 0:
        makes_a_world(dist.HashStore(), (0,), 0)
        dist.all_reduce(torch.ones(1))
        dist.destroy_process_group()
    makes_a_world(dist.FileStore(f"{folder}/all", 3), (0, 1, 2), world.rank)
    if world.rank == 2:
        time.sleep(2)
    x = torch.ones(1)
    dist.all_reduce(x)
    return x.item()


def test_ranks_that_made_worlds_of_their_own_before_wait_in_one_for_a_slow_one(tmp_path):
    result = run(first_alone_and_then_together, 3, [str(tmp_path)], timeout=30, stall=0.5)
    assert result.values == [3.0] * 3


def in_torchs_fake_world(world):
    """Of 64 ranks, to see how a tensor would be cut."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.destroy_process_group()
    dist.init_process_group("fake", store=FakeStore(), rank=world.rank, world_size=64)
    dist.all_reduce(torch.ones(1 + world.rank))
    mesh = init_device_mesh("cpu", (64,))
    return distribute_tensor(torch.ones(128, 4), mesh, [Shard(0)]).to_local().shape[0]


def test_a_fake_world_meets_nobody():
    assert run(in_torchs_fake_world, 2, timeout=30).values == [2, 2]


def in_process_groups_without_a_name(world, folder):
    """torch.distributed knows nothing of these, and so not who is in which."""
    pair, member = divmod(world.rank, 2)
    store = dist.FileStore(f"{folder}/{pair}", 2)
    group = dist.ProcessGroupGloo(store, member, 2, timedelta(seconds=30))
    x = torch.ones(3 + pair)
    for _ in range(1 + pair):
        group.allreduce([x]).wait()
    world.barrier()
    return x[0].item()


def test_process_groups_without_a_name_are_not_compared(tmp_path):
    values = run(in_process_groups_without_a_name, 4, [str(tmp_path)], timeout=30).values
    assert values == [2.0, 2.0, 4.0, 4.0]


def survives(world, program):
    """Whether rank 0's wait ended by the timeout that the program had chosen."""
    try:
        program(world)
    except RuntimeError:
        return "survived"
    return "came"


def ddp_over_a_group_with_a_timeout(world):
    group = dist.new_group(timeout=timedelta(seconds=4))
    if world.rank == 0:
        DistributedDataParallel(torch.nn.Linear(2, 2), process_group=group)


def functional_in_a_group_with_a_timeout(world):
    group = dist.new_group(timeout=timedelta(seconds=4))
    if world.rank == 0:
        functional.all_reduce(torch.ones(1), "sum", group).wait()


def a_timeout_that_is_set_later(world):
    group = dist.new_group()
    dist.all_reduce(torch.ones(1), group=group)
    c10d._set_pg_timeout(timedelta(seconds=4), group)
    if world.rank == 0:
        dist.all_reduce(torch.ones(1), group=group)


@pytest.mark.parametrize(
    "program",
    [
        ddp_over_a_group_with_a_timeout,
        functional_in_a_group_with_a_timeout,
        a_timeout_that_is_set_later,
    ],
)
def test_a_groups_own_timeout_ends_what_torch_issues_in_it_too(program):
    assert run(survives, 2, [program], timeout=30, stall=0.5).values == ["survived", "came"]


def outlive_their_end(world):
    """torch's DDP must not be the last to hold one: it would end its threads with Python's lock."""
    plain, group = weakref.ref(dist.new_group()), weakref.ref(dist.new_group())
    model = DistributedDataParallel(torch.nn.Linear(2, 2), process_group=group())
    dist.destroy_process_group(plain())
    dist.destroy_process_group(group())
    del model
    gc.collect()
    held = [plain() is not None, group() is not None]
    dist.destroy_process_group()
    return [*held, group() is not None]


def test_a_group_that_a_ddp_has_is_held_until_another_one_is_destroyed():
    assert run(outlive_their_end, 2, timeout=30).values == [[False, True, False]] * 2


def twice_at_one_port(world, port):
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update(where, RANK=str(world.rank), WORLD_SIZE=str(world.size))
    dist.destroy_process_group()
    for _ in range(2):
        dist.init_process_group("gloo")
        x = torch.ones(1)
        dist.all_reduce(x)
        model = DistributedDataParallel(torch.nn.Linear(1, 1))
        dist.destroy_process_group()
        del model
        gc.collect()
        time.sleep(world.rank)  # rank 0's old store is gone, and its new one is there
    return x.item()


def test_a_world_may_have_the_port_of_the_one_before():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    assert run(twice_at_one_port, 2, [port], timeout=30).values == [2.0, 2.0]
