"""A long tensor goes through a rank in blocks: receive, add, pass on.

    time ->     1         2         3         4         5
    block 0     receive   add       send
    block 1               receive   add       send
    block 2                         receive   add       send

While one block is added, the next is on its way, and the ranks further on have work as soon as the
first block is through: k blocks over p links in a row take p + k - 1 times as long as one block
over one link, which is less than p whole tensors. An algorithm says what moves its blocks make, and
`stream` makes them.
"""

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

import torch

from labkit import arguments
from labkit.comm import Group, Pending

Blocks = tuple[torch.Tensor, ...]
"""What a flat tensor is cut into, in order."""

# A message wakes two threads whatever its size, which costs 60 to 250 us. Four ranks on two cores
# reduced 16 MiB along trees in 1.05 to 1.25 times gloo's time with these blocks, in 1.7 to 2.3
# times with 512 KiB; 4 and 8 MiB were no faster, and less of a tensor overlaps with them.
BLOCK_BYTES = 2 * 2**20
_BLOCKS_AHEAD = 2


class Move(NamedTuple):
    """What a rank does with one block: it comes from `sources`, grows, and goes to `targets`."""

    block: torch.Tensor
    """Where the block ends up in this rank: a part of the result."""
    sources: tuple[int, ...]
    """The ranks that it comes from, one unless there is a part to add. Empty: it is here."""
    targets: tuple[int, ...]
    part: torch.Tensor | None = None
    """What this rank adds to all that comes. None: nothing, and it comes straight into `block`."""


def blocks(x: torch.Tensor, block_bytes: int = BLOCK_BYTES) -> Blocks:
    """x, one-dimensional, in views of `block_bytes`, the last one shorter; at least one view.

    An element is never cut. TypeError and ValueError for a size that is no whole number of bytes
    from 1.
    """
    allowed = f"a block has a whole number of bytes from 1; leave it away for {BLOCK_BYTES}"
    block_bytes = arguments.whole("block_bytes", block_bytes, allowed)
    return x.split(max(block_bytes // x.element_size(), 1))


def stream(moves: Iterable[Move], group: Group) -> None:
    """Make the moves in order, and return when every message of theirs has arrived.

    A block that is here leaves when its turn comes, and one that stays where it arrives is waited
    for at the end. The others take turns: while one is waited for, the next is on its way. So to
    any one rank, what is here must go before what has yet to come, as messages must be in the order
    in which that rank expects them. Memory: two blocks for each source of a sum.
    """
    sending: list[Pending[None]] = []
    arriving: list[Pending[torch.Tensor]] = []
    expected: deque[tuple[Move, list[Pending[torch.Tensor]]]] = deque()
    scratch = _Scratch()

    def pass_on(move: Move) -> None:
        sending.extend(group.isend(move.block, target) for target in move.targets)

    def take() -> None:
        move, coming = expected.popleft()
        total = move.part
        for pending in coming:
            block = pending.wait()
            if total is not None:
                total = torch.add(total, block, out=move.block)
        pass_on(move)

    # Receives and sends are posted before any is waited for: send against send waits for ever.
    for move in moves:
        if not move.sources:
            pass_on(move)
        elif move.part is None and not move.targets:
            arriving.append(group.irecv(move.block, move.sources[0]))
        else:
            if len(expected) == _BLOCKS_AHEAD:
                take()
            buffers = [move.block] if move.part is None else scratch.like(move)
            coming = [group.irecv(*pair) for pair in zip(buffers, move.sources, strict=True)]
            expected.append((move, coming))
    while expected:
        take()
    for arrival in arriving:
        arrival.wait()
    for departure in sending:
        departure.wait()


class _Scratch:
    """Room for what is to be added: for the block that is waited for, and for the one after it."""

    def __init__(self) -> None:
        self._in_turn: deque[list[torch.Tensor]] = deque([[]] * _BLOCKS_AHEAD)

    def like(self, move: Move) -> list[torch.Tensor]:
        """A buffer for each source of `move`. Those of the move before the last are free again."""
        numel = move.block.numel()
        buffers = self._in_turn.popleft()
        if len(buffers) < len(move.sources) or buffers[0].numel() < numel:
            buffers = [move.block.new_empty(numel) for _ in move.sources]
        self._in_turn.append(buffers)
        return [buffer[:numel] for buffer in buffers[: len(move.sources)]]
