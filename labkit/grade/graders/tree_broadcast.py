"""Grade tree_broadcast: the root's bits on every rank, one message to each, ceil(log2 n) steps."""

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
from labkit.grade.watched import same_bytes

MINUS_0, NAN, INF = -0.0, float("nan"), float("inf")


def cases(n: int, draw: Draw) -> list[Case]:
    """Every root, up to 8; shapes, dtypes and layouts; numbers that arithmetic changes."""
    inputs = {
        "9 float32 elements": draw(9),
        "10 float32 elements": draw(10),
        "a single number": draw(),
        "no elements": draw(0, 3),
        "-0.0, NaN and infinities": ByRank(
            torch.cat([x, torch.tensor([MINUS_0, NAN, INF, -INF])]) for x in draw(3)
        ),
        "9 elements, NaN on other ranks": draw(9),
        "int64, 7 elements": draw(7, dtype=torch.int64, low=-(2**60), high=2**60),
        "a transposed (4, 3, 2)": draw(2, 3, 4, permute=(2, 1, 0)),
    }
    roots = [-i % n for i in range(len(inputs))]
    for rank, x in enumerate(inputs["9 elements, NaN on other ranks"]):
        if rank != roots[5]:
            x.fill_(NAN)
    return [
        Case(f"root {root}, {label}", xs, root)
        for root, (label, xs) in zip(roots, inputs.items(), strict=True)
    ]


def right(xs: ByRank, root: int) -> torch.Tensor:
    """The root's x."""
    return xs[root]


def same(got: object, right: torch.Tensor, case: Case) -> bool:
    """Whether every bit is the same."""
    return isinstance(got, torch.Tensor) and same_bytes(got, right)


def budget(s: Observed) -> Budget:
    """Messages of the size of x; how many and in how many steps, the mistakes say."""
    return Budget(bytes_per_send=s.xs[0].nbytes)


def received(s: Observed, rank: int) -> int:
    """How many messages come to a rank."""
    return sum(children.count(rank) for children in sends(s))


def sends(s: Observed) -> list[list[int]]:
    """By rank, the ranks that it sends to, in order."""
    return [[e.peer for e in s.messages(rank)] for rank in range(s.n)]


def has_another_root(s: Observed) -> bool:
    """Whether all ranks have the x of one rank that is not the root."""
    return any(s.is_answer([x] * s.n) for x in s.xs)


def has_other_xs(s: Observed) -> bool:
    """Whether each wrong result is the x of a third rank, neither the root's nor the rank's own."""
    return s.wrong_ranks != [] and all(
        any(same(s.ys[rank], x, s.case) for owner, x in enumerate(s.xs) if owner != rank)
        for rank in s.wrong_ranks
    )


def is_spoilt(s: Observed) -> bool:
    """Whether only such numbers are wrong as arithmetic changes, or where a rank's own x is NaN."""
    r = s.right[0]
    odd = [~r.isfinite() | (r == 0) | x.isnan() for x in s.xs]
    pairs = [(s.ys[rank][~odd[rank]], r[~odd[rank]]) for rank in s.wrong_ranks]
    return r.is_floating_point() and bool(pairs) and all(torch.equal(*pair) for pair in pairs)


def steps_below(s: Observed, rank: int, is_best: bool = False) -> int:
    """The steps until the last rank below `rank` has x: as it was sent, or in the best order."""
    below = [steps_below(s, child, is_best) for child in sends(s)[rank]]
    below = sorted(below, reverse=True) if is_best else below
    return max([0, *(number + steps for number, steps in enumerate(below, start=1))])


def speed(s: Observed) -> str:
    """Why x takes more than ceil(log2 n) steps down a tree; empty where it does not."""
    root, enough = s.args[1], (s.n - 1).bit_length()
    is_tree = all(received(s, rank) == (rank != root) for rank in range(s.n))
    if not is_tree or steps_below(s, root) <= enough:
        return ""
    if steps_below(s, root, is_best=True) <= enough:
        return "another order would be fast"
    return "one at a time" if steps_below(s, root) == s.n - 1 else "some are idle"


TREE = """distance = 1
    while distance < n:
        if position < distance:
            if position + distance < n:
                group.send(out, (position + distance + root) % n)
        elif position < 2 * distance:
            group.recv(out, (position - distance + root) % n)
        distance *= 2
"""

