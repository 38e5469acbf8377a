"""A fault in shared memory ends in an error that names the rank, and leaves no file."""

import ctypes
import multiprocessing
import os
import re
import signal
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from labkit import Deadlock, Group, Link, Mismatch, RankError, Topology, run
from labkit.comm import SharedMemory, owned_folder, shared_memory_all_reduce
from labkit.comm.group import NoJournal
from labkit.comm.shared_memory import collectives, meeting
from labkit.comm.shared_memory.barrier import Barrier
from labkit.launch import supervise

CLONE_NEWNS, CLONE_NEWUSER = 0x20000, 0x10000000


def files():
    """Return the names of the files of shared memories."""
    return [path.name for path in meeting.parent_folder().glob("labkit-memory-*")]


@pytest.fixture(autouse=True)
def nothing_is_left():
    before = set(files())
    yield
    new = set(files()) - before
    deadline_s = time.monotonic() + 60
    while new & set(files()) and time.monotonic() < deadline_s:
        time.sleep(0.02)  # files of other tests that run now have a name for milliseconds
    assert not new & set(files())


def is_killed_inside(world, folder):
    x = torch.ones(4 * 10**6)
    for step in range(500):
        if world.rank == 1 and step == 3:
            threading.Timer(0.004, os.kill, (os.getpid(), signal.SIGKILL)).start()
        shared_memory_all_reduce(x, world, out=x)


def raises_inside(world, folder):
    shared_memory_all_reduce(torch.ones(100), world)
    if world.rank == 1:
        collectives._block_of = lambda *arguments: [][0]
    try:
        shared_memory_all_reduce(torch.ones(100), world)
    except IndexError:
        while len(os.listdir(folder)) < 2:  # the others' errors are there first
            time.sleep(0.01)
        raise
    except RuntimeError:
        (folder / str(world.rank)).touch()
        raise


@pytest.mark.parametrize(
    ("fault", "said"), [(is_killed_inside, "SIGKILL"), (raises_inside, "IndexError")]
)
def test_the_rank_that_breaks_off_is_blamed_and_the_others_do_not_wait(
    fault, said, monkeypatch, tmp_path
):
    monkeypatch.setattr(supervise, "_GRACE_S", 60)  # or the driver ends them on a busy machine
    with pytest.raises(RankError, match=said) as caught:
        run(fault, 3, (tmp_path,), timeout=600)
    assert caught.value.rank == 1
    assert sorted(caught.value.consequences) == [0, 2]
    for text in caught.value.consequences.values():
        assert re.search(r"in all_reduce #\d+ .*rank \d has left", text)


def past_the_run(world):
    """As under torchrun: no journal, no folder of a run, and another timeout."""
    group = Group(dist.group.WORLD, world.ranks, world.device, NoJournal())
    total = shared_memory_all_reduce(torch.full((3,), float(world.rank)), group)
    if world.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        shared_memory_all_reduce(torch.ones(3), group)
    except RuntimeError as error:
        print(total.tolist(), error, flush=True)


def test_ranks_without_a_run_around_them_notice_a_death_too(monkeypatch):
    monkeypatch.setattr(supervise, "_GRACE_S", 60)
    with pytest.raises(RankError, match="SIGKILL") as caught:
        run(past_the_run, 3, timeout=600)
    for rank in (0, 2):
        assert "[3.0, 3.0, 3.0] rank 1 has left" in caught.value.logs[rank]


def returns_early(world):
    for _ in range(2 if world.rank == 1 else 3):
        shared_memory_all_reduce(torch.ones(5), world)


def test_a_rank_that_returns_early_is_found():
    with pytest.raises(Deadlock, match=r"ranks 0 and 2 .*all_reduce #4 .*rank 1"):
        run(returns_early, 3, timeout=600)


def differ_in_shape(world):
    shared_memory_all_reduce(torch.ones(5 + (world.rank == 1)), world)


