"""The traffic matrix: every byte of every message in its cell, and the two tiers apart."""

import pytest
import torch
from matplotlib.colors import to_hex

from labkit import Link, Topology, calc, run, viz
from labkit.collectives import ring_all_reduce
from labkit.viz.traffic import Sent, hosts_of, sent_between

HOSTS = [[0, 1], [2, 3]]


def traffic(world):
    """A ring of 10 numbers, three messages of 5 from rank 0 to rank 3, and an all_reduce."""
    ring_all_reduce(torch.ones(10), world)
    for _ in range(3):
        if world.rank == 0:
            world.send(torch.ones(5), dst=3)
        elif world.rank == 3:
            world.recv(torch.empty(5), src=0)
    world.all_reduce(torch.ones(100))


@pytest.fixture(scope="module")
def result():
    return run(traffic, 4)


def said(picture):
    return [text.get_text() for text in picture.axes[0].texts]


def test_every_message_is_counted_where_it_went(result):
    table = sent_between(result.timeline)
    for rank in range(4):
        ring_bytes = calc.collective("all_reduce", "ring", 4, 40, rank=rank).sent_bytes
        assert table[rank][(rank + 1) % 4] == Sent(ring_bytes, 6)
    assert table[0][3] == Sent(60, 3)
    assert sum(cell.messages for row in table for cell in row) == 27
    for rank, row in enumerate(table):
        of_sends = result.traffic[rank].by_operation["send"].sent_bytes
        assert sum(cell.nbytes for cell in row) == of_sends


def test_the_matrix_has_numbers_sums_and_what_is_not_in_it(result):
    texts = said(viz.traffic_matrix(result))
    assert "in all: 300 B in 27 messages" in texts
    assert texts.count("·") == 7
    sent = [calc.collective("all_reduce", "ring", 4, 40, rank=rank).sent_bytes for rank in range(4)]
    assert {str(nbytes) for nbytes in sent} <= set(texts)
    assert str(sent[0] + 60) in texts  # bytes that rank 0 sent, at the right
    assert any("all_reduce 2.4 KB" in text for text in texts)


def test_with_hosts_the_tiers_have_colours_frames_and_sums(result):
    picture = viz.traffic_matrix(result, hosts=HOSTS)
    texts = said(picture)
    within = sum(
        calc.collective("all_reduce", "ring", 4, 40, rank=rank).sent_bytes for rank in (0, 2)
    )
    between = 300 - within
    for nbytes, messages in ((within, 12), (between, 15)):
        assert any(text.endswith(f": {nbytes} B in {messages} messages") for text in texts)
    cells = {
        (round(patch.get_x(), 2), round(patch.get_y(), 2)): to_hex(patch.get_facecolor())
        for patch in picture.axes[0].patches
        if patch.get_fill() and patch.get_width() > 0.5
    }
    by_place = [colour for _, colour in sorted(cells.items(), key=lambda item: item[0][::-1])]
    rows = [by_place[start : start + 4] for start in range(0, 16, 4)]
    red = {colour for row in rows for colour in row if int(colour[1:3], 16) > int(colour[5:], 16)}
    assert {rows[1][2], rows[3][0], rows[0][3]} == red
    assert rows[0][2] == rows[2][0] == "#ffffff"


def test_a_run_on_a_topology_brings_its_own_hosts():
    link = Link(50e6, 1e-3)
    topology = Topology(hosts=2, ranks_per_host=2, fast=link, slow=link)
    result = run(traffic, 4, topology=topology)
    assert said(viz.traffic_matrix(result)) == said(viz.traffic_matrix(result, hosts=HOSTS))


def test_messages_can_be_counted_instead(result):
    texts = said(viz.traffic_matrix(result, count="messages", title="how often"))
    assert texts[0] == "how often"
    assert texts.count("6") == 4 + 3 + 3 and "9" in texts


def big(world):
    if world.rank == 0:
        world.send(torch.ones(500_000), dst=1)
    else:
        world.recv(torch.empty(500_000), src=0)


def test_many_bytes_are_written_in_one_unit():
    texts = said(viz.traffic_matrix(run(big, 2)))
    assert texts[0] == "MB from rank to rank" and texts.count("2") == 3
    assert "in all: 2,000,000 B in 1 message" in texts


def test_ranks_stand_by_host_whatever_their_numbers(result):
    texts = said(viz.traffic_matrix(result, hosts=[[3, 1], [0, 2]]))
    names = [text for text in texts if text in ("0", "1", "2", "3")]
    assert names == ["3", "3", "1", "1", "0", "0", "2", "2"]  # a column's, a row's


def test_sixteen_ranks_still_have_numbers_that_fit():
    def ring(world):
        ring_all_reduce(torch.ones(160_000), world)

    result = run(ring, 2)
    (first, second) = result.timeline
    picture = viz.traffic_matrix([first, second, *[type(first)() for _ in range(14)]])
    assert len(picture.png()) < 100_000
    with pytest.raises(ValueError, match="17 ranks"):
        viz.traffic_matrix([type(first)() for _ in range(17)])


@pytest.mark.parametrize(
    ("hosts", "error"),
    [
        ([[0, 1]], ValueError),
        ([[0, 1], [1, 2, 3]], ValueError),
        ([[0, 1, 2, 3], []], ValueError),
    ],
)
def test_hosts_that_do_not_fit_are_refused(result, hosts, error):
    with pytest.raises(error, match="hosts="):
        viz.traffic_matrix(result, hosts=hosts)


def test_another_count_is_refused(result):
    with pytest.raises(ValueError, match="count='operations'"):
        viz.traffic_matrix(result, count="operations")


def test_timelines_of_all_ranks_are_needed(result):
    with pytest.raises(ValueError, match="rank 0 .*rank [13]"):
        viz.traffic_matrix(result.timeline[:1])


def test_hosts_come_from_lists_and_topologies():
    link = Link(1e9)
    assert hosts_of(None, 3) == [[0, 1, 2]]
    assert hosts_of(((0, 2), (1,)), 3) == [[0, 2], [1]]
    assert hosts_of(Topology(hosts=2, ranks_per_host=2, fast=link, slow=link), 4) == HOSTS
