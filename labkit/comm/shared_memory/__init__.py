"""Collectives among the ranks of one host, through memory that all of them have mapped.

No byte goes over the network: what a rank writes, the others read.

    collectives.py    SharedMemory, and functions called as those of labkit.collectives: a tensor
                      is copied in and out, block by block
    symmetric.py      tensors that lie in the memory themselves: nothing to copy in or out
    barrier.py        when ranks may read what others have written
    meeting.py        how ranks come to share a memory: a file in /dev/shm
    memory_order.py   which memory of a group the ranks mean
"""

from labkit.comm.shared_memory.collectives import (
    SharedMemory,
    shared_memory_all_gather,
    shared_memory_all_reduce,
    shared_memory_reduce_scatter,
)
from labkit.comm.shared_memory.symmetric import SymmetricMemory

__all__ = [
    "SharedMemory",
    "SymmetricMemory",
    "shared_memory_all_gather",
    "shared_memory_all_reduce",
    "shared_memory_reduce_scatter",
]
