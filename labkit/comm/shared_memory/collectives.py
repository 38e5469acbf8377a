"""all_reduce, reduce_scatter and all_gather through memory that the ranks of one host share.

    before, ranks 0..2                 after
    all_reduce      a  | b  | c        s  | s  | s       s = a + b + c, added in this order
    reduce_scatter  a  | b  | c        s0 | s1 | s2      chunks as torch.tensor_split cuts them
    all_gather      s0 | s1 | s2       s  | s  | s

The functions are called as those of labkit.collectives.ring, and give the same up to rounding. They
keep a SharedMemory for each group; make one yourself to choose how large it is. It has two slots,
and in each of them an area (numel,) for every pair of a rank and a chunk:

                chunk 0      chunk 1      chunk 2
    rank 0      the sum      its x        its x         Rank r writes into row r only. It never
    rank 1      its x        the sum      its x         needs to show its own chunk: there, on the
    rank 2      its x        its x        the sum       diagonal, it leaves the sum.

A tensor is cut into n flat chunks, and these into blocks that fit in an area. In a superstep every
rank works on several blocks, one stage (`put`, `reduce`, `show`, `take`) on each. An all-reduce:

    superstep           0        1        2        3        4
    put                 block 0  block 1  block 2                   x into the areas of row r
    reduce                       block 0  block 1  block 2          column r into a sum
    take                                  block 0  block 1  block 2   sums into the result
    slot of put         0        1        0        1        0

Between supersteps is a barrier, so each stage reads what others wrote one superstep before. Two
slots are enough: when `put` returns to a slot, it holds sums that are being taken, and `put`
leaves these alone. The model: Valiant, "A bridging model for parallel computation", CACM 33(8),
1990.

Wire: nothing. Of D bytes a rank copies (n-1)/n D into the memory, adds n chunks of D/n, and
copies D out again. gloo's ring sends 2(n-1)/n D through sockets: the kernel copies each byte twice,
and wakes a thread for every message (benchmarks/shared_memory.py has both side by side).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from labkit.comm import tensor_arguments
from labkit.comm.group import Group, chosen
from labkit.comm.operation import SHARED_MEMORY
from labkit.comm.shared_memory.barrier import Barrier
from labkit.comm.shared_memory.meeting import meet, require_on_host, timeout_s
from labkit.comm.shared_memory.memory_order import MemoryOrder
from labkit.comm.traffic import Traffic

# Smaller blocks need more barriers (at 4 MiB and 8 ranks twice the time), larger ones do not fit in
# the cores' caches. And docker gives a container 64 MiB of /dev/shm.
CAPACITY_BYTES = 16 * 2**20


class SharedMemory:
    """A memory that the ranks of a group share, and collectives through it.

    Every member makes it, and calls the same operations in the same order. They block. The journal
    has them as operations of the group with 0 bytes sent. A tensor may be larger than the memory.

    RuntimeError when a rank is gone, or does not come within the group's timeout; from then on the
    memory is out of use, on every rank. OperationMismatch as for the operations of a Group, and
    where ranks use several memories of a group in different orders.
    """

    def __init__(self, group: Group | None = None, capacity_bytes: int = CAPACITY_BYTES) -> None:
        """Meet the other members, and map `capacity_bytes`: one memory for all of them.

        group: None for torch.distributed's default one.
        ValueError for a group on GPUs or on several hosts, and for too small a capacity. OSError
        where /dev/shm has no room. Wire: an all_gather of a note of 2 KiB. Afterwards a rank holds
        2(n-1) + 1 more open files.
        """
        self.group = chosen(group)
        require_on_host(self.group)
        nbytes = memory_bytes(capacity_bytes, self.group.size)
        smaller = "less: SharedMemory(group, capacity_bytes=...)"
        memory, barrier = meet(self.group, nbytes, timeout_s(self.group), smaller=smaller)
        self._supersteps = Supersteps(memory, barrier, self.group.size)
        self._order = MemoryOrder.of_next(self.group)

    @classmethod
    def kept(cls, group: Group) -> SharedMemory:
        """Return the memory that the functions below use for a group; the first call makes it."""
        if group not in _KEPT:
            made = cls(group)
            _KEPT[group] = (made._supersteps, made._order)
        shared = cls.__new__(cls)
        shared.group = group
        shared._supersteps, shared._order = _KEPT[group]
        return shared

    def all_reduce(self, x: Tensor, *, out: Tensor | None = None) -> Tensor:
        """The sum of `x` over the ranks, on every rank; the same bits on all of them.

        x: any shape, any size from 0 and any dtype that torch adds, the same on every rank. It is
        left alone, and the result is a new contiguous tensor, unless out=x asks for the sum in
        place. TypeError for a dtype without a sum, ValueError for an `out` unlike x.
        """
        x = tensor_arguments.summable(tensor_arguments.tensor(x, self.group))
        result = tensor_arguments.empty(out, x.shape, x, self.group)
        buffer = result.contiguous()
        parts, totals = self._chunks(_apart_from(buffer, x)), self._chunks(buffer)
        rank = self.group.rank
        steps = [put(parts, rank), reduce(parts, rank), take(totals)]
        self._perform("all_reduce", x, steps, "sum")
        return tensor_arguments.delivered(buffer, result)

    def reduce_scatter(self, x: Tensor, *, in_place: bool = False) -> Tensor:
        """Rank r's chunk of the sum of `x` over the ranks.

        x: as for all_reduce; it is cut as one flat row of elements. Returns (chunk numel,).
        in_place: the sum replaces chunk r of a contiguous x, and the result is a view of it.
        Adjoint of all_gather.
        """
        x = tensor_arguments.summable(tensor_arguments.tensor(x, self.group))
        parts, rank = self._chunks(x.contiguous()), self.group.rank
        total = parts[rank] if in_place else x.new_empty(parts[rank].shape)
        steps = [put(parts, rank), reduce(parts, rank, into=total)]
        self._perform("reduce_scatter", x, steps, "sum")
        return total

    def all_gather(self, chunk: Tensor, numel: int, *, out: Tensor | None = None) -> Tensor:
        """Every rank's chunk, joined in rank order.

        chunk: rank r's part of `numel` elements of any dtype, as tensor_split cuts them. Returns
        (numel,), a new tensor, or `out`, of which `chunk` may be a part. The journal has this
        shape, because the chunks of two ranks may differ by an element.
        Adjoint of reduce_scatter. ValueError for a chunk or an `out` of another size.
        """
        chunk = tensor_arguments.tensor(chunk, self.group)
        whole = tensor_arguments.row(out, numel, chunk, self.group)
        totals, rank = self._chunks(whole), self.group.rank
        if chunk.numel() != totals[rank].numel():
            raise ValueError(
                f"rank {rank} of {self.group.size} holds {totals[rank].numel()} of {numel} "
                f"elements, but its chunk has {chunk.numel()}; cut with "
                f"torch.tensor_split(x, {self.group.size})"
            )
        steps = [show(chunk.flatten(), rank), take(totals)]
        self._perform("all_gather", whole, steps)
        return whole

    def _chunks(self, x: Tensor) -> Sequence[Tensor]:
        return x.view(-1).tensor_split(self.group.size)

    def _perform(
        self, kind: str, x: Tensor, steps: Sequence[Stage], reduce: str | None = None
    ) -> None:
        """Enter the operation in the journal, and carry it out. `x`: all of what is cut."""
        group, longest = self.group, -(-x.numel() // self.group.size)
        with self._supersteps.lock:
            record = group._post(kind, x, Traffic(0, 0), True, reduce=reduce, medium=SHARED_MEMORY)
            self._order.require_same(group, record, kind)
            with group._under_way(record):
                self._supersteps.perform(x.dtype, longest, steps, timeout_s(group))


# Keys are weak: the memory of a group goes when nothing else refers to the group.
_KEPT: WeakKeyDictionary[Group, tuple[Supersteps, MemoryOrder]] = WeakKeyDictionary()


def shared_memory_all_reduce(
    x: Tensor, group: Group | None = None, *, out: Tensor | None = None
) -> Tensor:
    """SharedMemory.all_reduce in the memory that is kept for `group`; the first call makes it."""
    return SharedMemory.kept(chosen(group)).all_reduce(x, out=out)


def shared_memory_reduce_scatter(
    x: Tensor, group: Group | None = None, *, in_place: bool = False
) -> Tensor:
    """SharedMemory.reduce_scatter in the memory that is kept for `group`."""
    return SharedMemory.kept(chosen(group)).reduce_scatter(x, in_place=in_place)


def shared_memory_all_gather(
    chunk: Tensor, numel: int, group: Group | None = None, *, out: Tensor | None = None
) -> Tensor:
    """SharedMemory.all_gather in the memory that is kept for `group`."""
    return SharedMemory.kept(chosen(group)).all_gather(chunk, numel, out=out)


def _apart_from(buffer: Tensor, x: Tensor) -> Tensor:
    """Return x, contiguous: `buffer`'s own memory, or memory that no write to it changes."""
    source = x.contiguous()
    shares = source.untyped_storage().data_ptr() == buffer.untyped_storage().data_ptr()
    return source.clone() if shares and source.data_ptr() != buffer.data_ptr() else source