def differ_in_medium(world):
    memory = SharedMemory(world)
    (world if world.rank == 1 else memory).all_reduce(torch.ones(5))


def some_meet(world):
    if world.rank == 1:
        world.barrier()
    else:
        SharedMemory(world)


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (differ_in_shape, r"all_reduce #2, rank 1 .*\(6,\) .*ranks 0 and 2"),
        (differ_in_medium, "rank 1 .*network .*ranks 0 and 2 .*shared memory"),
        (some_meet, "rank 1 .*barrier #1 .*ranks 0 and 2 .*share_memory #1"),
    ],
)
def test_ranks_that_mean_different_operations_get_an_error(fault, said):
    with pytest.raises(Mismatch, match=said):
        run(fault, 3, timeout=600)


def swap_two_memories(world):
    memories = [SharedMemory(world), SharedMemory(world)]
    for memory in reversed(memories) if world.rank == 1 else memories:
        memory.all_reduce(torch.ones(5))


def test_ranks_that_use_two_memories_in_another_order_learn_which_and_where_they_were_made():
    with pytest.raises(Mismatch, match=r"all_reduce #3, rank \d") as caught:
        run(swap_two_memories, 2, timeout=600)
    line = swap_two_memories.__code__.co_firstlineno + 1
    used = re.findall(
        r"shared memory ([12])\b[^)]*?test_shared_memory_faults.py:(\d+)", str(caught.value)
    )
    assert sorted(used) == [("1", str(line)), ("2", str(line))]


def test_memories_that_are_used_in_one_order_are_as_many_as_one_likes():
    def use_two_memories(world):
        memories = [SharedMemory(world), SharedMemory(world)]
        order = [0, 1, 1, 0, 1]
        return [memories[number].all_reduce(torch.ones(2)).sum().item() for number in order]

    assert run(use_two_memories, 2, timeout=600).values == [[4.0] * 5] * 2


def return_from_a_function_with_a_memory(world):
    memory = SharedMemory(world)
    memory.all_reduce(torch.ones(3))
    if world.rank == 1:
        return  # and with it goes the memory
    try:
        memory.all_reduce(torch.ones(3))
    except RuntimeError as error:
        print(error, flush=True)
        raise


def test_a_rank_that_has_returned_is_not_said_to_have_died(monkeypatch):
    monkeypatch.setattr(supervise, "_GRACE_S", 60)
    with pytest.raises((RankError, Deadlock)) as caught:
        run(return_from_a_function_with_a_memory, 2, timeout=600)
    assert re.search("rank 1 has left .* it has returned", caught.value.logs[0])


def asks_for_too_much(world):
    SharedMemory(world, 2**52)


def test_too_little_memory_is_said_before_it_is_used():
    with pytest.raises(RankError, match=rf"{2**52:,} bytes .*[\d,]+ .*capacity_bytes") as its:
        run(asks_for_too_much, 2, timeout=600)
    assert (its.value.rank, its.value.exception_type) == (0, "OSError")


def in_a_small_dev_shm(results):
    """Map 3 and 5 MiB in a /dev/shm of 4 MiB, which only this process sees."""
    user, group, libc = os.getuid(), os.getgid(), ctypes.CDLL(None)
    if libc.unshare(CLONE_NEWUSER | CLONE_NEWNS):
        return results.put(None)
    texts = {"setgroups": "deny", "uid_map": f"0 {user} 1", "gid_map": f"0 {group} 1"}
    for name, text in texts.items():
        Path("/proc/self", name).write_text(text)
    if libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", 0, b"size=4m"):
        return results.put(None)
    for mebibytes in (3, 5):
        try:
            with meeting.made(mebibytes * 2**20, "less") as path:
                results.put(len(meeting.mapped(path)))
        except OSError as error:
            results.put(str(error))


