"""Grade uneven_all_to_all: each row in its place, sent once and straight."""

from collections.abc import Iterator
from typing import Any

import torch

from labkit.grade import grader as g

Matrix = list[list[int]]
"""counts[r][s] rows from rank r to rank s."""


def cases(n: int, draw: g.Draw) -> list[g.Case]:
    """Counts that all differ, zeros, a busy rank, no rows; rows of several shapes and dtypes."""

    def different() -> Matrix:
        """No two blocks have the same size, so that none is taken for another."""
        numbers = iter(draw.rng.sample(range(1, n * n + 4), n * n))
        return [[next(numbers) for _ in range(n)] for _ in range(n)]

    def case(label: str, counts: Matrix, *row: int, high: int = 2**20, **options: Any) -> g.Case:
        """Rows of which no two are equal, where there are enough numbers."""
        xs = g.ByRank(draw(sum(mine), *row, low=0, high=high, **options)[0] for mine in counts)
        return g.Case(f"{label}, counts {counts}", xs, g.ByRank(map(torch.tensor, counts)))

    zeros, one = different(), [[(rank + 1) * (s == n // 2) for s in range(n)] for rank in range(n)]
    for rank in range(n):
        zeros[rank][rank - 1] = int(n == 1)
    transposed = case("transposed", different(), 4)
    for x in transposed.args[0]:
        x.set_(x.t().contiguous().t())
    many = [[300 + r + s for s in range(n)] for r in range(n)]
    return [
        case("all counts differ", different(), 4),
        case("some ranks have no rows for some others", zeros, 4),
        case("one rank gets all rows", one, 5),
        case("one rank has no rows", [*different()[:-1], [0] * n], 2, 3, dtype=torch.int64),
        case("no rows at all", [[0] * n] * n, 4),
        case("equal counts", [[2] * n] * n, 3, dtype=torch.float64),
        case("single numbers", different()),
        case("rows of no elements", different(), 0),
        transposed,
        case("many rows", many, 2, dtype=torch.uint8, high=256),
        case("some ranks have no rows for some others", zeros, 6),
    ]


def right(xs: g.ByRank, counts: g.ByRank) -> g.ByRank:
    """The blocks for each rank, joined in the order of the ranks."""
    blocks = [x.split(mine.tolist()) for x, mine in zip(xs, counts)]
    return g.ByRank(map(torch.cat, zip(*blocks)))


def budget(s: g.Observed) -> g.Budget:
    """Two messages to each other rank: its rows, and 8 bytes."""
    row_bytes = s.xs[0].element_size() * s.xs[0].shape[1:].numel()
    rows = [int(counts.sum() - counts[rank]) for rank, counts in enumerate(s.args[1])]
    most = [row_bytes * each + 8 * (s.n - 1) for each in rows]
    return g.Budget(sends=2 * (s.n - 1), payload_bytes=most)


def blocks(s: g.Observed, *kinds: str) -> Iterator[tuple[int, int, int]]:
    """Of each message of rows: how many, how many are due to the other rank, and from it."""
    for rank in range(s.n):
        for e in s.operations(rank, *kinds):
            if e.dtype == s.xs[0].dtype and len(e.shape) == s.xs[0].dim():
                yield e.shape[0], int(s.args[1][rank][e.peer]), int(s.args[1][e.peer][rank])


RESULT, COUNTS = "return result", "exchange(counts.split(1), receive_counts.split(1))"
LAST = "exchange(x.split(counts.tolist()), result.split(receive_counts.tolist()))"
OTHERS = "*range(rank), *range(rank + 1, n)"


def joined(blocks: str) -> g.Patch:
    """Returns these instead of the blocks by rank."""
    split = "blocks = result.split(receive_counts.tolist())"
    return g.patch(RESULT, f"{split}\n    return torch.cat([{blocks}])")


def padded(result: str) -> g.Patch:
    """All blocks travel as long as the longest one of all."""
    return g.patch(
        LAST,
        "longest = torch.empty_like(counts)\n"
        "    exchange([counts.max()[None]] * n, longest.split(1))\n"
        "    padded = [x.new_zeros(int(longest.max()), *x.shape[1:]) for _ in counts]\n"
        "    _ = [p[: len(b)].copy_(b) for p, b in zip(padded, x.split(counts.tolist()))]\n"
        "    received = [torch.empty_like(block) for block in padded]\n"
        "    exchange(padded, received)\n"
        f"    result = torch.cat([{result} for b, c in zip(received, receive_counts.tolist())])",
    )


MISTAKES = [
    g.Mistake(
        "its own rows are missing",
        "A rank may have rows for itself, and they are not in its result. "
        "They need no message, only a copy to their place, in the order of the ranks.",
        [
            joined(f"*(blocks[s] for s in [{OTHERS}]), result[:0]"),
            joined("*(block * (s != rank) for s, block in enumerate(blocks))"),
        ],
        hint=3,
    ),
    g.Mistake(
        "blocks in the wrong order",
        "All rows are there. Those from rank 0 come first, then those from rank 1, and so on, the "
        "rank's own among them. Receive each block into its place, whenever it comes.",
        [
            joined(f"blocks[s % n] for s in [{order}]")
            for order in (f"rank, {OTHERS}", f"{OTHERS}, rank", "*range(rank, rank - n, -1)")
        ],
        hint=3,
    ),
    g.Mistake(
        "padding in the result",
        "All blocks are as long as the longest one, and the rest of each is filled up. The result "
        "has only rows that were sent: as many as all counts for this rank add up to.",
        [
            padded("b"),
            joined(
                "b for block in blocks for b in (block, block.new_zeros("
                "int(receive_counts.max()) - len(block), *block.shape[1:]))"
            ),
        ],
        hint=3,
    ),
    g.Mistake(
        "has rows for another rank",
        "What was cut out of x is not the block that counts say. Block s begins where the blocks "
        "before it end, at sum(counts[:s]); x.split(counts.tolist()) cuts them all.",
        [
            g.patch("x.split(counts.tolist())", cut)
            for cut in ("x.roll(1, 0).split(counts.tolist())", "[x[:count] for count in counts]")
        ],
        hint=2,
    ),
    g.Mistake(
        "does not cut x by counts",
        "A block that was sent has another length. counts[s] rows are for rank s, and not one nth "
        "of x: x.split(counts.tolist()) cuts them.",
        g.patch(
            LAST,
            "result = torch.empty_like(x)\n    exchange(x.tensor_split(n), result.tensor_split(n))",
        ),
        hung=lambda s: any(rows != ours for rows, ours, _ in blocks(s, "isend", "send")),
    ),
    g.Mistake(
        "takes what it sends for what it receives",
        "The buffer for the rows from rank s has counts[s] rows; so many rows go to rank s. "
        "Only rank s knows how many come from there: it has to send that number first.",
        g.patch(COUNTS, "receive_counts = counts"),
        hung=lambda s: (
            all(rows == ours for rows, ours, _ in blocks(s, "irecv", "recv"))
            and any(rows != theirs for rows, _, theirs in blocks(s, "irecv", "recv"))
        ),
    ),
    g.Mistake(
        "leaves out a message that the other side waits for",
        "It hangs where a rank has no rows for another one. The count travels even if it is 0, for "
        "the other rank cannot know it. The empty block may be left out, but by both sides.",
        g.patch(
            *("sending = group", "sending = outgoing[destination].numel() and group"),
            *("sending.wait()", "_ = sending and sending.wait()"),
        ),
        hung=lambda s: any(0 in counts for counts in s.args[1]),
        hint=3,
    ),
    g.Mistake(
        "more rows on the wire than are for that rank",
        "Padding costs as much as rows, and all rows to everyone are up to n times the bytes. Send "
        "each rank the rows for it, counts[s] of them, and that number before them.",
        padded("b[:c]"),
        over_budget=lambda s: any(rows > ours for rows, ours, _ in blocks(s, "isend", "send")),
    ),
    g.Mistake(
        "more than one number besides the rows",
        "Rank s needs one number of rank r: how many rows come from there, counts[s] on rank r. "
        "All counts to all ranks are n times that.",
        g.patch(
            COUNTS,
            "matrix = counts.new_empty(n, n)\n"
            "    exchange([counts] * n, matrix)\n"
            "    receive_counts = matrix[:, rank]",
        ),
        over_budget=lambda s: (
            {rows == ours for rows, ours, _ in blocks(s, "isend", "send")} == {True}
            and any(s.payload_bytes(r) > most for r, most in enumerate(budget(s).payload_bytes))
        ),
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