Stage = Callable[[int, Tensor], None]
"""(number of a block, areas of a slot) -> nothing."""


def put(parts: Sequence[Tensor], rank: int) -> Stage:
    """Copy this rank's x into its row, for the other ranks to add."""

    def stage(block: int, areas: Tensor) -> None:
        for owner, part in enumerate(parts):
            if owner != rank:
                _copy_in(_block_of(part, block, areas), areas[rank, owner])

    return stage


def reduce(parts: Sequence[Tensor], rank: int, into: Tensor | None = None) -> Stage:
    """Add up this rank's chunk: into a tensor, or, if that is None, into its own area.

    The tensor may be the chunk itself: then the area gets the sum first, and it is copied.
    """
    in_place = into is parts[rank]

    def stage(block: int, areas: Tensor) -> None:
        own = _block_of(parts[rank], block, areas)
        terms = list(areas[:, rank, : own.numel()])
        total = terms[rank] if into is None or in_place else _block_of(into, block, areas)
        terms[rank] = own  # read where it is, and never copied
        total.copy_(terms[0])
        for term in terms[1:]:  # in the order of ranks, on every rank
            total.add_(term)
        if in_place:
            own.copy_(total)

    return stage


def show(chunk: Tensor, rank: int) -> Stage:
    """Copy this rank's chunk into its area, for the others to read."""

    def stage(block: int, areas: Tensor) -> None:
        _copy_in(_block_of(chunk, block, areas), areas[rank, rank])

    return stage


