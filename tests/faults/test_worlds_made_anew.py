"""Process groups that are destroyed, and others made under their names."""

import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional

from labkit import run
from labkit.comm import flight_recorder, made_anew


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
    names = flight_recorder.names_of(flight_recorder.dump_without_stacks()["entries"])
    return group.group_name, sorted(name for name in names.values() if "anew" in name)


def test_torchs_record_of_a_new_world_has_the_same_names_on_ranks_that_used_others(tmp_path):
    for name, found in run(names_in_torchs_record, 3, [str(tmp_path)], timeout=30).values:
        in_torchs_words = "torch.distributed" + f"/{name}" * (name != "0")
        assert found == ["torch.distributed, made anew (2)", f"{in_torchs_words}, made anew (2)"]


def test_a_group_is_called_by_what_was_destroyed_before_it(monkeypatch):
    monkeypatch.setattr(made_anew, "_destroyed", [])
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
