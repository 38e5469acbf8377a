"""Grade ring_all_reduce: exact sums, 2(n-1) messages to one neighbour, one nth of x in each."""

import torch

from labkit.grade import grader as g


def cases(n: int, draw: g.Draw) -> list[g.Case]:
    """Sizes that n divides and others, few elements, and layouts that flatten() copies."""
    # Sums of these are not exact in any floating-point dtype.
    huge = draw(10, 9, dtype=torch.int64, permute=(1, 0), low=-(2**60), high=2**60)
    return [
        g.Case("72 float32 elements", draw(72)),
        g.Case("73 float32 elements", draw(73)),
        g.Case("a single number", draw()),
        g.Case("2 elements", draw(2)),
        g.Case("no elements", draw(0, 3)),
        g.Case("int64, a transposed (9, 10)", huge),
        g.Case("float64, 77 elements", draw(77, dtype=torch.float64)),
    ]


def budget(s: g.Observed) -> g.Budget:
    """2(n-1) messages, of all chunks but the shortest one, and all of them once more."""
    sizes = [chunk.nbytes for chunk in s.xs[0].flatten().tensor_split(s.n)]
    payload = 2 * (sum(sizes) - min(sizes))
    return g.Budget(sends=2 * (s.n - 1), bytes_per_send=max(sizes), payload_bytes=payload)


def has_small_messages(s: g.Observed) -> bool:
    """Return whether no message is longer than the longest chunk."""
    longest = budget(s).bytes_per_send
    return all(e.nbytes <= longest for rank in range(s.n) for e in s.messages(rank))


MISTAKES = [
    g.Mistake(
        "ignores the remainder of an uneven size",
        "Where n does not divide the size, the last numel % n elements are in no chunk. "
        "torch.tensor_split makes n chunks of any size.",
        g.patch("total.ten", "total[: len(total) // n * n].ten"),
        hint=3,
    ),
    g.Mistake(
        "adds into a copy, and returns x unchanged",
        "flatten() and reshape() copy a tensor that is not contiguous, such as a transposed one. "
        "What is written into that copy is not in the tensor that is returned.",
        g.patch("= x.flatten().clone()", "= x.clone()", "= total.ten", "= total.flatten().ten"),
        wrong=lambda s: s.num_sends > 0 and s.is_answer(s.xs),
        hint=3,
    ),
    g.Mistake(
        "stops too early",
        "After n - 1 steps each rank has one complete chunk, every rank another one. The "
        "all-gather passes the complete chunks around, in n - 1 more steps.",
        g.patch("# All-gather.", "return total.view(x.shape)\n    # All-gather."),
        wrong=lambda s: 0 < s.num_sends < 2 * (s.n - 1) and has_small_messages(s),
    ),
    g.Mistake(
        "takes a chunk for another one",
        "The chunk that this rank receives in a step is the one that its neighbour sends in it. "
        "The all-gather starts with the chunk that the reduce-scatter completed on this rank.",
        [
            g.patch("range(n - 1):\n        ours", "range(-1, n - 2):\n        ours"),
            g.patch("range(n - 1):\n        out", "range(-1, n - 2):\n        out"),
        ],
        hint=2,
    ),
    g.Mistake(
        "adds to a chunk that is complete",
        "Some ranks' elements are in the sum twice. After n - 1 steps of the reduce-scatter the "
        "chunks are complete: what arrives then replaces what was there.",
        [
            g.patch(
                "chunks[(rank - 1 - step) % n], left)\n        ",
                "torch.empty_like(ours := chunks[(rank - 1 - step) % n]), left)\n        ours += ",
            ),
            g.patch("range(n - 1):\n        ours", "range(-1, n - 1):\n        ours"),
        ],
        hint=2,
    ),
    g.Mistake(
        "sends whole tensors",
        "Each message is all of x; one nth of it is enough. Passing whole tensors around costs "
        "n - 1 times x per rank, which grows with n. A ring costs less than 2 times x.",
        g.patch(
            "chunks = total.tensor_split(n)",
            "for _ in range(n - 1):\n"
            "        outgoing = group.isend(x, right)\n"
            "        x = group.irecv(torch.empty_like(x), left).wait()\n"
            "        outgoing.wait()\n"
            "        total += x.flatten()\n"
            "    return total.view(x.shape)",
        ),
        over_budget=lambda s: (
            {e.nbytes for e in s.messages(0)} == {s.xs[0].nbytes} and not has_small_messages(s)
        ),
    ),
    g.Mistake(
        "other chunks than tensor_split makes",
        "Padding travels too, and the last of equal chunks is short. torch.tensor_split cuts any "
        "size into n chunks without padding; they differ by one element at most.",
        g.patch(
            *("x.flatten().clone()", "torch.cat([x.flatten(), x.new_zeros(-x.numel() % n)])"),
            *("total.view(x.shape)", "total[: x.numel()].view(x.shape)"),
        ),
        over_budget=lambda s: (
            has_small_messages(s)
            and s.num_sends <= 2 * (s.n - 1)
            and any(s.payload_bytes(rank) > budget(s).payload_bytes for rank in range(s.n))
        ),
        hint=3,
    ),
    g.Mistake(
        "not a ring",
        "A rank sends everything to one neighbour, the right one or the left one. Messages to "
        "others share links. A rank that all others send to receives n - 1 times as much.",
        g.patch(
            *("(rank - step) % n], right", "(rank + step) % n], left"),
            *("(chunks[(rank - 1 - step) % n], left", "(chunks[(rank + 1 + step) % n], right"),
        ),
        over_budget=lambda s: any(
            {(e.peer - rank) % s.n for e in s.messages(rank)} not in (set(), {1}, {s.n - 1})
            for rank in range(s.n)
        ),
    ),
]

GRADER = g.OnRanks(
    cases=cases,
    right=sum,  # on every rank
    budget=budget,
    mistakes=MISTAKES,
    allowed=("isend", "irecv", "send", "recv"),
    closed=("labkit.collectives",),
    shown="the sums are exact, and every rank sent 2(n-1) messages of one nth of x",
)