MISTAKES = [
    Mistake(
        "takes another rank for the root",
        "All ranks have the x of one rank, and it is not the root. Count positions from the root, "
        "(rank - root) % n, and build the tree of positions. Position p is rank (p + root) % n.",
        hint=2,
        seen=has_another_root,
        made_by=patch("(group.rank - root) % n", "group.rank\n    root = 0"),
    ),
    Mistake(
        "a rank that nobody sends to",
        "Each rank but the root needs one message. Where n is no power of two there are "
        "ceil(log2 n) steps, not floor. Write down for n = 3 which rank sends to which.",
        hint=3,
        seen=lambda s: (
            any(not received(s, r) and r != s.args[1] for r in s.wrong_ranks)
            and not has_another_root(s)
        ),
        made_by=patch("while distance < n:", "while 2 * distance <= n:"),
    ),
    Mistake(
        "sends before it has received",
        "A rank has the x of a rank that is not the root: that rank sent its own x before the "
        "root's had arrived. Every rank but the root receives first, and sends then.",
        hint=2,
        seen=lambda s: has_other_xs(s) and not has_another_root(s),
        made_by=patch(
            "distance = 1",
            "distance = 1 << (n - 1).bit_length() >> 1",
            "while distance < n",
            "while distance",
            "distance *= 2",
            "distance //= 2",
        ),
    ),
    Mistake(
        "receives, and returns its own x",
        "A rank received a message and returns what it had before. recv fills the buffer that it "
        "gets: return that buffer.",
        hint=3,
        seen=lambda s: (
            s.wrong_ranks
            and all(received(s, r) and same(s.ys[r], s.xs[r], s.case) for r in s.wrong_ranks)
        ),
        made_by=patch("return out", "return x.clone()"),
    ),
    Mistake(
        "calculates where it should copy",
        "-0.0, NaN or infinities come out as something else, or a rank's own NaN is in the result: "
        "0.0 + -0.0 is 0.0, and x * 0 is NaN where x is. Return the buffer that recv filled.",
        hint=3,
        seen=is_spoilt,
        made_by=patch("return out", "return out + torch.zeros_like(out)"),
    ),
    Mistake(
        "names itself, or a rank that does not exist",
        "The other rank of a message is from 0 to n - 1. Position p is rank (p + root) % n. In the "
        "last step only the positions with p + distance < n have a rank to send to.",
        hint=3,
        seen=lambda s: any(
            e.peer == rank or not 0 <= e.peer < s.n
            for rank in range(s.n)
            for e in s.operations(rank)
        ),
        outcome=Outcome.CRASHED,
        made_by=patch("(position + distance + root) % n", "position + distance + root"),
    ),
    Mistake(
        "more than one message to a rank",
        "Each rank but the root receives one message, the whole of x; the root receives none. x in "
        "several pieces takes several steps, and only the root's x counts.",
        seen=lambda s: any(received(s, rank) > (rank != s.args[1]) for rank in range(s.n)),
        outcome=Outcome.OVER_BUDGET,
        made_by=patch(
            "group.send(out",
            "for _ in range(2): group.send(out",
            "group.recv(out",
            "for _ in range(2): group.recv(out",
        ),
    ),
    Mistake(
        "one message at a time",
        "A chain, and a star in which the root sends to all others itself, take n - 1 steps. If "
        "every rank that has x sends it in every step, 1, 2, 4, 8 ranks have it.",
        seen=lambda s: speed(s) == "one at a time",
        outcome=Outcome.OVER_BUDGET,
        made_by=patch(
            TREE,
            """if position:
        group.recv(out, root)
    for step in range(1, n if position == 0 else 0):
        group.send(out, (root + step) % n)
""",
        ),
    ),
    Mistake(
        "sends to the smallest part of the tree first",
        "The tree is right, and the order of the sends is not. Send first to the child with the "
        "most ranks below it: the way from there is the longest.",
        hint=2,
        seen=lambda s: speed(s) == "another order would be fast",
        outcome=Outcome.OVER_BUDGET,
        made_by=patch(
            TREE,
            """distance = 1
    while distance < n and not position & distance:
        distance *= 2
    if position:
        group.recv(out, (position - distance + root) % n)
    for step in range(distance.bit_length() - 1):
        if position + 2**step < n:
            group.send(out, (position + 2**step + root) % n)
""",
        ),
    ),
    Mistake(
        "ranks that have x are idle",
        "Some rank stops sending while others still wait for x, as in a binary tree. A rank "
        "that has x sends in every step, until all ranks have it.",
        seen=lambda s: speed(s) == "some are idle",
        outcome=Outcome.OVER_BUDGET,
        made_by=patch(
            TREE,
            """if position:
        group.recv(out, ((position - 1) // 2 + root) % n)
    for child in (2 * position + 1, 2 * position + 2):
        if child < n:
            group.send(out, (child + root) % n)
""",
        ),
    ),
]

GRADER = OnRanks(
    name="tree_broadcast",
    cases=cases,
    right=right,
    same=same,
    budget=budget,
    mistakes=MISTAKES,
    allowed=("send", "recv", "isend", "irecv"),
    closed=("labkit.collectives",),
    # 4 first: with 2 or 3 ranks a star, a chain and a tree take the same number of steps.
    world_sizes=(4, 3, 7, 1),
    shown="every rank has the root's x bit for bit, whichever rank is the root; each rank receives "
    "one message, and the last one after ceil(log2 n) steps",
)
