"""Grade tree_broadcast: the root's bits on every rank, one message to each, ceil(log2 n) steps."""

import math

import torch

from labkit.grade import grader as g
from labkit.grade.watched import same_bytes


def cases(n: int, draw: g.Draw) -> list[g.Case]:
    """Every root, up to 8; shapes, dtypes and layouts; numbers that arithmetic changes."""
    odd = torch.tensor([-0.0, math.nan, math.inf, -math.inf])
    inputs = {
        "9 float32 elements": draw(9),
        "10 float32 elements": draw(10),
        "a single number": draw(),
        "no elements": draw(0, 3),
        "-0.0, NaN and infinities": g.ByRank(torch.cat([x, odd]) for x in draw(3)),
        "9 elements, NaN on other ranks": g.ByRank(
            x if rank == -5 % n else x * math.nan for rank, x in enumerate(draw(9))
        ),
        "int64, 7 elements": draw(7, dtype=torch.int64, low=-(2**60), high=2**60),
        "a transposed (4, 3, 2)": draw(2, 3, 4, permute=(2, 1, 0)),
    }
    return [
        g.Case(f"root {-i % n}, {label}", xs, -i % n)
        for i, (label, xs) in enumerate(inputs.items())
    ]


def same(got: object, right: torch.Tensor, case: g.Case) -> bool:
    """Whether every bit is the same."""
    return isinstance(got, torch.Tensor) and same_bytes(got, right)


def sends(s: g.Observed) -> list[list[int]]:
    """By rank, the ranks that it sends to, in order."""
    return [[e.peer for e in s.messages(rank)] for rank in range(s.n)]


def received(s: g.Observed, rank: int) -> int:
    """How many messages come to a rank."""
    return sum(children.count(rank) for children in sends(s))


def is_of_one_rank(s: g.Observed) -> bool:
    """Whether all ranks have the x of one rank that is not the root."""
    return any(s.is_answer([x] * s.n) for x in s.xs)


def steps_below(s: g.Observed, rank: int, is_best: bool = False) -> int:
    """The steps until the last rank below `rank` has x: as it was sent, or in the best order."""
    below = [steps_below(s, child, is_best) for child in sends(s)[rank]]
    below = sorted(below, reverse=True) if is_best else below
    return max([0, *(number + steps for number, steps in enumerate(below, start=1))])


def is_slow(s: g.Observed, is_best: bool = False) -> bool:
    """Whether x takes more than ceil(log2 n) steps down a tree."""
    is_tree = all(received(s, rank) == (rank != s.args[1]) for rank in range(s.n))
    return is_tree and steps_below(s, s.args[1], is_best) > (s.n - 1).bit_length()


def tree(parent: str, children: str) -> g.Patch:
    """Down another tree of positions."""
    return g.patch(
        "distance = 1\n",
        f"""if position:
        group.recv(out, ({parent} + root) % n)
    for child in {children}:
        if child < n:
            group.send(out, (child + root) % n)
    return out
""",
    )


MISTAKES = [
    g.Mistake(
        "takes another rank for the root",
        "All ranks have the x of one rank, and it is not the root. Count positions from the root, "
        "(rank - root) % n, and build the tree of positions. Position p is rank (p + root) % n.",
        g.patch("(group.rank - root) % n", "group.rank\n    root = 0"),
        seen=is_of_one_rank,
        hint=2,
    ),
    g.Mistake(
        "does not add the root back",
        "Positions are counted from the root, and messages go to ranks. With another root than 0, "
        "position p is rank (p + root) % n.",
        g.patch(
            *("(position + distance + root) % n", "position + distance"),
            *("(position - distance + root) % n", "position - distance"),
        ),
        crashed=lambda s: s.args[1] > 0,
        hint=2,
    ),
    g.Mistake(
        "a rank without a message",
        "Each rank but the root needs one message. Where n is no power of two there are "
        "ceil(log2 n) steps, not floor. Write down for n = 3 which rank sends to which.",
        g.patch("while distance < n:", "while 2 * distance <= n:"),
        seen=lambda s: (
            any(not received(s, r) and r != s.args[1] for r in s.wrong_ranks)
            and not is_of_one_rank(s)
        ),
        hint=3,
    ),
    g.Mistake(
        "sends before it has received",
        "A rank has the x of a rank that is not the root: that rank sent its own x before the "
        "root's had arrived. Every rank but the root receives first, and sends then.",
        [
            g.patch(
                *("distance = 1", "distance = 1 << (n - 1).bit_length() >> 1"),
                *("while distance < n", "while distance", "distance *= 2", "distance //= 2"),
            ),
            g.patch("group.send(out,", "group.send(x,"),
        ],
        hint=2,
    ),
    g.Mistake(
        "receives, and returns its own x",
        "A rank received a message and returns what it had before. recv fills the buffer that it "
        "gets: return that buffer.",
        g.patch("return out", "return x.clone()"),
        hint=3,
    ),
    g.Mistake(
        "calculates where it should copy",
        "-0.0, NaN or infinities come out as something else, or a rank's own NaN is in the result: "
        "0.0 + -0.0 is 0.0, and x * 0 is NaN where x is. Return the buffer that recv filled.",
        [
            g.patch("return out", "return out + torch.zeros_like(out)"),
            g.patch(
                *("out = x.clone()", "out = x * (position == 0)"),
                *("group.recv(out,", "out += group.recv(torch.empty_like(out),"),
            ),
        ],
        hint=3,
    ),
    g.Mistake(
        "more than one message to a rank",
        "Each rank but the root receives one message, the whole of x; the root receives none. x in "
        "several pieces takes several steps, and only the root's x counts.",
        g.patch(
            *("group.send(out", "for _ in range(2): group.send(out"),
            *("group.recv(out", "for _ in range(2): group.recv(out"),
        ),
        over_budget=lambda s: any(received(s, rank) > (rank != s.args[1]) for rank in range(s.n)),
    ),
    g.Mistake(
        "ranks that have x are idle",
        "In a chain, in a binary tree, or where the root sends to all others itself, ranks that "
        "have x wait while others need it. If each sends in every step, 1, 2, 4, 8 ranks have it.",
        [
            tree("0", "range(1, n if position == 0 else 0)"),
            tree("(position - 1)", "[position + 1]"),
            tree("(position - 1) // 2", "(2 * position + 1, 2 * position + 2)"),
        ],
        over_budget=lambda s: is_slow(s, is_best=True),
    ),
    g.Mistake(
        "sends to the smallest part of the tree first",
        "The tree is right, and the order of the sends is not. Send first to the child with the "
        "most ranks below it: the way from there is the longest.",
        tree(
            "(position & position - 1)",
            "[position + 2**k for k in range(3) if position % 2 ** (k + 1) == 0]",
        ),
        over_budget=lambda s: is_slow(s) and not is_slow(s, is_best=True),
        hint=2,
    ),
]

GRADER = g.OnRanks(
    cases=cases,
    right=lambda xs, root: xs[root],
    same=same,
    budget=lambda s: g.Budget(bytes_per_send=s.xs[0].nbytes),  # steps: see the mistakes
    mistakes=MISTAKES,
    allowed=("send", "recv", "isend", "irecv"),
    closed=("labkit.collectives",),
    # 4 first: with 2 or 3 ranks a star, a chain and a tree take the same number of steps.
    world_sizes=(4, 3, 7, 1),
    shown="every rank has the root's x bit for bit, whichever rank is the root; each rank receives "
    "one message, and the last one after ceil(log2 n) steps",
)
