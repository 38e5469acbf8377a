"""Grade ring_all_reduce: exact sums, 2(n-1) messages to one neighbour, one nth of x in each."""

import torch

from labkit.grade.grader import (
    Budget,
    ByRank,
    Case,
    Draw,
    Mistake,
    Observed,
    OnRanks,
    Outcome,
    patch,
)


def cases(n: int, draw: Draw) -> list[Case]:
    """Sizes that n divides and others, few elements, and layouts that flatten() copies."""
    # Sums of these are not exact in any floating-point dtype.
    huge = {"low": -(2**60), "high": 2**60}
    return [
        Case("72 float32 elements", draw(72)),
        Case("73 float32 elements", draw(73)),
        Case("a single number", draw()),
        Case("2 elements", draw(2)),
        Case("no elements", draw(0, 3)),
        Case(
            "int64, a transposed (9, 10)",
            draw(10, 9, dtype=torch.int64, permute=(1, 0), **huge),
        ),
        Case("float64, 77 elements", draw(77, dtype=torch.float64)),
    ]


def right(xs: ByRank) -> torch.Tensor:
    """The sum, on every rank."""
    return sum(xs[1:], xs[0].clone())


def budget(s: Observed) -> Budget:
    """2(n-1) messages, one nth of x in each."""
    return Budget(sends=2 * (s.n - 1), bytes_per_send=max(sizes(s)))


def chunks(x: torch.Tensor, n: int) -> list[torch.Tensor]:
    """The n chunks of the flattened x."""
    return list(x.flatten().tensor_split(n))


def sizes(s: Observed) -> set[int]:
    """The sizes of the chunks, in bytes."""
    return {chunk.nbytes for chunk in chunks(s.xs[0], s.n)}


def sent(s: Observed) -> list[int]:
    """The sizes of all messages of all ranks."""
    return [e.nbytes for rank in range(s.n) for e in s.messages(rank)]


def is_right_but_for_the_rest(s: Observed) -> bool:
    """Whether only the last numel % n elements are wrong."""
    covered, right = s.xs[0].numel() // s.n * s.n, s.right[0]
    return 0 < covered < right.numel() and all(
        y.dtype == right.dtype and torch.equal(y.flatten()[:covered], right.flatten()[:covered])
        for y in s.ys
    )


def is_reduce_scatter(s: Observed) -> bool:
    """Whether one chunk is right on every rank, and no other."""
    whole = chunks(s.right[0], s.n)
    num_right = [sum(map(torch.equal, chunks(y, s.n), whole)) for y in s.ys]
    return s.wrong_ranks != [] and s.num_sends < s.n and num_right == [1] * s.n


def counts(s: Observed) -> torch.Tensor:
    """[r, j, rank, i]: how often rank r's chunk j was added to chunk i of rank's result.

    Fails where the result is no such sum, or too short to tell.
    """
    n, length = s.n, s.xs[0].numel() // s.n
    assert s.wrong_ranks and length > n * n
    inputs, results = (
        torch.stack([part[:length].double() for x in xs for part in chunks(x, n)], dim=1)
        for xs in (s.xs, s.ys)
    )
    found = torch.linalg.lstsq(inputs, results).solution.round()
    assert torch.equal(inputs @ found, results)
    return found.view(n, n, n, n)


def in_place(s: Observed) -> torch.Tensor:
    """[r, rank, i]: the counts of chunks i in chunks i. Fails where others were added."""
    found = counts(s).diagonal(dim1=1, dim2=3)
    assert found.sum() == counts(s).sum()
    return found


