"""The messages of a pairwise all-to-all, by the journals, against calc."""

import pytest
import torch

from labkit import calc, run
from labkit.collectives import pairwise_all_to_all

WORLD_SIZES = range(1, 9)
ROW_SHAPE, ROW_BYTES = (3,), 12


def rows_RS(n):
    generator = torch.Generator().manual_seed(n)
    return torch.randint(-2, 6, (n, n), generator=generator).clamp(min=0).tolist()


def exchange(world, rows, row_shape):
    sent, received = rows[world.rank], [rows[source][world.rank] for source in range(world.size)]
    x = torch.ones(sum(sent), *row_shape)
    pairwise_all_to_all(x, world, send_splits=sent, recv_splits=received)


def asked(rows, row_bytes, rank, ranks_per_host=None):
    more = {"itemsize": row_bytes, "rank": rank, "ranks_per_host": ranks_per_host}
    return calc.collective("all_to_all", "pairwise", len(rows), splits=rows, **more)


def sends_of(run_):
    for rank, timeline in enumerate(run_.timeline):
        assert {op.kind for op in timeline.operations} <= {"send", "recv"}
        yield rank, [op for op in timeline.operations if op.kind == "send"]


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_sends_what_calc_says_by_rank_and_by_tier(world_size):
    rows = rows_RS(world_size)
    for rank, sends in sends_of(run(exchange, world_size, (rows, ROW_SHAPE))):
        sent = {op.peer: op.sent_bytes for op in sends}
        assert len(sent) == len(sends) == asked(rows, ROW_BYTES, rank).messages
        assert sum(sent.values()) == asked(rows, ROW_BYTES, rank).sent_bytes
        for ranks_per_host in (n for n in range(1, world_size + 1) if world_size % n == 0):
            host = rank // ranks_per_host
            slow = sum(b for peer, b in sent.items() if peer // ranks_per_host != host)
            tiers = asked(rows, ROW_BYTES, rank, ranks_per_host).tier_bytes
            assert tiers == (sum(sent.values()) - slow, slow)


def test_each_step_sends_to_one_rank_and_receives_from_one():
    rows = [[1] * 5 for _ in range(5)]
    result = run(exchange, 5, (rows, ROW_SHAPE))
    for rank, timeline in enumerate(result.timeline):
        by_step = [(op.kind, op.peer) for op in timeline.operations]
        assert by_step == [
            message
            for step in range(1, 5)
            for message in (("send", (rank + step) % 5), ("recv", (rank - step) % 5))
        ]
        # Both are posted before either is waited for, and a step is over before the next begins.
        for send, recv, later in zip(*(timeline.operations[i:8:2] for i in (0, 1, 2))):
            assert recv.posted_s <= send.waited_s
            assert max(send.done_s, recv.done_s) <= later.posted_s


@pytest.mark.parametrize(("rows", "row_shape"), [([[4, 0, 0]] * 3, (3,)), ([[2, 2, 2]] * 3, (0,))])
def test_blocks_without_content_are_not_sent(rows, row_shape):
    columns = [list(column) for column in zip(*rows)]
    result = run(exchange, 3, (rows, row_shape))
    row_numel = torch.Size(row_shape).numel()
    splits, row_bytes = [[row_numel * each for each in row] for row in rows], 4 * row_numel
    for rank, sends in sends_of(result):
        assert all(op.payload_bytes for op in sends)
        assert len(sends) == asked(splits, 4, rank).messages
        recvs = [op for op in result.timeline[rank].operations if op.kind == "recv"]
        expected = [n * row_bytes for s, n in enumerate(columns[rank]) if s != rank]
        assert sum(op.payload_bytes for op in recvs) == sum(expected)
        assert len(recvs) == sum(nbytes > 0 for nbytes in expected)
