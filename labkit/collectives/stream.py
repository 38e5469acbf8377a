"""Receive, add and pass on a long tensor in blocks.

    time ->     1         2         3         4         5
    block 0     receive   add       send
    block 1               receive   add       send
    block 2                         receive   add       send

While one block is added, the next is on its way, and later ranks have work as soon as the first
block has arrived. k blocks over p links in a row take as long as p + k - 1 blocks over one link;
without blocks they take as long as p k. An algorithm lists the moves of its blocks, and `stream`
makes them. The result goes into a new tensor, or into the caller's `out`.
"""

from collections import defaultdict, deque
from collections.abc import Collection, Iterable
from typing import NamedTuple

import torch

from labkit import arguments
from labkit.comm import Group, Pending, tensor_arguments

Blocks = tuple[torch.Tensor, ...]
"""Blocks of a flat tensor, in order."""

# Each message wakes two threads, whatever its size: 60 to 250 us. Four ranks on two cores reduced
# 16 MiB along trees in 1.05 to 1.25 times gloo's time with these blocks, and in 1.7 to 2.3 times
# with 512 KiB. 4 and 8 MiB were no faster, and larger blocks overlap less.
BLOCK_BYTES = 2 * 2**20
_BLOCKS_AHEAD = 2


class Move(NamedTuple):
    """One block's move on a rank: received from `sources`, summed, and sent to `targets`."""

    block: torch.Tensor
    """The block's view in this rank's result."""
    sources: tuple[int, ...]
    """The ranks that send it; at most one without a `part`. Empty if the rank has it already."""
    targets: tuple[int, ...]
    part: torch.Tensor | None = None
    """This rank's summand. None: nothing is added, and the message is received into `block`."""


def blocks(x: torch.Tensor, block_bytes: int = BLOCK_BYTES) -> Blocks:
    """Cut a flat x into views of at most `block_bytes`, or of one element if that is more.

    Returns one view or more. TypeError, ValueError unless block_bytes is a whole number above 0.
    """
    allowed = f"a block has a whole number of bytes from 1; leave it out for {BLOCK_BYTES}"
    block_bytes = arguments.whole("block_bytes", block_bytes, allowed)
    return x.split(max(block_bytes // x.element_size(), 1))


def stream(moves: Iterable[Move], group: Group) -> None:
    """Make the moves, and return when all of their messages have arrived.

    Moves are made in rounds. The messages of a round start together: the receives of one move, and
    one send to each target for which a block is ready. So ranks that send to each other never wait
    for each other's receive, and the next block is on its way while one is waited for. Each target
    gets its messages in the order of the moves, and must receive them in that order. Memory: two
    blocks for each source of a sum.
    """
    outbox: dict[int, deque[torch.Tensor]] = defaultdict(deque)  # by target
    sending: list[Pending[None]] = []
    arriving: list[Pending[torch.Tensor]] = []
    expected: deque[tuple[Move, list[Pending[torch.Tensor]]]] = deque()
    scratch = _Scratch()

    def pass_on(move: Move) -> None:
        for target in move.targets:
            outbox[target].append(move.block)

    def take() -> None:
        move, coming = expected.popleft()
        total = move.part
        for pending in coming:
            block = pending.wait()
            if total is not None:
                total = torch.add(total, block, out=move.block)
        pass_on(move)

    def send(served: Collection[int] = ()) -> list[int]:
        """Send one block to each target except those in `served`; return its receivers."""
        targets = [target for target in outbox if outbox[target] and target not in served]
        sending.extend(group.isend(outbox[target].popleft(), target) for target in targets)
        return targets

    for move in moves:
        if not move.sources:
            pass_on(move)
            continue
        with group.together():
            served = send()
            buffers = [move.block] if move.part is None else scratch.like(move)
            coming = [group.irecv(*pair) for pair in zip(buffers, move.sources, strict=True)]
            if len(expected) == _BLOCKS_AHEAD - 1:
                take()
                send(served)
        if move.part is None and not move.targets:
            arriving += coming
        else:
            expected.append((move, coming))
    while expected or any(outbox.values()):
        with group.together():
            served = send()
            if expected:
                take()
                send(served)
    for arrival in arriving:
        arrival.wait()
    for sent in sending:  # last, when most have left: each wait may put the thread to sleep
        sent.wait()


class _Scratch:
    """Buffers for received summands: for the current block, and for the next one."""

    def __init__(self) -> None:
        self._in_turn: deque[list[torch.Tensor]] = deque([[]] * _BLOCKS_AHEAD)

    def like(self, move: Move) -> list[torch.Tensor]:
        """Return a buffer for each source of `move`, reusing those of two moves ago."""
        numel = move.block.numel()
        buffers = self._in_turn.popleft()
        if len(buffers) < len(move.sources) or buffers[0].numel() < numel:
            buffers = [move.block.new_empty(numel) for _ in move.sources]
        self._in_turn.append(buffers)
        return [buffer[:numel] for buffer in buffers[: len(move.sources)]]


def result_like(x: torch.Tensor, out: torch.Tensor | None, group: Group) -> torch.Tensor:
    """Return a contiguous tensor like `x` for a sum of `x` over ranks: `out`, or a new one.

    Its numbers are undefined, unless out=x. TypeError for anything that has no sum: no tensor, a
    sparse one, booleans, dtypes that torch does not add. ValueError for a tensor on another device
    than the group's, and for an `out` unlike x.
    """
    return copy_like(tensor_arguments.summable(tensor_arguments.tensor(x, group)), out, group)


def copy_like(x: torch.Tensor, out: torch.Tensor | None, group: Group) -> torch.Tensor:
    """Return a contiguous tensor like `x`, of any dtype, for a copy of it: see `result_like`.

    TypeError for no tensor and a sparse one, ValueError for an `out` unlike x.
    """
    x = tensor_arguments.tensor(x, group)
    if out is None:
        return torch.empty_like(x, memory_format=torch.contiguous_format)
    out = tensor_arguments.target(out, group)
    if out.shape != x.shape or out.dtype != x.dtype or not out.is_contiguous():
        raise ValueError(
            f"out must be contiguous and like x, {tuple(x.shape)} of {x.dtype}; it is "
            f"{tuple(out.shape)} of {out.dtype}. Leave it out to get a new tensor"
        )
    if out.data_ptr() != x.data_ptr() and _overlap(x, out):
        raise ValueError(
            "out shares some of x's memory, so writing the result would change x while it is read; "
            "pass out=x, or a tensor with its own memory"
        )
    return out


def _overlap(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Return whether the bytes from the first to the last element of both have any in common."""
    if not x.numel() or x.untyped_storage().data_ptr() != y.untyped_storage().data_ptr():
        return False
    (x_from, x_to), (y_from, y_to) = _span(x), _span(y)
    return x_from < y_to and y_from < x_to


def _span(x: torch.Tensor) -> tuple[int, int]:
    last = sum((length - 1) * stride for length, stride in zip(x.shape, x.stride(), strict=True))
    return x.data_ptr(), x.data_ptr() + (last + 1) * x.element_size()