MISTAKES = [
    Mistake(
        "ignores the remainder of an uneven size",
        "Where n does not divide the size, the last numel % n elements are in no chunk. "
        "torch.tensor_split makes n chunks of any size.",
        hint=3,
        seen=is_right_but_for_the_rest,
        made_by=patch("total.tensor_split(n)", "total[: x.numel() // n * n].tensor_split(n)"),
    ),
    Mistake(
        "returns the average",
        "The contract is the sum. Dividing by n is up to the caller.",
        seen=lambda s: s.is_answer([(r / s.n).to(r.dtype) for r in s.right]),
        made_by=patch("total.view(x.shape)", "(total / n).to(x.dtype).view(x.shape)"),
    ),
    Mistake(
        "adds into a copy, and returns x unchanged",
        "flatten() and reshape() copy a tensor that is not contiguous, such as a transposed one. "
        "What is written into that copy is not in the tensor that is returned.",
        hint=3,
        seen=lambda s: s.num_sends > 0 and s.xs[0].numel() > s.n and s.is_answer(s.xs),
        made_by=patch(
            "= x.flatten().clone()", "= x.clone()", "= total.ten", "= total.flatten().ten"
        ),
    ),
    Mistake(
        "stops after the reduce-scatter",
        "After n - 1 steps each rank has one complete chunk, every rank another one. The "
        "all-gather passes the complete chunks around, in n - 1 more steps.",
        seen=is_reduce_scatter,
        made_by=patch("range(n - 1):\n        outgoing", "range(0):\n        outgoing"),
    ),
    Mistake(
        "off by one in the ring",
        "Some chunks lack the elements of some ranks. Either a loop has less than n - 1 steps, "
        "or the all-gather starts with another chunk than the complete one.",
        hint=2,
        seen=lambda s: (
            set(in_place(s).flatten().tolist()) == {0, 1}
            and not s.is_answer(s.xs)
            and not is_reduce_scatter(s)
        ),
        made_by=patch(
            "[(rank - step)",
            "[(rank + 1 - step)",
            "irecv(chunks[(rank - 1",
            "irecv(chunks[(rank",
        ),
    ),
    Mistake(
        "adds in the all-gather too",
        "Some ranks' elements are in the sum twice. In the all-gather the chunks are complete: "
        "what arrives replaces what was there.",
        hint=2,
        seen=lambda s: in_place(s).max() > 1,
        made_by=patch(
            "incoming = group.irecv(chunks[(rank - 1 - step) % n], left)\n        incoming",
            "ours = chunks[(rank - 1 - step) % n]\n"
            "        ours += group.irecv(torch.empty_like(ours), left)",
        ),
    ),
    Mistake(
        "takes a chunk for another one",
        "Chunks of different numbers were added, or one is where another belongs. The chunk "
        "that this rank receives in a step is the one that its left neighbour sends in it.",
        hint=2,
        seen=lambda s: counts(s).sum() != counts(s).diagonal(dim1=1, dim2=3).sum(),
        made_by=patch("chunks[(rank - 2 - step) % n]", "chunks[(rank - step) % n]"),
    ),
    Mistake(
        "sends whole tensors",
        "Each message is all of x; one nth of it is enough. Passing whole tensors around costs "
        "n - 1 times x per rank, which grows with n. A ring costs less than 2 times x.",
        seen=lambda s: s.n > 1 and s.xs[0].numel() > 1 and set(sent(s)) == {s.xs[0].nbytes},
        outcome=Outcome.OVER_BUDGET,
        made_by=patch(
            "chunks = total.tensor_split(n)",
            "for _ in range(n - 1):\n"
            "        outgoing = group.isend(x, right)\n"
            "        x = group.irecv(torch.empty_like(x), left).wait()\n"
            "        outgoing.wait()\n"
            "        total += x.flatten()\n"
            "    return total.view(x.shape)",
        ),
    ),
    Mistake(
        "takes n steps instead of n - 1",
        "After n - 1 steps a chunk has been on every rank. One more step sends it to where it "
        "has been.",
        hint=2,
        seen=lambda s: 2 * s.n - 1 <= s.num_sends <= 2 * s.n and set(sent(s)) <= sizes(s),
        outcome=Outcome.OVER_BUDGET,
        made_by=patch(
            "range(n - 1):\n        outgoing = group.isend(chunks[(rank - step)",
            "range(n):\n        outgoing = group.isend(chunks[(rank - step)",
        ),
    ),
    Mistake(
        "padding on the wire",
        "All ranks together send more than 2(n-1) times x: x was padded to a size that n divides. "
        "torch.tensor_split makes n chunks of any size, without padding.",
        hint=3,
        seen=lambda s: (
            sum(sent(s)) > 2 * (s.n - 1) * s.xs[0].nbytes
            and s.num_sends <= 2 * (s.n - 1)
            and set(sent(s)) == {max(sizes(s))}
        ),
        outcome=Outcome.OVER_BUDGET,
        made_by=patch(
            "x.flatten().clone()",
            "torch.cat([x.flatten(), x.new_zeros(-x.numel() % n)])",
            "total.view(x.shape)",
            "total[: x.numel()].view(x.shape)",
        ),
    ),
    Mistake(
        "unequal chunks",
        "The sizes of the n chunks differ by more than one element. torch.chunk makes the last "
        "one short. torch.tensor_split makes the first numel % n one element longer.",
        hint=3,
        seen=lambda s: (
            s.num_sends <= 2 * (s.n - 1)
            and len(set(sent(s))) > 1
            and not set(sent(s)) <= sizes(s) | {0}
        ),
        outcome=Outcome.OVER_BUDGET,
        made_by=patch("total.tensor_split(n)", "[*total.chunk(n), *[total[:0]] * n][:n]"),
    ),
    Mistake(
        "not a ring",
        "A rank sends everything to one neighbour, the right one or the left one. Messages to "
        "others share links. A rank that all others send to receives n - 1 times as much.",
        seen=lambda s: any(
            len(others) > 1 or others - {1, s.n - 1}
            for rank in range(s.n)
            for others in [{(e.peer - rank) % s.n for e in s.messages(rank)}]
        ),
        outcome=Outcome.OVER_BUDGET,
        made_by=patch(
            "(rank - step) % n], right",
            "(rank + step) % n], left",
            "irecv(chunks[(rank - 1 - step) % n], left",
            "irecv(chunks[(rank + 1 + step) % n], right",
        ),
    ),
]

GRADER = OnRanks(
    name="ring_all_reduce",
    cases=cases,
    right=right,
    budget=budget,
    mistakes=MISTAKES,
    allowed=("isend", "irecv", "send", "recv"),
    closed=("labkit.collectives",),
    shown="the sums are exact, and every rank sent 2(n-1) messages of one nth of x",
)
