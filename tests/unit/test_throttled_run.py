"""The results, journal, counts and messages of a run with a topology."""

from dataclasses import replace

import pytest
import torch

from labkit import Link, Session, Topology, run
from labkit.collectives import ring_all_reduce
from labkit.comm.shared_memory import shared_memory_all_reduce
from labkit.comm.staging import ThroughHost
from labkit.comm.throttle import Lateness
from labkit.launch import launch
from labkit.launch.notes import _notes_on_throttling

# 10 ms a message, whatever its size up to some kilobytes.
SLOW = Topology(hosts=2, ranks_per_host=1, slow=Link(1e9, 10e-3))
# Faster than any machine.
TOO_FAST = Topology(hosts=2, ranks_per_host=1, slow=Link(1e15, 0.0))


def passes_on(world, num):
    """`num` messages from 0 to 1, and one back."""
    buffer = torch.zeros(num, 3)
    if world.rank == 0:
        for row in range(num):
            world.send(torch.full((3,), float(row)), 1)
        world.recv(buffer[0], 1)
    else:
        pending = [world.irecv(buffer[row], 0) for row in range(num)]
        for each in reversed(pending):
            each.wait()
        world.send(buffer[-1], 0)
    return buffer[:, 0].tolist()


def passes_on_through_the_host(world, num):
    """As ranks that share a GPU do: see test_staging.py."""
    throttled = world._process_group
    throttled._process_group = ThroughHost(throttled._process_group, is_elsewhere=lambda x: True)
    return passes_on(world, num)


@pytest.mark.parametrize("function", [passes_on, passes_on_through_the_host])
def test_messages_arrive_whole_in_order_and_after_the_time_of_their_link(function):
    result = run(function, 2, (4,), topology=SLOW)
    assert result.values == [[3, 0, 0, 0], [0, 1, 2, 3]]
    send, recv = (timeline.operations[0] for timeline in result.timeline)
    assert recv.done_s - send.posted_s > 0.01


def test_results_and_bytes_are_those_of_a_run_without_links():
    def sums(world):
        return ring_all_reduce(torch.arange(11.0) * world.rank, world)

    topology = Topology(hosts=2, ranks_per_host=2, fast=Link(1e9), slow=Link(1e9, 1e-3))
    throttled, free = run(sums, 4, topology=topology), run(sums, 4)
    assert (free.topology, free.lateness) == (None, [])
    for a, b in zip(throttled.values, free.values, strict=True):
        assert torch.equal(a, b)
    for a, b in zip(throttled.traffic, free.traffic, strict=True):
        assert a.by_operation == b.by_operation


def test_a_message_is_late_by_a_tenth_of_what_its_link_takes():
    counts = Lateness()
    for lateness_s in (-1.0, 0.029, 0.031):
        counts.count(lateness_s, link_s=0.3)
    assert counts == Lateness(num_messages=3, num_late=1, late_s=0.031)


def test_links_that_the_machine_keeps_up_with_need_no_word():
    result = run(passes_on, 2, (1,), topology=Topology(hosts=2, ranks_per_host=1, slow=Link(400)))
    assert [each.num_messages for each in result.lateness] == [1, 1]
    assert result.topology.slow == Link(400)
    in_time, late = (Lateness(1, num_late, 0.1 * num_late) for num_late in (0, 1))
    assert _notes_on_throttling(replace(result, lateness=[in_time, in_time])) == []
    (line,) = _notes_on_throttling(replace(result, lateness=[in_time, late]))
    assert line.startswith("1 of 2 messages arrived later")


def test_links_faster_than_the_machine_are_reported_with_a_count(capsys):
    result = run(passes_on, 2, (4,), topology=TOO_FAST)
    assert [each.num_messages for each in result.lateness] == [1, 4]
    num_late = sum(each.num_late for each in result.lateness)
    assert num_late >= 2
    assert sum(each.late_s for each in result.lateness) > 0
    assert capsys.readouterr().out.startswith(f"[labkit] {num_late} of 5 messages")


def test_a_run_that_shows_nothing_counts_all_the_same(capsys):
    result = launch(passes_on, 2, [(1,)], topology=TOO_FAST, echo=False)
    assert sum(each.num_messages for each in result.lateness) == 2
    assert capsys.readouterr().out == ""


def test_collectives_of_the_backend_go_past_the_links_and_this_is_said(capsys):
    def calls(world):
        world.split(0)
        world.barrier()
        world.broadcast(torch.ones(3))
        return world.all_reduce(torch.ones(3)).tolist()

    assert run(calls, 2, topology=SLOW).values == [[2, 2, 2], [2, 2, 2]]
    line = capsys.readouterr().out
    assert line.startswith("[labkit] broadcast and all_reduce ")
    assert "barrier" not in line and "split" not in line


def sums_on_each_host(world):
    host = world.split(world.rank // 2)
    x = ring_all_reduce(torch.ones(3), host)
    return shared_memory_all_reduce(x, host).tolist()


def test_shared_memory_is_not_throttled_either(capsys):
    topology = Topology(hosts=2, ranks_per_host=2, fast=Link(40), slow=Link(1e9))
    assert run(sums_on_each_host, 4, topology=topology).values == 4 * [[4, 4, 4]]
    assert "[labkit] all_reduce through shared memory " in capsys.readouterr().out


def test_without_a_fast_link_hosts_are_as_fast_as_the_machine(capsys):
    topology = Topology(hosts=2, ranks_per_host=2, slow=Link(1e-3))
    result = run(sums_on_each_host, 4, topology=topology)
    assert result.values == 4 * [[4, 4, 4]]
    assert [each.num_messages for each in result.lateness] == 4 * [0]
    assert capsys.readouterr().out == ""


SENDS = "world.send(torch.ones(3), 1) if rank == 0 else world.recv(torch.empty(3), 0)"


def test_a_session_counts_the_messages_of_each_cell(capsys):
    with Session(2, topology=TOO_FAST) as session:
        for _ in range(2):
            cell = session.execute(SENDS)
            assert [each.num_messages for each in cell.lateness] == [0, 1]
            assert cell.topology == TOO_FAST
            num_late = cell.lateness[1].num_late
            assert capsys.readouterr().out.count("[labkit] 1 of 1 messages") == num_late
        session.restart()
        assert session.execute(SENDS).lateness[1].num_messages == 1


def test_a_session_refuses_a_topology_of_other_ranks():
    with pytest.raises(ValueError, match="world_size=3.* 2 ranks"):
        Session(3, topology=SLOW)
