"""What ranks fork, such as a DataLoader's workers, is no rank: its doings are nobody's evidence."""

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
    result = run(children_mark_regions, 2, timeout=30)
    assert result.values == [0, 0]
    for timeline in result.timeline:
        assert [region.name for region in timeline.regions] == ["before", "after"]
        assert [operation.kind for operation in timeline.operations] == ["barrier"]


def children_have_a_world_of_their_own(world, folder):
    dist.all_reduce(torch.ones(1))
    dist.destroy_process_group()

    def all_reduces():
        store = dist.FileStore(f"{folder}/of rank {world.rank}", 1)
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        for _ in range(world.rank + 1):
            dist.all_reduce(torch.ones(1 + world.rank))

    return in_a_child(all_reduces)


def test_calls_of_a_child_meet_nobodys(tmp_path):
    assert run(children_have_a_world_of_their_own, 2, [str(tmp_path)], timeout=30).values == [0, 0]
