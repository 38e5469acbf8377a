"""Grade uneven_all_to_all: each row in its place, sent once and straight."""

from collections.abc import Iterator
from typing import Any

import torch

from labkit.grade import grader as g


def cases(n: int, draw: g.Draw) -> list[g.Case]:
    """Counts that all differ, zeros, no rows; rows of several shapes, dtypes and layouts."""

    def different() -> list[list[int]]:
        """counts[r][s]: no two blocks have the same size, so that none is taken for another."""
        numbers = iter(draw.rng.sample(range(1, n * n + 4), n * n))
        return [[next(numbers) for _ in range(n)] for _ in range(n)]

    def case(label: str, counts: list[list[int]], *shape: int, **options: Any) -> g.Case:
        """shape: of x, with -1 for the number of rows."""
        shapes = [[sum(mine) if size == -1 else size for size in shape] for mine in counts]
        xs = g.ByRank(draw(*shape, low=0, high=256, **options)[0] for shape in shapes)
        return g.Case(f"{label}, counts {counts}", xs, g.ByRank(map(torch.tensor, counts)))

    zeros = different()
    for rank in range(n):
        zeros[rank][rank - 1] = 0
    many = [[300 + r + s for s in range(n)] for r in range(n)]
    return [
        case("all counts differ", different(), -1, 4),
        case("one rank has no rows", [*different()[1:], [0] * n], -1, 2, 3, dtype=torch.int64),
        case("no rows at all", [[0] * n] * n, -1, 4),
        case("single numbers", different(), -1),
        case("rows of no elements", different(), -1, 0),
        case("transposed", different(), 4, -1, permute=(1, 0), dtype=torch.float64),
        case("many rows", many, -1, 2, dtype=torch.uint8),
        case("some ranks have no rows for some others", zeros, -1, 6, dtype=torch.bfloat16),
    ]


def right(xs: g.ByRank, counts: g.ByRank) -> g.ByRank:
    """Return the blocks for each rank, joined in the order of the ranks."""
    blocks = [x.split(mine.tolist()) for x, mine in zip(xs, counts)]
    return g.ByRank(map(torch.cat, zip(*blocks)))


def budget(s: g.Observed) -> g.Budget:
    """Two messages to each other rank: its rows, and 8 bytes."""
    row_bytes = s.xs[0].element_size() * s.xs[0].shape[1:].numel()
    rows = [int(counts.sum() - counts[rank]) for rank, counts in enumerate(s.args[1])]
    most = [row_bytes * each + 8 * (s.n - 1) for each in rows]
    return g.Budget(sends=2 * (s.n - 1), payload_bytes=most)


def blocks(s: g.Observed) -> Iterator[tuple[int, int, int]]:
    """Receives of rows: (rows of the buffer, rows due to the other rank, rows due from it)."""
    for rank in range(s.n):
        for e in s.operations(rank):
            if "recv" in e.what and e.dtype == s.xs[0].dtype and len(e.shape) == s.xs[0].dim():
                yield e.shape[0], int(s.args[1][rank][e.peer]), int(s.args[1][e.peer][rank])


def expects_what_it_sends(s: g.Observed) -> bool:
    """Return whether buffers are as long as a rank's own counts."""
    rows, ours, theirs = zip(*blocks(s))
    return rows == ours != theirs


def is_reordered(s: g.Observed) -> bool:
    """Return whether every rank has its rows, but in a wrong order."""
    return all(
        got.dtype == right.dtype and sorted(got.tolist()) == sorted(right.tolist())
        for got, right in zip(s.ys, s.right)
    )


MISTAKES = [
    g.Mistake(
        "its own rows are missing",
        "A rank may have rows for itself, and they are not in its result. "
        "They need no message, only a copy to their place, in the order of the ranks.",
        g.patch("incoming[rank].copy_(outgoing[rank])", "incoming[rank].zero_()"),
        hint=3,
    ),
    g.Mistake(
        "blocks in the wrong order",
        "All rows are there. Those from rank 0 come first, then those from rank 1, and so on, the "
        "rank's own among them. Receive each block into its place, whenever it comes.",
        g.patch("return result", "return result.roll(-int(receive_counts[:rank].sum()), 0)"),
        wrong=is_reordered,
        hint=3,
    ),
    g.Mistake(
        "has rows for another rank",
        "The rows cut out of x are not the block that counts say. Block s begins where the blocks "
        "before it end, at sum(counts[:s]); x.split(counts.tolist()) cuts them all.",
        g.patch("x.split(counts.tolist())", "[x[:count] for count in counts]"),
        hint=2,
    ),
    g.Mistake(
        "takes what it sends for what it receives",
        "The buffer for the rows from rank s has counts[s] rows; so many rows go to rank s. "
        "Only rank s knows how many come from there: it has to send that number first.",
        g.patch("exchange(counts.split(1), receive_counts.split(1))", "receive_counts = counts"),
        hung=expects_what_it_sends,
    ),
    g.Mistake(
        "leaves out a message that the other side waits for",
        "It hangs where a rank has no rows for another one. The count travels even if it is 0. The "
        "empty block may be left out, but by both sides.",
        g.patch(
            *("sending = group", "sending = outgoing[destination].numel() and group"),
            *("sending.wait()", "_ = sending and sending.wait()"),
        ),
        hung=lambda s: any(rows == 0 for rows, *_ in blocks(s)),
        hint=3,
    ),
    g.Mistake(
        "more rows on the wire than are for that rank",
        "Padding costs as much as rows, and all rows to everyone are up to n times the bytes. Send "
        "each rank the rows for it, counts[s] of them, and that number before them.",
        g.patch(
            "exchange(x.split(counts.tolist()), result.split(receive_counts.tolist()))",
            "padding = x.new_zeros(400, *x.shape[1:])\n"
            "    padded = [torch.cat([b, padding])[:400] for b in x.split(counts.tolist())]\n"
            "    received = [torch.empty_like(each) for each in padded]\n"
            "    exchange(padded, received)\n"
            "    result = torch.cat([b[:c] for b, c in zip(received, receive_counts.tolist())])",
        ),
        over_budget=lambda s: any(rows > max(due) for rows, *due in blocks(s)),
    ),
]

GRADER = g.OnRanks(
    cases=cases,
    right=right,
    budget=budget,
    mistakes=MISTAKES,
    allowed=("isend", "irecv", "send", "recv"),
    closed=("labkit.collectives",),
    world_sizes=(3, 2, 1),
    shown="each row arrives in its place, whatever the counts, zeros too; it is sent once, "
    "straight to its rank, and besides the rows a rank sends each other one a count",
)
