"""The parts of a job on several hosts, without the hosts: roll call, board, doors, records."""

import dataclasses
import threading
import time

import pytest
import torch.distributed as dist

from labkit import Run, run
from labkit.comm import roll_call
from labkit.comm.board import Board
from labkit.comm.environment import Environment
from labkit.launch import rank_record, records, saved_run
from labkit.launch.door import Door, knock


def environment(rank, world_size, port):
    """Rank `rank`, alone on its host."""
    return Environment(rank, world_size, 0, 1, rank, "127.0.0.1", port, "none", True)


@pytest.fixture(scope="module")
def store():
    """What torchrun's agent has: it outlives attempts."""
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def all_answer(port, next_attempts, order, timeout_s=10):
    """What each rank hears in a roll call in which ranks come in this order."""
    heard = {}

    def answer(rank):
        try:
            heard[rank], _ = roll_call.answer(
                environment(rank, len(next_attempts), port),
                door=1000 + rank,
                folder=f"folder-{rank}",
                next_attempt=next_attempts[rank],
                num_gpus=0,
                timeout_s=timeout_s,
            )
        except RuntimeError as error:
            heard[rank] = error

    threads = []
    for rank in order:
        threads.append(threading.Thread(target=answer, args=(rank,)))
        threads[-1].start()
        time.sleep(0.15)
    for thread in threads:
        thread.join()
    return heard


def test_all_ranks_hear_the_same_in_every_attempt_on_one_store(store):
    names = set()
    for next_attempts, order in (([0, 0, 0], [0, 1, 2]), ([1, 0, 1], [2, 1, 0]), ([2, 2], [1, 0])):
        heard = all_answer(store.port, next_attempts, order)
        assert len({call.name for call in heard.values()}) == 1, "they met under different names"
        call = heard[0]
        assert call.attempt == max(next_attempts)
        assert [place.door for place in call.places] == [1000 + rank for rank in range(len(order))]
        assert heard[1].folder(environment(1, len(order), store.port)) == "folder-1"
        assert not call.has_gpus()
        names.add(call.name)
    assert len(names) == 3


def test_ranks_that_do_not_come_are_named(store):
    heard = all_answer(store.port, [0, 0, 0], [0, 2], timeout_s=1.5)
    assert "ranks [1] have not come" in str(heard[0])
    assert "did not all start" in str(heard[2])


def test_a_rank_that_torchrun_did_not_start_is_told_so():
    with pytest.raises(RuntimeError, match=r"LOCAL_RANK.* not set: torchrun sets these"):
        Environment.read({"RANK": "0", "WORLD_SIZE": "1"})


def test_a_lost_board_answers_nothing_and_stays_lost():
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    board = Board(dist.TCPStore("127.0.0.1", server.port, is_master=False), "attempt")
    board.post("note", b"\x00\xff")
    assert board.read("note") == b"\x00\xff"
    assert board.read("no note") is None
    assert (board.count("failed", 1), board.count("failed")) == (1, 1)
    del server
    assert board.count("failed") is None
    assert board.is_lost
    assert board.read("note") is None


def test_a_door_answers_while_its_process_lives():
    door = Door()
    for _ in range(100):  # more than can wait before a door
        assert knock("127.0.0.1", door.port, 1.0) is None
        door.answer()
    door.close()
    assert knock("127.0.0.1", door.port, 1.0) == "has no such process any more"


@pytest.fixture
def folder(tmp_path):
    return run(lambda world: {"rank": world.rank}, 2).save(tmp_path / "saved")


def test_a_record_travels_as_one_note(folder):
    record = rank_record.Record.read(folder / "attempt-0" / "rank-1.json")
    record.log = "two\nlines ü\n"
    assert records.unpacked(records.packed(record)) == record


def test_a_value_that_was_too_large_to_travel_is_found_in_its_hosts_folder(folder, tmp_path):
    path = folder / "attempt-0" / "rank-1.json"
    left = dataclasses.replace(
        rank_record.Record.read(path), value=b"", value_kind=records.LEFT_BEHIND
    )
    left.write(saved_run.folder_of(tmp_path / "first", 0))
    (path.parent / "rank-0.json").rename(tmp_path / "first" / "attempt-0" / "rank-0.json")
    for kind in ("value", "log"):
        (path.parent / f"rank-0.{kind}").rename(tmp_path / f"first/attempt-0/rank-0.{kind}")
    with pytest.raises(ValueError, match=r"rank 1 .*too large to travel.*Run.load\("):
        Run.load(tmp_path / "first")
    assert Run.load(tmp_path / "first", partial=True).values == [{"rank": 0}, None]
    assert [v["rank"] for v in Run.load(tmp_path / "first", folder).values] == [0, 1]
