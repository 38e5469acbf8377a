"""A process that a rank forks, such as a DataLoader's worker, is no rank and gives no evidence."""

import multiprocessing

import torch
import torch.distributed as dist

from labkit import run


def in_a_child(work):
    """The exit code of a forked child that does this."""
    child = multiprocessing.get_context("fork").Process(target=work)
    child.start()
    child.join()
    return child.exitcode


def children_mark_regions(world):
    def tokenizes():
        for part in range(5000):  # more than the journal has room for
            with world.region(f"part {part}"):
                pass

    with world.region("before"):
        code = in_a_child(tokenizes)
    with world.region("after"):
        world.barrier()
    return code


def test_regions_of_a_child_are_not_the_ranks():
    result = run(children_mark_regions, 2, timeout=600)
    assert result.values == [0, 0]
    for timeline in result.timeline:
        assert [region.name for region in timeline.regions] == ["before", "after"]
        assert [operation.kind for operation in timeline.operations] == ["barrier"]


def a_world(world, folder, size):
    store = dist.FileStore(f"{folder}/of {size}", world.size)
    dist.init_process_group("gloo", store=store, rank=world.rank, world_size=world.size)
    for _ in range(50):
        dist.all_reduce(torch.ones(size))


def children_have_a_world_of_their_own(world, folder):
    """Beside that of the ranks, which torch calls by the same name."""
    dist.destroy_process_group()
    context = multiprocessing.get_context("fork")
    child = context.Process(target=a_world, args=(world, folder, 1))
    child.start()
    a_world(world, folder, 2)
    child.join()
    return child.exitcode


def test_calls_of_children_meet_no_ranks(tmp_path):
    values = run(children_have_a_world_of_their_own, 2, [str(tmp_path)], timeout=600).values
    assert values == [0, 0]
