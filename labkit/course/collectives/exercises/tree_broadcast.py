"""Grade tree_broadcast: the root's bits on every rank, one message to each, ceil(log2 n) steps."""

import math

import torch

from labkit.grade import grader as g
from labkit.grade.watched import same_bytes


def cases(n: int, draw: g.Draw) -> list[g.Case]:
    """Return every root, up to 7; shapes, dtypes and layouts; numbers that arithmetic changes."""
    odd = torch.tensor([-0.0, math.nan, math.inf, -math.inf])
    inputs = {
        "9 float32 elements": draw(9),
        "10 float32 elements": draw(10),
        "a single bfloat16 number": draw(dtype=torch.bfloat16),
        "no elements": draw(0, 3),
        "-0.0, NaN and infinities": g.ByRank(torch.cat([x, odd]) for x in draw(3)),
        "int64, 7 elements": draw(7, dtype=torch.int64, low=-(2**60), high=2**60),
        "a transposed (4, 3, 2)": draw(2, 3, 4, permute=(2, 1, 0)),
    }
    return [
        g.Case(f"root {-i % n}, {label}", xs, -i % n)
        for i, (label, xs) in enumerate(inputs.items())
    ]


def num_messages(s: g.Observed) -> int:
    """Return the number of messages of all ranks."""
    return sum(len(s.messages(rank)) for rank in range(s.n))


def steps_below(s: g.Observed, rank: int) -> int:
    """Return the steps from when `rank` has x until the last rank below it has x."""
    below = [steps_below(s, e.peer) for e in s.messages(rank)]
    return max([0, *(number + steps for number, steps in enumerate(below, start=1))])


def is_slow(s: g.Observed) -> bool:
    """Return whether x takes more than ceil(log2 n) steps down a tree."""
    return num_messages(s) == s.n - 1 and steps_below(s, s.args[1]) > (s.n - 1).bit_length()


def sends_in_each_step(s: g.Observed) -> bool:
    """Return whether the root has as many children as in a binomial tree."""
    return len(s.messages(s.args[1])) == (s.n - 1).bit_length()


MISTAKES = [
    g.Mistake(
        "takes another rank for the root",
        "All ranks have the x of one rank, and it is not the root. Count positions from the root, "
        "(rank - root) % n, and build the tree of positions. Position p is rank (p + root) % n.",
        g.patch("(group.rank - root) % n", "group.rank\n    root = 0"),
        wrong=lambda s: any(s.is_answer([x] * s.n) for x in s.xs),
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
        crashed=lambda s: "10 float32" in s.label,  # the first with another root than 0
        hint=2,
    ),
    g.Mistake(
        "a rank without a message",
        "Each rank but the root needs one message. Where n is no power of two there are "
        "ceil(log2 n) steps, not floor. Write down for n = 3 which rank sends to which.",
        g.patch("while distance < n:", "while 2 * distance <= n:"),
        wrong=lambda s: 0 < num_messages(s) < s.n - 1,
        hint=3,
    ),
    g.Mistake(
        "calculates where it should copy",
        "-0.0, NaN or infinities come out as something else, or a rank's own NaN is in the result: "
        "0.0 + -0.0 is 0.0, and x * 0 is NaN where x is. Return the buffer that recv filled.",
        g.patch("return out", "return out + torch.zeros_like(out)"),
        wrong=lambda s: "NaN" in s.label,
        hint=3,
    ),
    g.Mistake(
        "sends its own x before the root's has come",
        "A rank has the x of a rank that is not the root. Every rank but the root receives first, "
        "and sends on the buffer that recv filled.",
        g.patch("group.send(out,", "group.send(x,"),
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
        over_budget=lambda s: num_messages(s) > s.n - 1,
    ),
    g.Mistake(
        "ranks that have x are idle",
        "In a chain, in a binary tree, or where the root sends to all others itself, ranks that "
        "have x wait while others need it. If each sends in every step, 1, 2, 4, 8 ranks have it.",
        g.patch(
            *("if position < distance", "if position == 0", "distance *= 2", "distance += 1"),
            *("elif position < 2 * distance", "elif position == distance"),
        ),
        over_budget=lambda s: is_slow(s) and not sends_in_each_step(s),
    ),
    g.Mistake(
        "sends to the smallest part of the tree first",
        "The tree is right, and the order of the sends is not. Send first to the child with the "
        "most ranks below it: the way from there is the longest.",
        g.patch(
            *("distance = 1\n", "distance, children = 1, []\n"),
            *("group.send(out, (position + distance", "children.append((position + distance"),
            *("return out", "for child in children[::-1]: group.send(out, child)\n    return out"),
        ),
        over_budget=lambda s: is_slow(s) and sends_in_each_step(s),
        hint=2,
    ),
]

GRADER = g.OnRanks(
    cases=cases,
    right=lambda xs, root: xs[root],
    same=lambda got, right, case: same_bytes(got, right),
    picture=lambda s: "\n".join(
        f"rank {rank} sends to {[e.peer for e in s.messages(rank)]}" for rank in range(s.n)
    ),
    budget=lambda s: g.Budget(bytes_per_send=s.xs[0].nbytes),  # steps: see the mistakes
    mistakes=MISTAKES,
    allowed=("send", "recv", "isend", "irecv"),
    closed=("labkit.collectives",),
    # 4 first: with 2 or 3 ranks a star, a chain and a tree take the same number of steps.
    world_sizes=(4, 3, 7, 1),
    shown="every rank has the root's x bit for bit, whichever rank is the root; each rank receives "
    "one message, and the last one after ceil(log2 n) steps",
)