def take(totals: Sequence[Tensor]) -> Stage:
    """Copy every rank's chunk to where it belongs."""

    def stage(block: int, areas: Tensor) -> None:
        for owner, total in enumerate(totals):
            piece = _block_of(total, block, areas)
            piece.copy_(areas[owner, owner, : piece.numel()])

    return stage


def _block_of(chunk: Tensor, block: int, areas: Tensor) -> Tensor:
    """Return the n-th block of a chunk. Chunks differ by an element, so it may be empty."""
    numel = areas.shape[-1]
    return chunk[block * numel : (block + 1) * numel]


def _copy_in(piece: Tensor, area: Tensor) -> None:
    area[: piece.numel()].copy_(piece)


NUM_SLOTS = 2
ALIGNMENT = 64
"""Bytes: a cache line, and a multiple of every dtype's size."""


def memory_bytes(capacity_bytes: int, size: int) -> int:
    """Return the bytes of `capacity_bytes` that the areas of `size` ranks fill."""
    num_areas = NUM_SLOTS * size**2
    least = num_areas * ALIGNMENT
    if type(capacity_bytes) is not int or capacity_bytes < least:
        raise ValueError(
            f"capacity_bytes={capacity_bytes!r}: {size} ranks need {num_areas} areas of "
            f"{ALIGNMENT} bytes or more, so give at least {least}"
        )
    return capacity_bytes // least * least


class Supersteps:
    """One rank's place in a shared memory. The ranks make the same calls, in the same order."""

    def __init__(self, memory: torch.Tensor, barrier: Barrier, size: int) -> None:
        """`memory`: (nbytes,) of uint8, the same on all ranks, which have met."""
        self.areas = memory.view(NUM_SLOTS, size, size, -1)
        self._barrier = barrier
        self._barrier.arrive()
        self._num_done = 0
        self.lock = threading.Lock()
        """Held during an operation: another thread of this rank may have one too."""

    def perform(
        self, dtype: torch.dtype, numel: int, stages: Sequence[Stage], timeout_s: float
    ) -> None:
        """Perform all stages on all blocks of chunks that have at most `numel` elements.

        RuntimeError when a rank is gone or late. After any error the memory is out of use, on the
        other ranks too.
        """
        areas = self.areas.view(dtype)
        num_blocks = -(-numel // areas.shape[-1])
        try:
            for superstep in range(num_blocks + len(stages) - 1):
                self._barrier.wait(timeout_s)
                for age, stage in enumerate(stages):
                    block, slot = superstep - age, (self._num_done - age) % NUM_SLOTS
                    if 0 <= block < num_blocks:
                        stage(block, areas[slot])
                self._barrier.arrive()
                self._num_done += 1
        except BaseException:
            self._barrier.close()
            raise
