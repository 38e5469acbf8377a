"""Pairwise all-to-all against what each rank should find and the library's, on 1 to 7 ranks."""

import pytest
import torch

from labkit import Deadlock, Mismatch, run
from labkit.collectives import pairwise_all_to_all
from tests.refused import messages_of

WORLD_SIZES = [1, 2, 3, 4, 7]
DTYPES = [torch.bool, torch.uint8, torch.int64, torch.bfloat16, torch.float32, torch.float64]
DTYPES += [torch.complex64, torch.float8_e4m3fn]


def rows_RS(n, seed):
    """rows[r][s]: how many rows rank r has for rank s; one in four has none."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randint(-2, 6, (n, n), generator=generator).clamp(min=0)
    return rows.tolist()


MATRICES = {n: [rows_RS(n, seed) for seed in range(2)] + [[[0] * n] * n] for n in WORLD_SIZES}


def numbered(rows, rank, width):
    """A tensor of rank's rows: row i for rank s holds (rank, s, i), `width` times."""
    triples = [(rank, s, i) for s, count in enumerate(rows[rank]) for i in range(count)]
    flat = torch.tensor(triples, dtype=torch.int64).view(-1, 1, 3)
    return flat.expand(-1, width, 3)


def exchange(world):
    found = []
    for number, rows in enumerate(MATRICES[world.size]):
        splits = {
            "send_splits": rows[world.rank],
            "recv_splits": [rows[source][world.rank] for source in range(world.size)],
        }
        x = numbered(rows, world.rank, 2)  # expanded: not contiguous
        found.append(pairwise_all_to_all(x, world, **splits))
        for dtype in DTYPES if (world.size, number) == (3, 0) else []:
            x = torch.randint(0, 2, (sum(rows[world.rank]), 3)).to(dtype)
            before = x.clone()
            ours = pairwise_all_to_all(x, world, **splits)
            theirs = world.all_to_all(x, *splits.values())
            assert ours.dtype == dtype and ours.shape == theirs.shape
            assert torch.equal(ours.view(torch.uint8), theirs.view(torch.uint8))
            assert torch.equal(x.view(torch.uint8), before.view(torch.uint8)), "x was changed"
            assert not ours.numel() or ours.data_ptr() != x.data_ptr()
    return found


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_every_row_arrives_at_its_rank_and_place(world_size):
    for rank, found in enumerate(run(exchange, world_size, timeout=600).values):
        for rows, result in zip(MATRICES[world_size], found, strict=True):
            expected = [
                [source, rank, i] for source in range(world_size) for i in range(rows[source][rank])
            ]
            assert result.shape == (len(expected), 2, 3)
            assert result[:, 0].tolist() == expected
            assert torch.equal(result[:, 0], result[:, 1])


def without_splits(world):
    x = 10 * world.rank + torch.arange(world.size).repeat_interleave(2)
    empty_rows = pairwise_all_to_all(torch.empty(world.size, 0), world)
    return pairwise_all_to_all(x, world).tolist(), pairwise_all_to_all(x), empty_rows.shape


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_without_splits_blocks_are_equal_and_the_group_is_the_default_one(world_size):
    for rank, (dealt, of_default, shape) in enumerate(run(without_splits, world_size).values):
        assert dealt == [10 * source + rank for source in range(world_size) for _ in range(2)]
        assert of_default.tolist() == dealt
        assert shape == (world_size, 0)


def there_and_back(world):
    rows = MATRICES[world.size][0]
    sent, received = rows[world.rank], [rows[source][world.rank] for source in range(world.size)]
    x = torch.randn(sum(sent), 3)
    there = pairwise_all_to_all(x, world, send_splits=sent, recv_splits=received)
    back = pairwise_all_to_all(there, world, send_splits=received, recv_splits=sent)
    return torch.equal(back, x)


def test_with_the_splits_exchanged_every_row_returns():
    assert all(run(there_and_back, 4).values)


def misused(world):
    return messages_of(
        lambda: pairwise_all_to_all(torch.ones(3), world),
        lambda: pairwise_all_to_all(torch.tensor(3), world),
        lambda: pairwise_all_to_all(3, world),
        lambda: pairwise_all_to_all(torch.ones(3), world, send_splits=[1, 1], recv_splits=[1, 1]),
        lambda: pairwise_all_to_all(torch.ones(2), world, send_splits=[1, 1], recv_splits=[0, 2]),
        lambda: pairwise_all_to_all(torch.ones(2), world, send_splits=[1, 1], recv_splits=[1]),
    )


def test_wrong_calls_are_refused():
    uneven, number, no_tensor, total, kept, length = run(misused, 2).values[0]
    assert "say how with send_splits and recv_splits" in uneven
    assert "pass x[None]" in number
    assert "torch.tensor(3)" in no_tensor
    assert "add up to 2 rows, but the tensor has 3" in total
    assert "rank 0 keeps for itself 1 rows by send_splits and 0 by recv_splits" in kept
    assert "recv_splits=[1] needs one number of rows" in length


def expects(world, rows):
    """Rank 0 sends two rows to rank 1, which expects `rows`."""
    if world.rank == 0:
        pairwise_all_to_all(torch.ones(2), world, send_splits=[0, 2], recv_splits=[0, 0])
    else:
        pairwise_all_to_all(torch.ones(0), world, send_splits=[0, 0], recv_splits=[rows, 0])


@pytest.mark.parametrize(("rows", "error"), [(3, Mismatch), (0, Deadlock)])
def test_expecting_another_number_of_rows_than_arrive_is_an_error(rows, error):
    with pytest.raises(error, match=r"send #\d+ .*to rank 1|rank 0 waits in pairwise_all_to_all"):
        run(expects, 2, (rows,))