@pytest.mark.skipif(sys.platform != "linux", reason="there is no /dev/shm")
def test_a_small_dev_shm_is_used_up_to_its_end_and_not_beyond():
    forked = multiprocessing.get_context("forkserver")
    results = forked.SimpleQueue()
    process = forked.Process(target=in_a_small_dev_shm, args=(results,))
    process.start()
    if (first := results.get()) is None:
        pytest.skip("no /dev/shm of its own to be had here")
    assert first == 3 * 2**20
    assert re.search("5,242,880 bytes in /dev/shm, .*4,194,304 .*--shm-size", results.get())
    process.join()


def seem_to_be_elsewhere(world):
    if world.rank > 1:
        meeting._host = lambda folder: "another"
    SharedMemory(world)


def spans_hosts(world):
    SharedMemory(world.split(world.rank // 2))  # within a host
    SharedMemory(world)


def test_ranks_on_different_hosts_learn_what_to_do():
    said = "ranks 2 and 3 .*group.split.*hierarchical_all_reduce"
    with pytest.raises(RankError, match=f"RuntimeError .*{said}"):
        run(seem_to_be_elsewhere, 4, timeout=600)
    two_hosts = Topology(hosts=2, ranks_per_host=2, fast=Link(1e9), slow=Link(1e9))
    with pytest.raises(RankError, match=f"ValueError .*{said}"):
        run(spans_hosts, 4, topology=two_hosts, timeout=600)


def is_killed_with_a_name(world):
    made = meeting._allocate

    def killed(*arguments):
        made(*arguments)
        os.kill(os.getpid(), signal.SIGKILL)

    meeting._allocate = killed
    SharedMemory(world)


def test_a_file_that_a_killed_rank_has_just_made_is_swept_by_the_next_meeting():
    with pytest.raises(RankError, match="SIGKILL"):
        run(is_killed_with_a_name, 2, timeout=600)
    assert files() != []
    run(lambda world: SharedMemory(world) and None, 2)
    assert files() == []


def test_the_folder_of_a_living_process_is_not_swept(tmp_path):
    mine = owned_folder.make(tmp_path, "memory")
    assert owned_folder.make(tmp_path, "memory") != mine
    assert mine.exists()


def two_barriers(folder):
    """Return the barriers of ranks 5 and 7, in one process."""
    folders = [folder / "a", folder / "b"]
    for each in folders:
        each.mkdir()
    barriers = [Barrier(folders[member], (5, 7), member) for member in (0, 1)]
    other = threading.Thread(target=barriers[1].connect, args=(folders, 10))
    other.start()
    barriers[0].connect(folders, 10)
    other.join()
    return barriers


def test_a_rank_that_does_not_come_is_named_when_the_timeout_has_passed(tmp_path):
    barrier, other = two_barriers(tmp_path)
    other.arrive()
    barrier.wait(0)
    with pytest.raises(RuntimeError, match="rank 7 .* 0.05 s"):
        barrier.wait(0.05)


def test_a_rank_that_has_arrived_and_left_is_missed_at_the_next_barrier(tmp_path):
    barrier, other = two_barriers(tmp_path)
    other.arrive()
    other.close()
    barrier.wait(10)
    barrier.arrive()
    with pytest.raises(RuntimeError, match="rank 7 has left"):
        barrier.wait(10)
    with pytest.raises(RuntimeError):
        other.wait(10)


def keep_and_drop_groups(world):
    def num_open():
        return len(os.listdir("/dev/fd"))

    shared_memory_all_reduce(torch.ones(3), world)
    counts = []
    for _ in range(3):
        group = world.split(0)
        group.barrier()  # which opens tables that the group keeps
        before = num_open()
        shared_memory_all_reduce(torch.ones(3), group)
        assert num_open() > before
        del group
        counts.append(num_open() - before)
    return counts


def test_a_group_that_is_out_of_use_takes_its_memory_with_it():
    assert run(keep_and_drop_groups, 2).values == [[0, 0, 0]] * 2
