"""Groups of ranks that exchange tensors, and the journal of everything they did.

The only room that calls torch.distributed.
"""

from labkit.comm.agreement.disagreement import Disagreement
from labkit.comm.group import Group
from labkit.comm.operation import Operation, Region, Site, Timeline
from labkit.comm.pacing.pace import Pace
from labkit.comm.pending import Pending
from labkit.comm.shared_memory import (
    SharedMemory,
    SymmetricMemory,
    shared_memory_all_gather,
    shared_memory_all_reduce,
    shared_memory_reduce_scatter,
)
from labkit.comm.topology import Link, Topology

__all__ = [
    "Disagreement",
    "Group",
    "Link",
    "Operation",
    "Pace",
    "Pending",
    "Region",
    "SharedMemory",
    "Site",
    "SymmetricMemory",
    "Timeline",
    "Topology",
    "shared_memory_all_gather",
    "shared_memory_all_reduce",
    "shared_memory_reduce_scatter",
]
