"""Grade uneven_all_to_all: each row in its place, sent once and straight."""

from typing import Any

import torch

from labkit.grade import grader
from labkit.grade.grader import Budget, ByRank, Case, Draw, Mistake, Observed, Outcome, patch

COUNT_BYTES = 8
Matrix = list[list[int]]
"""counts[r][s] rows from rank r to rank s."""


def cases(n: int, draw: Draw) -> list[Case]:
    """Counts that all differ, zeros, a busy rank, no rows; rows of several shapes and dtypes."""

    def different() -> Matrix:
        """No two blocks have the same size, so that none is taken for another."""
        numbers = iter(draw.rng.sample(range(1, n * n + 4), n * n))
        return [[next(numbers) for _ in range(n)] for _ in range(n)]

    def case(label: str, counts: Matrix, *row: int, high: int = 2**20, **options: Any) -> Case:
        """Rows of which no two are equal, where there are enough numbers."""
        options = {"low": 0, "high": high, **options}
        xs = ByRank(draw(sum(mine), *row, **options)[0] for mine in counts)
        return Case(f"{label}, counts {counts}", xs, ByRank(map(torch.tensor, counts)))

    zeros, idle, one = different(), different(), [[0] * n for _ in range(n)]
    for rank in range(n):
        zeros[rank][rank - 1] = int(n == 1)
        one[rank][n // 2] = rank + 1
    idle[-1] = [0] * n
    transposed = case("transposed", different(), 4)
    for x in transposed.args[0]:
        x.set_(x.t().contiguous().t())
    many = [[300 + r + s for s in range(n)] for r in range(n)]
    return [
        case("all counts differ", different(), 4),
        case("some ranks have no rows for some others", zeros, 4),
        case("one rank gets all rows", one, 5),
        case("one rank has no rows", idle, 2, 3, dtype=torch.int64),
        case("no rows at all", [[0] * n] * n, 4),
        case("equal counts", [[2] * n] * n, 3, dtype=torch.float64),
        case("single numbers", different()),
        case("rows of no elements", different(), 0),
        transposed,
        case("many rows", many, 2, dtype=torch.uint8, high=256),
        case("some ranks have no rows for some others", zeros, 6),
    ]


def right(xs: ByRank, counts: ByRank) -> ByRank:
    """The blocks for each rank, joined in the order of the ranks."""
    blocks = [x.split(mine.tolist()) for x, mine in zip(xs, counts, strict=True)]
    return ByRank(torch.cat(column) for column in zip(*blocks, strict=True))


def budget(s: Observed) -> Budget:
    """Two messages to each other rank: its rows, and 8 bytes."""
    rows = [sum(due(s, rank, other) for other in range(s.n)) for rank in range(s.n)]
    return Budget(
        sends=2 * (s.n - 1), payload_bytes=[each + COUNT_BYTES * (s.n - 1) for each in rows]
    )


def row_bytes(s: Observed) -> int:
    """Bytes of one row."""
    return s.xs[0].element_size() * s.xs[0].shape[1:].numel()


def due(s: Observed, rank: int, other: int) -> int:
    """Bytes that a rank has for another one."""
    return 0 if rank == other else int(s.args[1][rank][other]) * row_bytes(s)


def pairs(s: Observed) -> list[tuple[list[int], int]]:
    """For each rank and each other: the sizes of the messages, and the bytes that are due."""
    return [
        ([e.nbytes for e in s.messages(rank) if e.peer == other], due(s, rank, other))
        for rank in range(s.n)
        for other in range(s.n)
        if rank != other
    ]


def rows(x: torch.Tensor) -> list[tuple[float, ...]]:
    """The rows in an order of their own."""
    return sorted(tuple(row.flatten().tolist()) for row in x)


def blocks(s: Observed, rank: int) -> list[torch.Tensor]:
    """The blocks for a rank, by sender."""
    return list(s.right[rank].split([int(counts[rank]) for counts in s.args[1]]))


def has_all_but_own_rows(s: Observed) -> bool:
    """Whether all blocks are right but the one from the rank itself, which may be missing."""
    for rank in s.wrong_ranks:
        y, its = s.ys[rank], blocks(s, rank)
        if len(y) == len(s.right[rank]):
            y = torch.cat([*(b := y.split([*map(len, its)]))[:rank], *b[rank + 1 :], y[:0]])
        if not torch.equal(y, torch.cat([*its[:rank], *its[rank + 1 :], y[:0]])):
            return False
    return s.wrong_ranks != []


def padded(s: Observed, rank: int, length: int) -> torch.Tensor:
    """The blocks for a rank, filled up with zeros."""
    x = s.right[rank]
    zeros = [x.new_zeros(length - len(block), *x.shape[1:]) for block in blocks(s, rank)]
    return torch.cat([each for pair in zip(blocks(s, rank), zeros, strict=True) for each in pair])


def has_padding(s: Observed) -> bool:
    """Whether all blocks are as long as the longest one for the rank, or the longest of all."""
    longest = [max(map(len, blocks(s, rank))) for rank in range(s.n)]
    lengths = longest, [max(longest)] * s.n
    return any(s.is_answer([padded(s, r, ls[r]) for r in range(s.n)]) for ls in lengths)


def has_rows_of_others(s: Observed) -> bool:
    """Whether all rows are from some x, and some are not for this rank."""
    known = {row for x in s.xs for row in rows(x)}
    pairs = [(set(rows(s.ys[rank])), set(rows(s.right[rank]))) for rank in s.wrong_ranks]
    return all(got <= known for got, _ in pairs) and any(got - wanted for got, wanted in pairs)


def is_cut_as(s: Observed, kinds: tuple[str, ...], theory: Matrix, instead_of: Matrix) -> bool:
    """Whether all blocks have the sizes of a theory, and some not those that are due."""
    blocks = [
        (e.shape[:1], (theory[rank][e.peer],), (instead_of[rank][e.peer],))
        for rank in range(s.n)
        for e in s.operations(rank, *kinds)
        if e.dtype == s.xs[0].dtype and e.shape[1:] == s.xs[0].shape[1:]
    ]
    return all(got == wrong for got, wrong, _ in blocks) and any(w != r for _, w, r in blocks)


def sends_all(s: Observed) -> bool:
    """Whether each rank sends all of x to each other."""
    wholes = [x.nbytes for rank, x in enumerate(s.xs) for _ in range(s.n - 1)]
    has_whole = [whole in sizes for whole, (sizes, _) in zip(wholes, pairs(s), strict=True)]
    return all(has_whole) and any(sum(sizes) > most + COUNT_BYTES for sizes, most in pairs(s))


LAST = "exchange(x.split(counts.tolist()), result.split(receive_counts.tolist()))"
BLOCKS = "blocks = result.split(receive_counts.tolist())\n    return "

MISTAKES = [
    Mistake(
        "its own rows are missing",
        "A rank may have rows for itself, and they are not in its result. "
        "They need no message, only a copy to their place, in the order of the ranks.",
        hint=3,
        seen=has_all_but_own_rows,
        made_by=patch(
            "return result",
            BLOCKS + "torch.cat([*blocks[:rank], *blocks[rank + 1 :], result[:0]])",
        ),
    ),
    Mistake(
        "blocks in the wrong order",
        "All rows are there. Those from rank 0 come first, then those from rank 1, and so on, the "
        "rank's own among them. Receive each block into its place, whenever it comes.",
        hint=3,
        seen=lambda s: (
            s.wrong_ranks and all(rows(s.ys[rank]) == rows(s.right[rank]) for rank in s.wrong_ranks)
        ),
        made_by=patch(
            "return result",
            BLOCKS + "torch.cat([blocks[rank], *blocks[:rank], *blocks[rank + 1 :]])",
        ),
    ),
    Mistake(
        "padding in the result",
        "All blocks are as long as the longest one, and the rest of each is filled up. The result "
        "has only rows that were sent: as many as all counts for this rank add up to.",
        hint=3,
        seen=has_padding,
        made_by=patch(
            "return result",
            BLOCKS + "torch.cat([b for block in blocks for b in (block, block.new_zeros(\n"
            "        int(receive_counts.max()) - len(block), *block.shape[1:]))])",
        ),
    ),
    Mistake(
        "has rows for another rank",
        "What was cut out of x is not the block that counts say. Block s begins where the blocks "
        "before it end, at sum(counts[:s]); x.split(counts.tolist()) cuts them all.",
        hint=2,
        seen=has_rows_of_others,
        made_by=patch("exchange(x.split(", "exchange(x.roll(1, 0).split("),
    ),
    Mistake(
        "assumes equal splits",
        "x was cut into n blocks of nearly equal length. counts[s] rows are for rank s: "
        "x.split(counts.tolist()) cuts them.",
        seen=lambda s: is_cut_as(
            s,
            ("isend", "send"),
            [[len(part) for part in x.tensor_split(s.n)] for x in s.xs],
            [counts.tolist() for counts in s.args[1]],
        ),
        outcome=Outcome.HUNG,
        made_by=patch(
            LAST,
            "result = torch.empty_like(x)\n    exchange(x.tensor_split(n), result.tensor_split(n))",
        ),
    ),
    Mistake(
        "takes what it sends for what it receives",
        "The buffer for the rows from rank s has counts[s] rows; so many rows go to rank s. "
        "Only rank s knows how many come from there: it has to send that number first.",
        seen=lambda s: is_cut_as(
            s,
            ("irecv", "recv"),
            [counts.tolist() for counts in s.args[1]],
            [list(column) for column in zip(*(c.tolist() for c in s.args[1]), strict=True)],
        ),
        outcome=Outcome.HUNG,
        made_by=patch(
            "exchange(counts.split(1), receive_counts.split(1))", "receive_counts = counts"
        ),
    ),
    Mistake(
        "leaves out a message that the other side waits for",
        "It hangs where a rank has no rows for another one. The count travels even if it is 0, for "
        "the other rank cannot know it. The empty block may be left out, but by both sides.",
        hint=3,
        seen=lambda s: any(
            counts[other] == 0
            for rank, counts in enumerate(s.args[1])
            for other in range(s.n)
            if other != rank
        ),
        outcome=Outcome.HUNG,
        made_by=patch(
            "sending = group",
            "sending = outgoing[destination].numel() and group",
            "sending.wait()",
            "_ = sending and sending.wait()",
        ),
    ),
    Mistake(
        "sends everything to everyone",
        "Every rank sends all of its rows to all others, and these pick theirs: up to n times the "
        "bytes. The sender knows which rank a row is for.",
        seen=sends_all,
        outcome=Outcome.OVER_BUDGET,
        made_by=patch(
            "receive_counts = torch.empty_like(counts)",
            "matrix = counts.new_empty(n, n)\n"
            "    exchange([counts] * n, matrix)\n"
            "    everything = [x.new_empty(int(row.sum()), *x.shape[1:]) for row in matrix]\n"
            "    exchange([x] * n, everything)\n"
            "    blocks = zip(everything, matrix.tolist())\n"
            "    return torch.cat([x.split(row)[rank] for x, row in blocks])",
            "exchange(counts.split(1), receive_counts.split(1))",
            "receive_counts = counts",
        ),
    ),
    Mistake(
        "padding on the wire",
        "Every block is sent as long as the longest of all. With one busy rank that is nearly all "
        "padding: send the rows, and a number before them.",
        seen=lambda s: (
            len({max(sizes, default=0) for sizes, _ in pairs(s)}) == 1
            and max(pairs(s)[0][0]) >= max(most for _, most in pairs(s)) > 0
            and any(max(sizes) > most + COUNT_BYTES for sizes, most in pairs(s))
            and not sends_all(s)
        ),
        outcome=Outcome.OVER_BUDGET,
        made_by=patch(
            LAST,
            "longest = torch.empty_like(counts)\n"
            "    exchange([counts.max()[None]] * n, longest.split(1))\n"
            "    padding = [x.new_zeros(int(longest.max()) - c, *x.shape[1:]) for c in counts]\n"
            "    padded = [torch.cat(each) for each in zip(x.split(counts.tolist()), padding)]\n"
            "    received = [torch.empty_like(block) for block in padded]\n"
            "    exchange(padded, received)\n"
            "    result = torch.cat([b[:c] for b, c in zip(received, receive_counts.tolist())])",
        ),
    ),
    Mistake(
        "more than one number besides the rows",
        "Rank s needs one number of rank r: how many rows come from there, counts[s] on rank r. "
        "All counts to all ranks are n times that.",
        seen=lambda s: (
            all(len(sizes) == 2 and most in sizes for sizes, most in pairs(s))
            and any(sum(sizes) > most + COUNT_BYTES for sizes, most in pairs(s))
        ),
        outcome=Outcome.OVER_BUDGET,
        made_by=patch(
            "exchange(counts.split(1), receive_counts.split(1))",
            "matrix = counts.new_empty(n, n)\n"
            "    exchange([counts] * n, matrix)\n"
            "    receive_counts = matrix[:, rank]",
        ),
    ),
]

GRADER = grader.OnRanks(
    name="uneven_all_to_all",
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
