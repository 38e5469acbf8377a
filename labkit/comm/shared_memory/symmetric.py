"""Tensors that lie in shared memory themselves: an all-reduce that copies nothing in or out.

Every rank has a row of the memory, and all ranks have mapped all rows. A tensor has the same place
in each row. Its all-reduce, between two barriers:

            rank 0's row     rank 1's row     rank 2's row
    before  a0  a1  a2       b0  b1  b2       c0  c1  c2
    add     s0 = a0+b0+c0    s1 = a1+b1+c1    s2 = a2+b2+c2     rank r reads chunk r of all rows,
    after   s0  s1  s2       s0  s1  s2       s0  s1  s2        and writes the sum into all of them

Between the barriers only rank r touches chunk r, in whichever row, so nothing is overwritten that
somebody has yet to read.

Wire: nothing. Of D bytes a rank reads D and writes D. (collectives.py, whose tensors lie
elsewhere, copies D in and D out besides.)
Elsewhere: torch's "symmetric memory" is this on GPUs, with rows mapped over NVLink, and its
two_shot_all_reduce_ is this all-reduce. NCCL's registered user buffers save the same copies.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import torch
from torch import Tensor

from labkit.comm import tensor_arguments
from labkit.comm.group import Group, chosen
from labkit.comm.operation import SHARED_MEMORY
from labkit.comm.shared_memory.collectives import ALIGNMENT
from labkit.comm.shared_memory.meeting import meet, require_on_host, timeout_s
from labkit.comm.shared_memory.memory_order import MemoryOrder
from labkit.comm.traffic import Traffic

BLOCK_BYTES = 256 * 2**10
"""Size of the block that is added up before it is written, so that it stays in a core's cache."""


class SymmetricMemory:
    """A row of memory per rank, tensors in it, and their all-reduce in place.

        memory = SymmetricMemory(world, 4000)
        (x,) = memory.carve([(1000, torch.float32)])
        x.copy_(gradient)
        memory.all_reduce(x)

    Every member makes it with the same size, carves the same tensors, and calls the same operations
    in the same order. They block; the journal has them with 0 bytes sent. Errors are those of
    SharedMemory.
    """

    def __init__(self, group: Group | None, nbytes: int) -> None:
        """Meet the other members, and map a row of `nbytes` for each of them.

        group: None for torch.distributed's default one.
        ValueError for a group on GPUs or on several hosts, and where ranks ask for other sizes.
        OSError where /dev/shm has no room. Wire and open files: as SharedMemory's.
        """
        self.group = chosen(group)
        require_on_host(self.group)
        self.row_bytes = -(-nbytes // ALIGNMENT) * ALIGNMENT
        smaller = f"smaller tensors: this is {self.row_bytes:,} bytes for each of the ranks"
        memory, self._barrier = meet(
            self.group, self.row_bytes * self.group.size, timeout_s(self.group), smaller=smaller
        )
        if memory.numel() != self.row_bytes * self.group.size:
            self._barrier.close()
            raise ValueError(
                f"rank {self.group.ranks[self.group.rank]} asks for rows of {self.row_bytes:,} "
                f"bytes, and rank {self.group.ranks[0]} for "
                f"{memory.numel() // self.group.size:,}: give the same nbytes on every rank"
            )
        self._rows = memory.view(self.group.size, -1)
        self._sums = torch.empty(BLOCK_BYTES, dtype=torch.uint8)
        self._order = MemoryOrder.of_next(self.group)
        self._lock = threading.Lock()

    def carve(self, sizes: Sequence[tuple[int, torch.dtype]]) -> list[Tensor]:
        """Return tensors in this rank's row, (numel,) each, with the bytes that were there.

        A second call begins at the row's start again: then do not use the first call's tensors.
        ValueError where they don't fit.
        """
        tensors: list[Tensor] = []
        at = 0
        row = self._rows[self.group.rank]
        for numel, dtype in sizes:
            nbytes = numel * dtype.itemsize
            if at + nbytes > self.row_bytes:
                raise ValueError(
                    f"{len(sizes)} tensors do not fit in a row of {self.row_bytes:,} bytes, each "
                    f"at a multiple of {ALIGNMENT}: number {len(tensors)} would end at byte "
                    f"{at + nbytes:,}. Make the memory larger"
                )
            tensors.append(row[at : at + nbytes].view(dtype))
            at += -(-nbytes // ALIGNMENT) * ALIGNMENT
        return tensors

    def all_reduce(self, x: Tensor) -> Tensor:
        """Replace `x` by its sum over the ranks, added in rank order: the same bits on all of them.

        x: contiguous and in this rank's row, at the same place on every rank, of any shape and any
        dtype that torch adds. Returns x. ValueError for a tensor that lies elsewhere.
        """
        tensor_arguments.summable(tensor_arguments.tensor(x, self.group))
        at = self._place_of(x)
        group, wait_s = self.group, timeout_s(self.group)
        with self._lock:
            record = group._post(
                "all_reduce", x, Traffic(0, 0), True, reduce="sum", medium=SHARED_MEMORY
            )
            self._order.require_same(group, record, "all_reduce", at)
            with group._under_way(record):
                try:
                    self._barrier.arrive()
                    self._barrier.wait(wait_s)
                    self._add_chunk(at // x.itemsize, x.numel(), x.dtype)
                    self._barrier.arrive()
                    self._barrier.wait(wait_s)
                except BaseException:
                    self._barrier.close()
                    raise
        return x

    def _place_of(self, x: Tensor) -> int:
        """Return the byte of the row at which a tensor begins."""
        at = x.data_ptr() - self._rows[self.group.rank].data_ptr()
        if x.numel() == 0:
            return 0
        if not x.is_contiguous() or at < 0 or at + x.nbytes > self.row_bytes or at % x.itemsize:
            raise ValueError(
                f"this tensor, {tuple(x.shape)}, does not lie in this rank's row of the memory in "
                "one piece; all-reduce one that carve() has returned, or a contiguous part of it. "
                "For any other there is shared_memory_all_reduce"
            )
        return at

    def _add_chunk(self, first: int, numel: int, dtype: torch.dtype) -> None:
        """Add up this rank's chunk of what lies at element `first`; write it into every row."""
        rows = self._rows.view(dtype)[:, first : first + numel]
        chunk = rows.tensor_split(self.group.size, dim=1)[self.group.rank]
        sums = self._sums.view(dtype)
        for terms in chunk.split(sums.numel(), dim=1):  # (ranks, numel of a block)
            total = sums[: terms.shape[1]]
            total.copy_(terms[0])
            for term in terms[1:]:
                total.add_(term)
            terms.copy_(total.expand_as(terms))
