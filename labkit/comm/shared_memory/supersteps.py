"""Copying and adding in blocks, one stage of the work behind the other.

The memory has two slots, and in each of them an area for every pair of a rank and a chunk:

                chunk 0      chunk 1      chunk 2
    rank 0      the sum      its x        its x         Rank r writes into row r only. Its own
    rank 1      its x        the sum      its x         chunk it never needs to show: there, on
    rank 2      its x        its x        the sum       the diagonal, it leaves the sum.

A tensor is cut into n chunks, and these into blocks that fit in an area. In a superstep every
rank works on several blocks, a stage on each (those of an all-reduce):

    superstep           0        1        2        3        4
    put                 block 0  block 1  block 2                   x into the areas of row r
    reduce                       block 0  block 1  block 2          column r into a sum
    take                                  block 0  block 1  block 2   sums into the result
    slot of put         0        1        0        1        0

Between supersteps is a barrier, so each stage reads what others wrote one superstep before. Two
slots are enough: what is in one when `put` comes back to it are sums, which are being taken, and
`put` leaves these alone.
The model: Valiant, "A bridging model for parallel computation", CACM 33(8), 1990.
"""

import threading
from collections.abc import Sequence

import torch

from labkit.comm.shared_memory.barrier import Barrier
from labkit.comm.shared_memory.stages import Stage

NUM_SLOTS = 2
ALIGNMENT = 64
"""Bytes: a cache line, and a multiple of every dtype's size."""


def memory_bytes(capacity_bytes: int, size: int) -> int:
    """How much of `capacity_bytes` the areas of `size` ranks fill. ValueError: not even a line."""
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
        """All stages on all blocks of chunks that have `numel` elements or fewer.

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
