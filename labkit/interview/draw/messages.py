"""Drawings of collectives: who sends which chunk to whom in each step.

A cell says what its rank sends in the step of its column: `2:0` chunk 0 to rank 2, `2:0,1` two
chunks, `2:*` all of them, `1:0 3:0` to two ranks. All messages of a step travel at once, so each
carries what its sender held before the step.

A chunk on a rank is the set of ranks whose contributions are in it:

    held {0}, arrived {1, 2}        added: {0, 1, 2}
    held {0}, arrived {0, 1}        replaced by what is more complete
    held {0, 1}, arrived {1, 2}     rank 1 would count twice: wrong
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from labkit.interview.draw.drawing import Cells, Drawing, Fault

Held = list[list[frozenset[int]]]
"""By rank, by chunk: the ranks whose contributions are in it."""
_CELL = re.compile(r"(\d+):(\*|\d+(?:,\d+)*)")


@dataclass(frozen=True)
class Rules:
    """Rules of a drawing of messages."""

    num_ranks: int
    num_chunks: int
    start: Callable[[int, int], bool]
    """(rank, chunk): whether the rank has a contribution to it at the start."""
    invariant: Callable[[int, Held], int | None]
    """(step, from 1; what ranks hold after it): a rank that lags behind, or None."""
    reasons: tuple[str, str]
    """The invariant in words, in the first and in the second half of the steps."""
    has_one_peer: bool = True
    """A rank sends to one rank in a step, and receives from one."""
    is_ring: bool = False
    """All send to the same neighbour."""
    all_send: bool = False
    """Every rank sends in every step: an empty cell is the one to repair."""
    most_sent: int = 0
    """Chunks that a rank may send in all steps; 0: any number."""


def replayed(rules: Rules, cells: Cells) -> None:
    """Replay a drawing step by step; Fault at the first cell that is wrong."""
    n, m = rules.num_ranks, rules.num_chunks
    held: Held = [[frozenset({r} if rules.start(r, c) else ()) for c in range(m)] for r in range(n)]
    sent, shift = Counter[int](), 0
    for step in range(len(cells[0])):
        before = [list(chunks) for chunks in held]
        sources: dict[int, int] = {}
        for rank in range(n):
            messages = list(_messages(cells[rank][step], rank, step, rules))
            for target, chunk in messages:
                where = partial(Fault, rank, step)
                if rules.is_ring:
                    shift = shift or (target - rank) % n
                    if (target - rank) % n != shift or shift not in (1, n - 1):
                        raise where("on a ring every rank sends to the same neighbour, always")
                if rules.has_one_peer and sources.setdefault(target, rank) != rank:
                    raise where(
                        f"rank {target} already receives from rank {sources[target]} in this step"
                    )
                if not before[rank][chunk]:
                    raise where(f"it has nothing of chunk {chunk} before this step")
                held[target][chunk] = _joined(
                    held[target][chunk], before[rank][chunk], target, chunk, where
                )
                sent[rank] += 1
                if rules.most_sent and sent[rank] > rules.most_sent:
                    raise where(
                        f"that is more than {rules.most_sent} chunks in all: chunks travel twice"
                    )
        idle = [rank for rank in range(n) if not cells[rank][step]]
        if rules.all_send and idle:
            raise Fault(idle[0], step, "in each step every rank has something to send")
        if (late := rules.invariant(step + 1, held)) is not None:
            is_second = 2 * step >= len(cells[0])
            raise Fault(late, step, f"after this step {rules.reasons[is_second]}")


def _messages(cell: str, rank: int, step: int, rules: Rules) -> Iterator[tuple[int, int]]:
    """Yield (target, chunk) of everything that a cell says."""
    targets = set()
    for word in cell.split():
        match = _CELL.fullmatch(word)
        if match is None:
            raise Fault(rank, step, f"{word!r} cannot be read: write 2:0 for chunk 0 to rank 2")
        target = int(match[1])
        chunks = (
            range(rules.num_chunks) if match[2] == "*" else [int(c) for c in match[2].split(",")]
        )
        if target == rank or target >= rules.num_ranks:
            raise Fault(rank, step, f"there is no message from rank {rank} to rank {target}")
        if wrong := [chunk for chunk in chunks if chunk >= rules.num_chunks]:
            raise Fault(
                rank, step, f"there is no chunk {wrong[0]}: the last is {rules.num_chunks - 1}"
            )
        targets.add(target)
        if rules.has_one_peer and len(targets) > 1:
            raise Fault(rank, step, "a rank sends to one rank in a step")
        yield from ((target, chunk) for chunk in chunks)


def _joined(
    held: frozenset[int],
    arrived: frozenset[int],
    target: int,
    chunk: int,
    where: Callable[[str], Fault],
) -> frozenset[int]:
    if arrived >= held:
        return arrived
    if twice := held & arrived:
        raise where(
            f"rank {target} has the contributions of {_named(held)} to chunk {chunk}, and gets "
            f"those of {_named(arrived)}: {_named(twice)} would count twice"
        )
    return held | arrived


def _named(ranks: frozenset[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, sorted(ranks)))}"


def _first(ranks: Sequence[int], is_late: Callable[[int], bool]) -> int | None:
    return next((rank for rank in ranks if is_late(rank)), None)


def _num_whole(chunks: Sequence[frozenset[int]], n: int) -> int:
    return sum(len(chunk) == n for chunk in chunks)


_HOW = (
    "A cell says what its rank sends in that step: 2:0 is chunk 0 to rank 2, 2:0,1 two chunks, 2:* "
    "all. An empty cell sends nothing."
)


def _ring(n: int) -> Drawing:
    """2(n-1) steps: the partial sums go round, then the sums."""

    def invariant(step: int, held: Held) -> int | None:
        def is_late(r: int) -> bool:
            if step < n:
                return max(map(len, held[r])) < step + 1
            return _num_whole(held[r], n) < step - n + 2

        return _first(range(n), is_late)

    def chunk(rank: int, step: int) -> int:
        return (rank - step) % n if step < n - 1 else (rank + 1 - (step - n + 1)) % n

    steps = 2 * (n - 1)
    rules = Rules(
        n,
        n,
        lambda rank, chunk: True,
        invariant,
        (
            "this rank should hold a partial sum of one rank more than before",
            "this rank should hold one whole chunk more than before",
        ),
        is_ring=True,
        all_send=True,
        most_sent=steps,
    )
    return _drawing(
        f"ring-{n}",
        f"Ring all-reduce, {n} ranks",
        "co-2",
        f"Each of {n} ranks has a tensor of {n} chunks. Draw a ring all-reduce in {steps} steps.",
        "After step s of the first half each rank holds a chunk with the contributions of s + 1 "
        "ranks. After the first half each holds one whole chunk, and then one more in each step.",
        rules,
        [[f"{(r + 1) % n}:{chunk(r, s)}" for s in range(steps)] for r in range(n)],
    )


def _halving(n: int) -> Drawing:
    """log2 n steps of halving, as many of doubling."""
    levels = n.bit_length() - 1

    def invariant(step: int, held: Held) -> int | None:
        def is_late(r: int) -> bool:
            if step <= levels:
                return sum(len(c) >= 2**step for c in held[r]) < n >> step
            return _num_whole(held[r], n) < 2 ** (step - levels)

        return _first(range(n), is_late)

    def kept(rank: int, level: int) -> list[int]:
        """Chunks that a rank still sums after so many levels."""
        found = list(range(n))
        for bit in range(level):
            half = len(found) // 2
            found = found[half:] if rank >> bit & 1 else found[:half]
        return found

    def cell(rank: int, step: int) -> str:
        level = step if step < levels else 2 * levels - 1 - step
        partner = rank ^ (1 << level)
        chunks = kept(partner, level + 1) if step < levels else kept(rank, level + 1)
        return f"{partner}:{','.join(map(str, chunks))}"

    rules = Rules(
        n,
        n,
        lambda rank, chunk: True,
        invariant,
        (
            "this rank should sum half as many chunks, each with twice as many contributions",
            "this rank should hold twice as many whole chunks as before",
        ),
        all_send=True,
        most_sent=2 * (n - 1),
    )
    return _drawing(
        f"halving-doubling-{n}",
        f"Halving and doubling, {n} ranks",
        "co-4",
        f"Draw an all-reduce of {n} chunks in {2 * levels} steps, in which no rank sends more than "
        f"{2 * (n - 1)} chunks.",
        "Halving: after step s each rank sums n / 2^s chunks, each with the contributions of 2^s "
        "ranks. Doubling: after as many steps again it has 2^s whole chunks.",
        rules,
        [[cell(r, s) for s in range(2 * levels)] for r in range(n)],
    )


def _tree(n: int) -> Drawing:
    """A reduce to rank 0 in log2 n steps, then a broadcast."""
    levels = (n - 1).bit_length()

    def invariant(step: int, held: Held) -> int | None:
        left = levels - step if step <= levels else 2 * levels - step
        least = -(-n // 2**left)  # each step that is left can double it at most
        if step <= levels:
            most = max(range(n), key=lambda r: len(held[r][0]))
            return most if len(held[most][0]) < least else None
        whole = [r for r in range(n) if len(held[r][0]) == n]
        return _first(range(n), lambda r: r not in whole) if len(whole) < least else None

    def cell(rank: int, step: int) -> str:
        if step < levels:
            is_sender = rank & ((2 << step) - 1) == 1 << step
            return f"{rank - (1 << step)}:0" if is_sender else ""
        distance = 1 << (2 * levels - 1 - step)
        target = rank + distance
        return f"{target}:0" if rank % (2 * distance) == 0 and target < n else ""

    rules = Rules(
        n,
        1,
        lambda rank, chunk: True,
        invariant,
        (
            "this rank has the largest partial sum, too small for the steps that are left",
            "this rank has no sum yet, and too few ranks have it for the steps that are left",
        ),
    )
    return _drawing(
        f"tree-{n}",
        f"Tree all-reduce, {n} ranks",
        "co-4",
        f"The tensor travels whole, as chunk 0. Draw an all-reduce over {n} ranks in {2 * levels} "
        "steps: to one rank, and back from it.",
        "After step s of the way up the largest partial sum has 2^s contributions. On the way down "
        "the number of ranks that have the sum doubles.",
        rules,
        [[cell(r, s) for s in range(2 * levels)] for r in range(n)],
    )


def _server(n: int) -> Drawing:
    """Workers 1 to n push to rank 0, which sends the sum back."""

    def invariant(step: int, held: Held) -> int | None:
        everyone = frozenset(range(1, n + 1))
        if step == 1:
            return _first(range(1, n + 1), lambda r: r not in held[0][0])
        return _first(range(n + 1), lambda r: held[r][0] != everyone)

    rules = Rules(
        n + 1,
        1,
        lambda rank, chunk: rank > 0,
        invariant,
        (
            "the server should have this worker's gradient",
            "this rank should have the sum of all workers",
        ),
        has_one_peer=False,
    )
    back = " ".join(f"{worker}:0" for worker in range(1, n + 1))
    return _drawing(
        f"server-{n}",
        f"Parameter server, {n} workers",
        "dp-8",
        f"Rank 0 is a parameter server without a gradient, ranks 1 to {n} are workers; a tensor "
        "travels whole, as chunk 0. Draw a synchronous step. Two messages in a cell: 1:0 2:0.",
        "After the first step the server has every contribution, after the second every worker has "
        "the sum. Count what goes through the server's link.",
        rules,
        [["", back], *([["0:0", ""]] * n)],
    )


def _broadcast(n: int) -> Drawing:
    """From rank 0, the number of ranks that have it doubles."""
    steps = (n - 1).bit_length()

    def invariant(step: int, held: Held) -> int | None:
        have = sum(bool(held[r][0]) for r in range(n))
        return _first(range(n), lambda r: not held[r][0]) if have < min(n, 2**step) else None

    reason = "this rank has nothing yet, and twice as many ranks as before should have it"
    rules = Rules(n, 1, lambda rank, chunk: rank == 0, invariant, (reason, reason))
    return _drawing(
        f"broadcast-{n}",
        f"Broadcast, {n} ranks",
        "co-6",
        f"Rank 0 has the tensor, chunk 0. Draw a broadcast to {n} ranks in {steps} steps.",
        "After step s, 2^s ranks have it, and all of these send in the next step.",
        rules,
        [
            [f"{r + 2**s}:0" if r < 2**s and r + 2**s < n else "" for s in range(steps)]
            for r in range(n)
        ],
    )


def _drawing(
    name: str, title: str, topic: str, prompt: str, hint: str, rules: Rules, answer: Cells
) -> Drawing:
    return Drawing(
        name,
        title,
        topic,
        f"{prompt} {_HOW}",
        hint,
        tuple(f"rank {rank}" for rank in range(rules.num_ranks)),
        tuple(f"step {step}" for step in range(1, len(answer[0]) + 1)),
        answer,
        partial(replayed, rules),
    )


def drawings() -> list[Drawing]:
    """Return the drawings of messages, easy ones first."""
    return [
        *(_broadcast(n) for n in (4, 8)),
        *(_server(n) for n in (4, 8, 16)),
        *(_ring(n) for n in (3, 4, 8, 16)),
        *(_tree(n) for n in (4, 6, 8, 16)),
        *(_halving(n) for n in (4, 8, 16)),
    ]
