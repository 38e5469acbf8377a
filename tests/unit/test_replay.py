"""A run replayed on links: the order of its journal, and the times of a virtual clock."""

import random

import pytest

from labkit import Link, Topology, replay
from labkit.comm import Region, Timeline
from tests.an_operation import an_operation

# A message of m bytes takes m + 0.5 s.
LINE = Topology(hosts=1, ranks_per_host=2, fast=Link(1, 0.5))
THREE = Topology(hosts=1, ranks_per_host=3, fast=Link(1, 0.5))


def message(kind, peer, at_s, sequence=1, waited_s=None, nbytes=10):
    """waited_s: of one that does not block; at_s: when it was posted."""
    return an_operation(
        kind,
        sequence,
        peer=peer,
        payload_bytes=nbytes,
        posted_s=at_s,
        waited_s=at_s if waited_s is None else waited_s,
        blocking=waited_s is None,
    )


def times(timelines):
    return [[(op.posted_s, op.waited_s, op.done_s) for op in each.operations] for each in timelines]


def test_a_send_ends_when_the_last_byte_has_left_and_a_receive_when_it_is_there():
    ranks = [Timeline([message("send", 1, 7.0)]), Timeline([message("recv", 0, 90.0)])]
    found = replay(ranks, LINE)
    assert times(found) == [[(0, 0, 10)], [(0, 0, 10.5)]]
    assert [(each.start_s, each.end_s) for each in found] == [(0, 10), (0, 10.5)]


def test_recorded_times_count_by_their_order_only():
    def ranks(scale):
        return [
            Timeline([message("send", 1, 1.0), message("recv", 1, 2 * scale)]),
            Timeline([message("recv", 0, 3 * scale), message("send", 0, 4 * scale)]),
        ]

    assert times(replay(ranks(1), LINE)) == times(replay(ranks(1e3), LINE))
    assert replay(ranks(1), LINE)[0].end_s == 21


def test_a_send_waits_for_its_receiver_and_the_message_does_not():
    late = Timeline([message("recv", 0, 5.0)], [Region("work", 1.0, 4.0)])
    found = replay([Timeline([message("send", 1, 1.0)]), late], LINE, lambda rank, region: 30.0)
    assert times(found) == [[(0, 0, 30)], [(30, 30, 30)]]
    assert found[1].regions == [Region("work", 0, 30)]


def test_a_message_travels_while_its_sender_works_and_is_waited_for_afterwards():
    work = [Region("step", 0.0, 9.0), Region("work", 2.0, 5.0)]
    ranks = [
        Timeline([message("send", 1, 1.0, waited_s=6.0)], work),
        Timeline([message("recv", 0, 1.0)]),
    ]
    for work_s, end_s in ((4.0, 10.0), (25.0, 25.0)):
        seconds = {"step": 0.0, "work": work_s}
        found = replay(ranks, LINE, lambda rank, region, of=seconds: of[region.name])
        assert times(found) == [[(0, work_s, end_s)], [(0, 0, 10.5)]]
        assert found[0].regions == [Region("step", 0, end_s), Region("work", 0, work_s)]


def test_messages_share_the_ports_that_they_pass():
    sends = [Timeline([message("send", 2, 1.0)]), Timeline([message("send", 2, 2.0)])]
    receives = [message("recv", peer, peer, waited_s=5.0 - peer) for peer in (0, 1)]
    found = replay([*sends, Timeline(receives)], THREE)
    assert sorted(op.done_s for op in found[2].operations) == [20.5, 20.5]  # 1 is waited for first
    assert found[2].end_s == 20.5


def test_ranks_that_meet_go_on_when_the_last_one_has_come():
    def rank(number):
        meet = an_operation("barrier", 1, posted_s=3.0, waited_s=3.0)
        return Timeline([meet], [Region("work", 1.0, 2.0)])

    found = replay([rank(0), rank(1)], LINE, lambda rank, region: 1.0 + rank)
    assert [each.operations[0].posted_s for each in found] == [1, 2]
    assert [each.operations[0].done_s for each in found] == [2, 2]


def test_what_nobody_waited_for_has_no_end_and_a_region_that_was_not_left_has_none():
    sent = an_operation("send", 1, peer=1, posted_s=2.0, waited_s=None, blocking=False)
    found = replay([Timeline([sent], [Region("step", 1.0, None)]), Timeline()], LINE)
    assert times(found) == [[(0, None, None)], []]
    assert found[0].regions == [Region("step", 0, None)]


def test_regions_in_a_row_take_their_time_one_after_the_other():
    row = Timeline([], [Region("a", 0.0, 1.0), Region("b", 1.0, 2.0), Region("c", 2.0, 2.0)])
    (found, _) = replay([row, Timeline()], LINE, lambda rank, region: 2.0)
    assert [(each.start_s, each.end_s) for each in found.regions] == [(0, 2), (2, 4), (4, 6)]


@pytest.mark.parametrize("seed", range(5))
def test_random_exchanges_take_the_same_time_twice_and_no_less_than_their_bytes(seed):
    draw = random.Random(seed)
    topology = Topology(hosts=2, ranks_per_host=2, fast=Link(8, 0.5), slow=Link(1, 2.0))
    ranks = [Timeline() for _ in range(4)]
    for turn in range(20):
        source, target = draw.sample(range(4), 2)
        number = 1 + sum(op.peer == target for op in ranks[source].operations if op.kind == "send")
        nbytes = draw.randint(1, 99)
        for rank, kind, peer in ((source, "send", target), (target, "recv", source)):
            at_s = turn + draw.random() / 2
            ranks[rank].operations.append(message(kind, peer, at_s, number, at_s + 0.4, nbytes))
    for each in ranks:
        each.operations.sort(key=lambda op: op.posted_s)
    once = replay(ranks, topology)
    assert times(replay(ranks, topology)) == times(once)
    sent = [op for each in once for op in each.operations if op.kind == "send"]
    assert max(each.end_s for each in once) >= max(
        op.posted_s + op.payload_bytes / 8 for op in sent
    )


@pytest.mark.parametrize(
    ("ranks", "says"),
    [
        ([Timeline()], "world_size=1.* 2 ranks"),
        ([Timeline([message("recv", 1, 1.0)]), Timeline()], "rank 0 waits in recv #1 from rank 1"),
        ([Timeline(), Timeline([message("send", 0, 1.0)])], "rank 1 waits in send #1 to rank 0"),
        (
            [Timeline(), Timeline([an_operation()])],
            r"rank 1 waits in all_reduce #1 \(train.py:12\)",
        ),
        ([Timeline([an_operation(in_background=True)]), Timeline()], "by another thread"),
    ],
)
def test_what_cannot_be_replayed_is_refused(ranks, says):
    with pytest.raises(ValueError, match=says):
        replay(ranks, LINE)
